"""What a client may read from a follower (KIP-392): only what the follower knows to be committed."""

from paceline.broker.partition.partition import Partition
from paceline.broker.requests.fetch_types import PartitionRead
from paceline.model.errors import OffsetNotAvailableError
from paceline.replication.fetch_session import FetchPosition
from paceline.replication.truncation import divergence


def look_at_follower(partition: Partition, position: FetchPosition, read: PartitionRead) -> None:
    """Fill in where the follower stands and whether it has something for the client.

    Above its high watermark its log may still be cut, so nothing there is compared, and an offset beyond its end is no
    error of the client's: the leader has told of it already.

    Raises:
        OffsetNotAvailableError: the log does not reach that far yet.
        OffsetOutOfRangeError: the log begins later; ask the leader.
        FencedLeaderEpochError, UnknownLeaderEpochError: the client's leader epoch is another.
        NotLeaderOrFollowerError: this broker does not follow.
    """
    log = partition.readable_log(position.current_leader_epoch)
    offset = position.fetch_offset
    read.leader_epoch = partition.leader_epoch
    read.log_start_offset = log.log_start_offset
    read.log_end_offset = log.log_end_offset
    read.high_watermark = log.high_watermark
    if offset > log.log_end_offset:
        raise OffsetNotAvailableError(f"{position.topic_partition} ends at {log.log_end_offset} at this follower")
    if offset <= log.high_watermark:
        read.diverging_epoch = divergence(
            offset, position.last_fetched_epoch, log.log_start_offset, log.high_watermark, log.end_offset_for_epoch
        )
    read.available = offset < log.high_watermark
