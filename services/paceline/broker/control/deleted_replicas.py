"""Remembers deleted replicas so that a delayed, retried LeaderAndIsr cannot re-create them.

A retried LeaderAndIsr may arrive after the StopReplica that followed it, and would create an empty log. A leader with
that log would answer clients with OFFSET_OUT_OF_RANGE, write its ISR to the state node of a re-created topic, and
prevent this broker from hosting that topic.
"""

from collections.abc import Hashable
from typing import Final, TypeVar

from paceline.model.control import LeaderAndIsrPartition, StopReplicaPartition
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import EPOCH_DURING_DELETE

REMEMBERED: Final = 10_000
"""Maximum number of entries: far more than can be deleted while an earlier request is still in flight."""

K = TypeVar("K", bound=Hashable)


class DeletedReplicas:
    """The replicas deleted last, at most `REMEMBERED` of each kind."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        """Epoch of the controller that deleted the topic, by topic id."""
        self._moved: dict[tuple[str, int], int] = {}
        """Leader epoch of the StopReplica that deleted a replica of an existing topic, by topic id and partition."""

    def add(self, state: StopReplicaPartition, controller_epoch: int) -> None:
        """Record a deletion: of the topic, or of a replica that a reassignment has removed and may add again."""
        if state.topic_id is None:
            return
        if state.leader_epoch == EPOCH_DURING_DELETE:
            _remember(self._topics, state.topic_id, controller_epoch)
        else:
            _remember(self._moved, (state.topic_id, state.topic_partition.partition), state.leader_epoch)

    def refusal(self, state: LeaderAndIsrPartition, controller_epoch: int) -> ErrorCode:
        """Return the error of a decision that must not create a missing log, else NONE.

        A deleted topic is refused up to the controller epoch of its deletion, because a later controller may have
        re-created it with the same id. A removed replica is refused up to the leader epoch of its removal.
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
