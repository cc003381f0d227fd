"""Select the replica from which a consumer reads: in its own rack, so that records cross racks once.

Source: docs/protocol/replication.md#reading-from-a-follower; KIP-392.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

RACK_AWARE: Final = "rack-aware"
RACK_AWARE_NAMES: Final = (RACK_AWARE, "org.apache.kafka.common.replica.RackAwareReplicaSelector")
"""Values of ``replica.selector.class`` for rack-aware selection: Paceline's short name and Kafka's class name."""


class Candidate(NamedTuple):
    """A follower that is alive and in sync."""

    broker_id: int
    rack: str | None
    log_start_offset: int
    log_end_offset: int


def nearest_replica(
    rack: str, leader_rack: str | None, fetch_offset: int, followers: Iterable[Candidate]
) -> int | None:
    """Return the follower to read from, None for the leader.

    The leader is chosen if it is in the reader's rack. Otherwise the follower in that rack is chosen whose log contains
    the fetch offset and has the largest end offset; of equal followers, the one with the lowest id.

    Source: KIP-392; Kafka 2.8 RackAwareReplicaSelector, Partition.
    """
    if not rack or leader_rack == rack:
        return None
    near = [one for one in followers if one.rack == rack and one.log_start_offset <= fetch_offset <= one.log_end_offset]
    best = min(near, key=lambda one: (-one.log_end_offset, one.broker_id), default=None)
    return None if best is None else best.broker_id
