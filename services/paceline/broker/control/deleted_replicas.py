"""Remembers deleted replicas so that a delayed, retried LeaderAndIsr cannot re-create them.

A retried LeaderAndIsr may arrive after the StopReplica that followed it. It would create an empty log: its leader would
answer clients with OFFSET_OUT_OF_RANGE, block the next topic of the name and write the state of that topic.
"""

from collections.abc import Hashable
from typing import Final, TypeVar

from paceline.model.control import LeaderAndIsrPartition, StopReplicaPartition
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import EPOCH_DURING_DELETE

REMEMBERED: Final = 10_000
"""Far more than can be deleted while a request that names such a replica is still in flight."""

K = TypeVar("K", bound=Hashable)


class DeletedReplicas:
    """The latest deleted replicas."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        """Epoch of the controller that deleted the topic, by topic id."""
        self._moved: dict[tuple[str, int], int] = {}
        """Leader epoch in which a replica was moved away, by topic id and partition."""

    def add(self, state: StopReplicaPartition, controller_epoch: int) -> None:
        """Record a deleted replica: deleted with its topic, or moved away and possibly returning later."""
        if state.topic_id is None:
            return
        if state.leader_epoch == EPOCH_DURING_DELETE:
            _remember(self._topics, state.topic_id, controller_epoch)
        else:
            _remember(self._moved, (state.topic_id, state.topic_partition.partition), state.leader_epoch)

    def refusal(self, state: LeaderAndIsrPartition, controller_epoch: int) -> ErrorCode:
        """Return why a decision may not create a missing log; NONE when it may.

        A later controller may have re-created the topic; a replica returns only in a later leader epoch.
        """
        if state.topic_id is None:
            return ErrorCode.NONE
        if self._topics.get(state.topic_id, -1) >= controller_epoch:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if self._moved.get((state.topic_id, state.topic_partition.partition), -1) >= state.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        return ErrorCode.NONE


def _remember(known: dict[K, int], key: K, epoch: int) -> None:
    known.pop(key, None)
    known[key] = epoch
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
