"""`HeldPartition`: the positions of one partition of a group member, from fetched to delivered to committed.

    committed <= acknowledged <= delivered end <= fetched end

| event | delivered | acknowledged | where the next stream begins |
|---|---|---|---|
| records 0 to 9 are delivered | 10 | none | 0 |
| the caller acknowledges 4 | 10 | 4 | 4 |
| the caller acknowledges 10 | 10 | 10 | 10, without a seek |
"""

from bisect import bisect_left
from collections import deque
from enum import Enum, auto

from paceline.gateway.values import Batch, StreamId
from paceline.model.identifiers import TopicPartition


class Holding(Enum):
    """State of a held partition."""

    IDLE = auto()
    """No stream receives it."""
    OPEN = auto()
    """Its stream receives records."""
    MOVING = auto()
    """Its stream may still acknowledge; afterwards another stream receives the partition."""
    LEAVING = auto()
    """Its stream may still acknowledge; afterwards the member gives the partition back to the group."""


class HeldPartition:
    """A partition that the member owns."""

    def __init__(self, topic_partition: TopicPartition, committed: int | None) -> None:
        self.topic_partition = topic_partition
        self.state = Holding.IDLE
        self.owner: StreamId | None = None
        self.deadline_ms = 0
        """End of the wait for acknowledgements in MOVING and LEAVING, and of a lease."""
        self.leased = False
        """Whether a caller of Pull holds its delivered records."""
        self.acknowledged = committed
        """Next offset to read of the callers, None before the first acknowledgement of a partition without commit."""
        self.committed = committed
        self.committing: int | None = None
        """Position of the commit in flight."""
        self.buffer: deque[Batch] = deque()
        self.buffered_bytes = 0
        self.paused = False
        self.epoch = 0
        """Number of seeks; records that were fetched before the last seek are dropped."""
        self._unacknowledged: deque[Batch] = deque()
        """Delivered batches, without their records."""
        self._delivered_end: int | None = committed
        self._begin: int | None = committed
        """Offset of the first record that was delivered, None before."""

    @property
    def is_settled(self) -> bool:
        """Whether every delivered record is acknowledged."""
        return not self._unacknowledged

    def add(self, batch: Batch) -> None:
        """Keep fetched records until they are delivered."""
        self.buffer.append(batch)
        self.buffered_bytes += batch.size

    def deliver(self, count: int) -> Batch:
        """Take the next ``count`` records of the first buffered batch, and count them as delivered."""
        head, tail = self.buffer.popleft().split(count)
        if tail is not None:
            self.buffer.appendleft(tail)
        self.buffered_bytes -= head.size
        if self._begin is None:
            self._begin = head.offsets[0]
        self._delivered_end = head.next_offset
        self._unacknowledged.append(
            Batch((), head.offsets, head.sizes, head.next_offset, head.high_watermark, head.size)
        )
        return head

    def was_delivered(self, position: int) -> bool:
        """Whether the position is not above the end of the delivered records."""
        return self._delivered_end is not None and 0 <= position <= self._delivered_end

    def acknowledge(self, position: int) -> tuple[int, int]:
        """Record an acknowledgement; return the number and bytes of the records that it covers for the first time."""
        if self.acknowledged is not None and position <= self.acknowledged:
            return 0, 0
        self.acknowledged = position
        count = size = 0
        while self._unacknowledged:
            first = self._unacknowledged[0]
            if first.next_offset <= position:
                self._unacknowledged.popleft()
                count, size = count + len(first.offsets), size + first.size
                continue
            part = bisect_left(first.offsets, position)
            if part:
                cut = sum(first.sizes[:part])
                count, size = count + part, size + cut
                self._unacknowledged[0] = Batch(
                    (), first.offsets[part:], first.sizes[part:], first.next_offset, 0, first.size - cut
                )
            break
        return count, size

    def unacknowledged(self) -> tuple[int, int]:
        """Return the number and bytes of the delivered records whose acknowledgement is missing."""
        return sum(len(each.offsets) for each in self._unacknowledged), sum(each.size for each in self._unacknowledged)

    def restart(self) -> int | None:
        """Forget the delivered records that are not acknowledged, so that they are delivered again.

        Return the position to seek to, None when there is nothing to deliver again.
        """
        if not self._unacknowledged:
            return None
        self._unacknowledged.clear()
        begin = self.acknowledged if self.acknowledged is not None else self._begin
        assert begin is not None  # a record was delivered
        self.drop_buffer()
        self.epoch += 1
        self._delivered_end = begin
        return begin

    def drop_buffer(self) -> None:
        """Drop the fetched records."""
        self.buffer.clear()
        self.buffered_bytes = 0

    def take_commit(self) -> int | None:
        """Return the position to commit, None when there is none or a commit is in flight."""
        if self.committing is not None or self.acknowledged is None or self.acknowledged == self.committed:
            return None
        self.committing = self.acknowledged
        return self.committing

    def final_commit(self) -> int | None:
        """Return the position to commit before the member gives the partition back, whatever is in flight."""
        if self.acknowledged == self.committed:
            return None
        self.committing = self.acknowledged
        return self.committing
