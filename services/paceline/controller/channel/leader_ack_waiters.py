"""Answer client requests when leaders have acknowledged their LeaderAndIsr request.

Source: docs/protocol/controller.md#answer-after-acknowledgement.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.model.errors import PacelineError, RequestTimedOutError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Cancellable, Scheduler

Answer = Callable[[Mapping[TopicPartition, PacelineError]], None]
"""Callback with the partitions that failed, and their errors."""


@dataclass(slots=True, eq=False)
class _Wait:
    open: dict[TopicPartition, int]
    """Unacknowledged partitions, with the lowest leader epoch that counts as acknowledgement."""
    answer: Answer
    errors: dict[TopicPartition, PacelineError] = field(default_factory=dict)
    timer: Cancellable | None = None


class LeaderAckWaiters:
    """Requests that wait for leaders.

    Every wait ends: on the last acknowledgement, at its deadline, or on resignation.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waits: list[_Wait] = []

    def wait(self, epochs: Mapping[TopicPartition, int], timeout_ms: int, reason: str, answer: Answer) -> None:
        """Answer when the leader of each partition has acknowledged at least its leader epoch, or at the deadline.

        ``reason`` is the message of the `RequestTimedOutError` for unacknowledged partitions.
        """
        waiting = _Wait(dict(epochs), answer)
        if not waiting.open:
            answer({})
            return
        self._waits.append(waiting)
        waiting.timer = self._scheduler.call_later(
            timeout_ms, lambda: self._give_up(waiting, RequestTimedOutError(reason))
        )

    def acknowledged(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Record that a leader has answered its LeaderAndIsr request of this epoch."""
        for waiting in tuple(self._waits):
            wanted = waiting.open.get(topic_partition)
            if wanted is not None and leader_epoch >= wanted:
                del waiting.open[topic_partition]
                self._finish_if_done(waiting)

    def topic_gone(self, topic: str) -> None:
        """Fail the waits for a topic that was deleted, or whose node disappeared."""
        error = UnknownTopicOrPartitionError(f"topic {topic!r} was deleted meanwhile")
        for waiting in tuple(self._waits):
            for topic_partition in [tp for tp in waiting.open if tp.topic == topic]:
                del waiting.open[topic_partition]
                waiting.errors[topic_partition] = error
            self._finish_if_done(waiting)

    def resigned(self) -> None:
        """Answer all waiting requests: their changes are written, but no more acknowledgements will arrive here."""
        for waiting in tuple(self._waits):
            self._give_up(waiting, RequestTimedOutError("the controller resigned; written changes remain in effect"))

    def _give_up(self, waiting: _Wait, error: PacelineError) -> None:
        waiting.errors.update(dict.fromkeys(waiting.open, error))
        waiting.open.clear()
        self._finish_if_done(waiting)

    def _finish_if_done(self, waiting: _Wait) -> None:
        if waiting.open or waiting not in self._waits:
            return
        self._waits.remove(waiting)
        if waiting.timer is not None:
            waiting.timer.cancel()
        waiting.answer(waiting.errors)
