"""Read from followers (KIP-392): choose the broker to fetch from, and return to the leader when needed."""

from typing import Final

from paceline_client.clock import monotonic_ms
from paceline_client.metadata import Broker
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.partition_errors import BACKOFF_MS
from paceline_client.subscription import PartitionState

LEADER_ONLY_MS: Final = 10_000
"""Time for which only the leader is read after a fetch from a follower failed."""
_MAX_AGE_MS: Final = 300_000
"""Time after which a consumer that reads from a follower asks the leader for a read replica again."""
_NEWS_MS: Final = 1_000
"""Time for which only the leader is read after it named a follower that is not in the metadata yet."""


def source_of(state: PartitionState, leader: Broker, metadata: MetadataRefresher, now_ms: int) -> Broker:
    """Return the broker to fetch from: the follower named by the leader while it may be used, otherwise the leader."""
    if state.read_replica is None:
        return leader
    known = metadata.cluster.partition(state.topic_partition)
    replica = next((one for one in metadata.brokers() if one.broker_id == state.read_replica), None)
    if replica is None:
        # Omit the partition from the fetch session for a moment, so that the leader chooses a read replica again.
        state.retry_at_ms = now_ms + BACKOFF_MS
        state.back_to_leader(now_ms + _NEWS_MS)
        metadata.request()
        return leader
    out_of_sync = known is None or state.read_replica not in known.isr
    if now_ms >= state.read_replica_until_ms or (
        out_of_sync and state.read_replica_version != metadata.cluster.version
    ):
        state.back_to_leader()
        return leader
    return replica


def rack_to_tell(rack: str, broker: Broker, states: list[PartitionState]) -> str:
    """Return the rack for the request; empty while only leaders may be read, so that the leader does not redirect."""
    now_ms = monotonic_ms()
    at_followers = any(state.read_replica == broker.broker_id for state in states)
    if not at_followers and any(now_ms < state.leader_only_until_ms for state in states):
        return ""
    return rack


def read_from(state: PartitionState, replica: int, metadata: MetadataRefresher) -> None:
    """Read from the follower that the leader named; the leader may know an ISR change that the metadata lacks."""
    known = metadata.cluster.partition(state.topic_partition)
    version = None
    if known is None or replica not in known.isr:
        version = metadata.cluster.version
        metadata.request()
    state.read_from(replica, monotonic_ms() + _MAX_AGE_MS, version)
