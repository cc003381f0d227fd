"""Answer client requests when leaders have acknowledged their LeaderAndIsr request, or topics are deleted.

Source: docs/protocol/controller.md#answer-after-acknowledgement.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.model.errors import PacelineError, RequestTimedOutError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Cancellable, Scheduler

Key = TopicPartition | str
"""A partition whose leader must acknowledge, or the name of a topic that must be deleted."""
Answer = Callable[[Mapping[Any, PacelineError]], None]
"""Callback with the partitions or topics that failed, and their errors."""


@dataclass(slots=True, eq=False)
class _Wait:
    open: dict[Key, int]
    """Unacknowledged partitions, with the lowest leader epoch that counts as acknowledgement, and undeleted topics."""
    topics: dict[str, None]
    answer: Answer
    resigned: str
    errors: dict[Key, PacelineError] = field(default_factory=dict)
    timer: Cancellable | None = None


class LeaderAckWaiters:
    """Requests that wait for leaders or deletions.

    Every wait ends: on the last acknowledgement, at its deadline, or on resignation.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._by_topic: dict[str, dict[_Wait, None]] = {}

    def wait(
        self,
        epochs: Mapping[Any, int],
        timeout_ms: int,
        reason: str,
        answer: Answer,
        resigned: str = "written changes remain in effect",
    ) -> None:
        """Call ``answer`` at the deadline, or when each leader has acknowledged at least its partition's leader epoch.

        The keys of ``epochs`` are of type `Key`. A topic name waits for the topic's deletion; its epoch is ignored.
        ``reason`` is the message of the `RequestTimedOutError` at the deadline; ``resigned`` is the end of the message
        after a resignation.
        """
        topics = dict.fromkeys(topic_of(key) for key in epochs)
        waiting = _Wait(dict(epochs), topics, answer, resigned)
        if not waiting.open:
            answer({})
            return
        for topic in waiting.topics:
            self._by_topic.setdefault(topic, {})[waiting] = None
        waiting.timer = self._scheduler.call_later(
            timeout_ms, lambda: self._give_up(waiting, RequestTimedOutError(reason))
        )

    def acknowledged(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Record that a leader has answered its LeaderAndIsr request of this epoch."""
        for waiting in tuple(self._by_topic.get(topic_partition.topic, ())):
            wanted = waiting.open.get(topic_partition)
            if wanted is not None and leader_epoch >= wanted:
                del waiting.open[topic_partition]
                self._finish_if_done(waiting)

    def topic_deleted(self, topic: str) -> None:
        """End the waits for a topic that was deleted or whose node disappeared; waits for leaders of the topic fail."""
        error = UnknownTopicOrPartitionError(f"topic {topic!r} was deleted meanwhile")
        for waiting in tuple(self._by_topic.get(topic, ())):
            if waiting.open.pop(topic, None) is None:
                for key in [key for key in waiting.open if topic_of(key) == topic]:
                    del waiting.open[key]
                    waiting.errors[key] = error
            self._finish_if_done(waiting)

    def resigned(self) -> None:
        """Answer all waiting requests with a timeout error.

        The changes are written, but this controller receives no more acknowledgements.
        """
        for waiting in {waiting: None for waits in self._by_topic.values() for waiting in waits}:
            self._give_up(waiting, RequestTimedOutError(f"the controller resigned; {waiting.resigned}"))

    def _give_up(self, waiting: _Wait, error: PacelineError) -> None:
        waiting.errors.update(dict.fromkeys(waiting.open, error))
        waiting.open.clear()
        self._finish_if_done(waiting)

    def _finish_if_done(self, waiting: _Wait) -> None:
        if waiting.open:
            return
        for topic in waiting.topics:
            waits = self._by_topic.get(topic, {})
            waits.pop(waiting, None)
            if not waits:
                self._by_topic.pop(topic, None)
        if waiting.timer is not None:
            waiting.timer.cancel()
        waiting.answer(waiting.errors)


def topic_of(key: Key) -> str:
    """Return the name of a key's topic."""
    return key if isinstance(key, str) else key.topic
