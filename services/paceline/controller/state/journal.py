"""``/controller_journal``: an extra operation in every multi that writes partition states.

A standby compares the journal's sequence with the sequence of its copy, and so finds the partitions that its copy
lacks. The operation needs no version check: it follows the check of ``/controller_epoch`` in the same multi, so only
the controller of this epoch can apply it. With a version check, a multi that fails because of one partition
would make every later multi in the pipeline fail too.

The journal lists the partitions of several multis, newest last, so that a standby may lag by several multis. A failed
multi in the list does no harm: its partitions are read unnecessarily. The list is limited in bytes; ``since`` is the
sequence of the last multi that was dropped from it.

Source: docs/protocol/zookeeper.md#controller-journal; docs/decisions/0009-warm-standbys.md.
"""

from collections import deque
from collections.abc import Iterable

from paceline.coordination import znodes
from paceline.coordination.interface import Create, SetData
from paceline.coordination.znodes.journal import JournalBatch, JournalEntry, encode_journal, first_sequence
from paceline.model.identifiers import TopicPartition

MAX_LIST_BYTES = 32 * 1024
"""Maximum size of the list. It is in addition to ``zookeeper.multi.max.bytes``, far below ``jute.maxbuffer``."""
_BATCH_OVERHEAD_BYTES = 64
_TOPIC_OVERHEAD_BYTES = 6
_PARTITION_BYTES = 8
"""Bytes of a partition number with its comma, rounded up."""


class ControllerJournal:
    """The journal of one controller epoch."""

    def __init__(self, limit_bytes: int = MAX_LIST_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._sequence = 0
        self._since = 0
        self._window: deque[JournalBatch] = deque()
        self._window_bytes = 0
        self._confirmed = 0
        self.applied = 0
        """Latest sequence in ZooKeeper whose states are all in the context: see `settle`."""

    def begin(self, controller_epoch: int, found: JournalEntry | None) -> None:
        """Start an epoch with the list in ``found``; None means unusable content and starts an empty list."""
        self._window.clear()
        self._window_bytes = 0
        self._sequence = first_sequence(controller_epoch)
        if found is None:
            self._since = self._confirmed = self.applied = self._sequence
            return
        self._since = found.since
        self._confirmed = self.applied = found.sequence
        # Keep the predecessor's partitions for standbys that followed the predecessor.
        for batch in found.batches:
            self._append(batch)

    def advance(self, touched: Iterable[TopicPartition]) -> SetData:
        """Return the operation for a multi that writes these partitions."""
        self._sequence += 1
        self._append(JournalBatch(self._sequence, tuple(touched)))
        return SetData(znodes.CONTROLLER_JOURNAL, self._data())

    def forget(self) -> Create:
        """Return the operation that creates the node with an empty list; a standby that lags then reads all states."""
        self._sequence += 1
        self._window.clear()
        self._window_bytes = 0
        self._since = self._sequence
        return Create(znodes.CONTROLLER_JOURNAL, self._data())

    def restart(self) -> SetData:
        """Return the operation that replaces unusable content with an empty list."""
        return SetData(znodes.CONTROLLER_JOURNAL, self.forget().data or b"")

    @property
    def sequence(self) -> int:
        """Sequence of the last returned operation."""
        return self._sequence

    def confirm(self, sequence: int) -> None:
        """Record that the multi with this sequence was applied; its states are about to be cached."""
        self._confirmed = max(self._confirmed, sequence)

    def settle(self) -> None:
        """Mark the written states as cached: standbys may receive their sequence from now on."""
        self.applied = self._confirmed

    def _append(self, batch: JournalBatch) -> None:
        self._window.append(batch)
        self._window_bytes += _size(batch)
        while self._window and self._window_bytes > self._limit_bytes:
            dropped = self._window.popleft()
            self._since = dropped.sequence
            self._window_bytes -= _size(dropped)

    def _data(self) -> bytes:
        return encode_journal(self._sequence, self._since, self._window)


def _size(batch: JournalBatch) -> int:
    topics = {partition.topic for partition in batch.partitions}
    names = sum(len(topic) + _TOPIC_OVERHEAD_BYTES for topic in topics)
    return _BATCH_OVERHEAD_BYTES + names + len(batch.partitions) * _PARTITION_BYTES
