"""The replicas this process has deleted at a controller's word, so that a repetition which comes late revives none.

A LeaderAndIsr that is sent again may arrive after the StopReplica that followed it. The log it would make anew is
empty: its leader would answer clients with offsets out of range, bar the next topic of the name and write that topic's
state.
"""

from collections.abc import Hashable
from typing import Final, TypeVar

from paceline.model.control import LeaderAndIsrPartition, StopReplicaPartition
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import EPOCH_DURING_DELETE

REMEMBERED: Final = 10_000
"""Far more than are deleted while a request that names one can still be under way."""

K = TypeVar("K", bound=Hashable)


class DeletedReplicas:
    """What was deleted, the latest of it."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        """Epoch of the controller that had a topic deleted, by topic id."""
        self._moved: dict[tuple[str, int], int] = {}
        """Leader epoch in which a replica moved away, by topic id and partition."""

    def add(self, state: StopReplicaPartition, controller_epoch: int) -> None:
        """A replica is deleted: with its topic, or because it has moved away and may come back."""
        if state.topic_id is None:
            return
        if state.leader_epoch == EPOCH_DURING_DELETE:
            _remember(self._topics, state.topic_id, controller_epoch)
        else:
            _remember(self._moved, (state.topic_id, state.topic_partition.partition), state.leader_epoch)

    def refusal(self, state: LeaderAndIsrPartition, controller_epoch: int) -> ErrorCode:
        """Return why a decision may not make a log that is not here; NONE when it may.

        A later controller may know better of a topic; a replica comes back in a later leader epoch.
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
