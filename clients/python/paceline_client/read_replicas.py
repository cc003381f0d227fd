"""Reading from followers (KIP-392): whom to fetch a partition from, and when to go back to its leader."""

from typing import Final

from paceline_client.clock import monotonic_ms
from paceline_client.metadata import Broker
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.obstacles import BACKOFF_MS
from paceline_client.subscription import PartitionState

LEADER_ONLY_MS: Final = 10_000
"""How long only the leader is read after a follower could not be."""
_NEWS_MS: Final = 1_000
"""How long only the leader is read after it named a follower that metadata does not know yet."""


def source_of(state: PartitionState, leader: Broker, metadata: MetadataRefresher, now_ms: int) -> Broker:
    """Return whom to fetch from: the follower the leader has named while that holds, else the leader."""
    if state.read_replica is None:
        return leader
    known = metadata.partition(state.topic_partition)
    replica = next((one for one in metadata.brokers() if one.broker_id == state.read_replica), None)
    if replica is None:
        # Left out for a moment, so that the leader's session looks at the partition again.
        state.retry_at_ms = now_ms + BACKOFF_MS
        state.back_to_leader(now_ms + _NEWS_MS)
        metadata.request()
        return leader
    out_of_sync = known is None or state.read_replica not in known.isr
    if now_ms >= state.read_replica_until_ms or (out_of_sync and state.read_replica_version != metadata.version):
        state.back_to_leader()
        return leader
    return replica


def rack_to_tell(rack: str, broker: Broker, states: list[PartitionState]) -> str:
    """Return the rack to tell: none while only leaders are to be read, for the leader would send us away again."""
    now_ms = monotonic_ms()
    at_followers = any(state.read_replica == broker.broker_id for state in states)
    if not at_followers and any(now_ms < state.leader_only_until_ms for state in states):
        return ""
    return rack


def read_from(state: PartitionState, replica: int, metadata: MetadataRefresher, max_age_ms: int) -> None:
    """Read from the follower the leader names, which knows who is in sync before metadata tells."""
    known = metadata.partition(state.topic_partition)
    version = None
    if known is None or replica not in known.isr:
        version = metadata.version
        metadata.request()
    state.read_from(replica, monotonic_ms() + max_age_ms, version)
