"""Fetched records, and the effects that a `Member` asks its driver for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from paceline.model.identifiers import TopicPartition

StreamId = int
Positions = Mapping[TopicPartition, int]


class Refusal(Enum):
    """Why an acknowledgement has no effect."""

    REVOKED = auto()
    NOT_DELIVERED = auto()
    INVALID_TOKEN = auto()
    EXPIRED = auto()
    UNAVAILABLE = auto()


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one partition."""

    records: Sequence[Any]
    """The records, which the pure modules do not look at."""
    offsets: Sequence[int]
    sizes: Sequence[int]
    """Bytes of each record."""
    next_offset: int
    """Position after the batch."""
    high_watermark: int
    """Exclusive end of the partition when the batch was fetched."""
    size: int = 0
    """Bytes of all records."""

    def split(self, count: int) -> "tuple[Batch, Batch | None]":
        """Return the first ``count`` records and the rest, None when there is no rest."""
        if count >= len(self.records):
            return self, None
        size = sum(self.sizes[:count])
        records, offsets, sizes, end = self.records, self.offsets, self.sizes, self.high_watermark
        head = Batch(records[:count], offsets[:count], sizes[:count], offsets[count], end, size)
        rest = self.size - size
        return head, Batch(records[count:], offsets[count:], sizes[count:], self.next_offset, end, rest)


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send records to a stream."""

    stream: StreamId
    topic_partition: TopicPartition
    batch: Batch


@dataclass(frozen=True, slots=True)
class Assigned:
    """Tell a stream that it receives a partition, from this position if it is known."""

    stream: StreamId
    topic_partition: TopicPartition
    position: int | None


@dataclass(frozen=True, slots=True)
class Revoked:
    """Tell a stream that it receives no more records of a partition."""

    stream: StreamId
    topic_partition: TopicPartition
    acknowledged: int | None
    within_ms: int
    """Time for acknowledgements of delivered records; 0 when they are refused already."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Tell a stream the committed position of a partition."""

    stream: StreamId
    topic_partition: TopicPartition
    position: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Tell a stream that an acknowledgement has no effect."""

    stream: StreamId
    topic_partition: TopicPartition
    position: int
    reason: Refusal
    message: str


@dataclass(frozen=True, slots=True)
class Seek:
    """Read a partition again from a position; `Member.fetched` expects the epoch with the records after the seek."""

    topic_partition: TopicPartition
    position: int
    epoch: int
    look_up_committed: bool = False
    """Begin at the committed position if it is higher: another gateway may have committed on behalf of a lease."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop or continue fetching a partition."""

    topic_partition: TopicPartition
    paused: bool


Effect = Deliver | Assigned | Revoked | Committed | Refused | Seek | Pause
