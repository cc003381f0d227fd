"""Decide when a leader notifies the controller of ISR changes.

Source: docs/protocol/replication.md#isr-propagation.
"""

from paceline.model.identifiers import TopicPartition


class IsrPropagation:
    """Partitions with ISR changes, and the times of the last change and of the last propagation.

    Changes are propagated when the last change was more than `quiet_ms` ago or the last propagation more than
    `max_wait_ms` ago. A single change after a quiet minute is propagated at the next tick; constant changes are
    propagated once per `max_wait_ms`.
    """

    def __init__(self, quiet_ms: int, max_wait_ms: int) -> None:
        self._quiet_ms = quiet_ms
        self._max_wait_ms = max_wait_ms
        self._changed: dict[TopicPartition, None] = {}
        self._last_change_ms = 0
        self._last_propagation_ms: int | None = None

    @property
    def pending(self) -> tuple[TopicPartition, ...]:
        """Partitions whose change is not propagated yet, oldest change first."""
        return tuple(self._changed)

    def record(self, topic_partition: TopicPartition, now_ms: int) -> None:
        """Record a successful ISR write."""
        self._changed[topic_partition] = None
        self._last_change_ms = now_ms

    def take_due(self, now_ms: int) -> tuple[TopicPartition, ...]:
        """Return the partitions to propagate now and remove them; return an empty tuple when none is due."""
        if not self._changed:
            return ()
        quiet = self._last_change_ms + self._quiet_ms < now_ms
        overdue = self._last_propagation_ms is None or self._last_propagation_ms + self._max_wait_ms < now_ms
        if not (quiet or overdue):
            return ()
        due = tuple(self._changed)
        self._changed.clear()
        self._last_propagation_ms = now_ms
        return due

    def put_back(self, topic_partitions: tuple[TopicPartition, ...]) -> None:
        """Add partitions again whose notification could not be written; the next tick decides when to retry."""
        self._changed = {**dict.fromkeys(topic_partitions), **self._changed}
