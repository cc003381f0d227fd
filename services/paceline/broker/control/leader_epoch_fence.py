"""Fence forged leader epochs: an improbably large rise is applied only after ZooKeeper has confirmed it.

Source: docs/protocol/replication.md#request-fences.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from paceline.broker.control.request_fence import ControlRequestDeferredError
from paceline.model.identifiers import TopicPartition

MAX_UNCONFIRMED_RISE: Final = 1_000
"""Largest rise that needs no confirmation: a broker misses fewer elections. A replica without a role has epoch -1."""

EpochsRead = Callable[[Mapping[TopicPartition, int] | None], None]
ReadLeaderEpochs = Callable[[Collection[TopicPartition], EpochsRead], None]
"""Reads state nodes and calls back with their leader epochs, or None when they could not be read."""


class LeaderEpochFence:
    """Defers a request whose leader epoch rises by more than `MAX_UNCONFIRMED_RISE` until ZooKeeper was read.

    A replica that accepts a forged, very high epoch refuses every later leader of its partition. A controller writes
    the state node before it sends the decision, so an epoch above the node's is forged.
    """

    def __init__(self, read_leader_epochs: ReadLeaderEpochs) -> None:
        self._read_leader_epochs = read_leader_epochs
        self._asked: Mapping[TopicPartition, int] | None = None
        """Claimed epochs of the pending look-up, None when there is none."""
        self._found: dict[TopicPartition, tuple[int, int]] = {}
        """Claimed epoch and epoch in ZooKeeper, kept until the deferred request is retried. For a
        higher claimed epoch ZooKeeper is read again."""
        self._waiting: list[Callable[[], None]] = []

    def refuted(self, rises: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        """Return the partitions whose claimed epoch is above ZooKeeper's epoch, with ZooKeeper's epoch.

        Args:
            rises: for each partition the leader epoch of the request, and the present leader epoch.

        Raises:
            ControlRequestDeferredError: the epochs are being read from ZooKeeper; the controller retries the request.
        """
        suspects = {
            topic_partition: claimed
            for topic_partition, (claimed, known) in rises.items()
            if claimed - known > MAX_UNCONFIRMED_RISE
        }
        unread = [
            topic_partition
            for topic_partition, claimed in suspects.items()
            if topic_partition not in self._found or self._found[topic_partition][0] < claimed
        ]
        if unread:
            self._read(suspects)
            raise ControlRequestDeferredError(
                f"leader epoch {suspects[unread[0]]} of {unread[0]} rises from {rises[unread[0]][1]}; "
                "the broker reads ZooKeeper, the controller repeats the request"
            )
        found = {topic_partition: self._found.pop(topic_partition)[1] for topic_partition in suspects}
        return {topic_partition: epoch for topic_partition, epoch in found.items() if epoch < suspects[topic_partition]}

    def when_read(self, on_read: Callable[[], None]) -> None:
        """Call ``on_read`` when ZooKeeper has answered the pending look-up; at once when there is none."""
        if self._asked is not None:
            self._waiting.append(on_read)
        else:
            on_read()

    def _read(self, suspects: Mapping[TopicPartition, int]) -> None:
        if self._asked is None:
            self._asked = dict(suspects)
            self._read_leader_epochs(list(suspects), self._answered)

    def _answered(self, epochs: Mapping[TopicPartition, int] | None) -> None:
        asked, self._asked = self._asked or {}, None
        self._found = {tp: (asked[tp], epoch) for tp, epoch in (epochs or {}).items() if tp in asked}
        waiting, self._waiting = self._waiting, []
        for on_read in waiting:
            on_read()
