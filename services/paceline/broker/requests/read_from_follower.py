"""Client reads from a follower: only records that the follower knows to be committed.

Source: docs/protocol/replication.md#reading-from-a-follower; KIP-392.
"""

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.requests.fetch_types import PartitionRead
from paceline.model.errors import OffsetNotAvailableError
from paceline.model.fetch_position import FetchPosition
from paceline.replication.replica_selector import RACK_AWARE_NAMES, Candidate, nearest_replica
from paceline.replication.truncation import divergence


def check_follower_read(partition: Partition, position: FetchPosition, read: PartitionRead) -> None:
    """Check a client's fetch on this follower; store the follower's offsets, and whether it has data, in ``read``.

    An offset above the log end is OFFSET_NOT_AVAILABLE, not OFFSET_OUT_OF_RANGE, because the leader may have the
    offset. Leader epochs are compared only up to the high watermark: the follower may still truncate its log above it.

    Raises:
        OffsetNotAvailableError: the log does not have the offset yet, or after a restart the high watermark has not yet
            reached the end of the loaded log.
        OffsetOutOfRangeError: the log starts later; the client must ask the leader.
        FencedLeaderEpochError, UnknownLeaderEpochError: the client has another leader epoch.
        NotLeaderOrFollowerError: this broker does not follow the partition.
    """
    log = partition.begin_client_read(position.current_leader_epoch)
    offset = position.fetch_offset
    read.leader_epoch = partition.leader_epoch
    read.log_start_offset = log.log_start_offset
    read.log_end_offset = log.log_end_offset
    read.high_watermark = log.high_watermark
    if log.high_watermark < min(log.local.loaded_end_offset, log.log_end_offset):
        # The checkpointed high watermark may be below that which this broker's earlier process returned to readers.
        raise OffsetNotAvailableError(
            f"the high watermark of {position.topic_partition} is not current after a restart"
        )
    if offset > log.log_end_offset:
        raise OffsetNotAvailableError(f"this follower's log of {position.topic_partition} ends at {log.log_end_offset}")
    if offset <= log.high_watermark:
        read.diverging_epoch = divergence(
            offset, position.last_fetched_epoch, log.log_start_offset, log.high_watermark, log.end_offset_for_epoch
        )
    read.available = offset < log.high_watermark


def preferred_follower(hosted: HostedPartitions, partition: Partition, rack: str, fetch_offset: int) -> int | None:
    """Return the follower that a client in that rack should read from, None for this leader (KIP-392).

    Only live members of the committed ISR are returned, so that the follower's high watermark lags only a little.
    """
    config, snapshot = hosted.config, hosted.metadata.snapshot
    if config.replica_selector_class not in RACK_AWARE_NAMES:
        return None
    candidates = [
        Candidate(broker_id, snapshot.brokers[broker_id].rack, known.log_start_offset or 0, known.log_end_offset)
        for broker_id, known in partition.followers.items()
        if broker_id in partition.isr
        and broker_id in snapshot.brokers
        and known.log_end_offset is not None
        and not snapshot.is_offline_replica(partition.topic_partition, broker_id)
    ]
    return nearest_replica(rack, config.broker_rack, fetch_offset, candidates)
