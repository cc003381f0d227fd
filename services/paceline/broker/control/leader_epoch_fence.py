"""Which leader epochs a broker applies: a rise that no run of elections explains is looked up in ZooKeeper first."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from paceline.broker.control.controller_epoch_fence import ControlRequestDeferredError
from paceline.model.identifiers import TopicPartition

MAX_UNCONFIRMED_RISE: Final = 1_000
"""By how much a leader epoch may rise unasked. A broker misses some elections; it does not miss thousands."""

EpochsRead = Callable[[Mapping[TopicPartition, int] | None], None]
ReadLeaderEpochs = Callable[[Collection[TopicPartition], EpochsRead], None]
"""Reads state nodes and calls back with their leader epochs, None when they could not be read."""


class LeaderEpochFence:
    """Holds back leader epochs that rise by far too much until ZooKeeper has confirmed them.

    A replica that took a forged epoch near the highest would refuse every later leader of its partition. A controller
    writes the state node before it sends the decision, so the node says whether the epoch is real.
    """

    def __init__(self, read_leader_epochs: ReadLeaderEpochs) -> None:
        self._read_leader_epochs = read_leader_epochs
        self._is_reading = False
        self._found: dict[TopicPartition, int] = {}
        """Leader epochs that ZooKeeper has answered, until the request that waits for them comes again."""
        self._waiting: list[Callable[[], None]] = []

    def refuted(self, rises: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        """Return the partitions whose claimed epoch ZooKeeper does not have, with the epoch that it has.

        Args:
            rises: for each partition the leader epoch that the request claims, and the one that this broker has.

        Raises:
            ControlRequestDeferredError: ZooKeeper is being asked; send the request again.
        """
        suspects = {
            topic_partition: claimed
            for topic_partition, (claimed, known) in rises.items()
            if claimed - known > MAX_UNCONFIRMED_RISE
        }
        unread = [topic_partition for topic_partition in suspects if topic_partition not in self._found]
        if unread:
            self._read(suspects)
            raise ControlRequestDeferredError(
                f"leader epoch {suspects[unread[0]]} of {unread[0]} rises from {rises[unread[0]][1]}; "
                "asking ZooKeeper, send it again"
            )
        found = {topic_partition: self._found.pop(topic_partition) for topic_partition in suspects}
        return {topic_partition: epoch for topic_partition, epoch in found.items() if epoch < suspects[topic_partition]}

    def when_read(self, on_read: Callable[[], None]) -> None:
        """Call ``on_read`` when ZooKeeper has answered, at once when nothing is being asked."""
        if self._is_reading:
            self._waiting.append(on_read)
        else:
            on_read()

    def _read(self, wanted: Collection[TopicPartition]) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._read_leader_epochs(list(wanted), self._answered)

    def _answered(self, epochs: Mapping[TopicPartition, int] | None) -> None:
        self._is_reading = False
        self._found = dict(epochs or {})
        waiting, self._waiting = self._waiting, []
        for on_read in waiting:
            on_read()
