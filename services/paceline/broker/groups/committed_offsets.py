"""The committed offsets of a group, and the memory that they take.

Source: docs/protocol/groups.md#limits-of-a-group.
"""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Final

from paceline.broker.groups.records import OffsetValue
from paceline.model.identifiers import TopicPartition

_NUMBERS_BYTES: Final = 32
"""Counted for the numbers of an offset."""


@dataclass(slots=True, eq=False)
class CommittedOffset:
    """A committed offset and the log offset of its record; of two records for a partition, the later record counts."""

    value: OffsetValue
    record_offset: int


class CommittedOffsets(MutableMapping[TopicPartition, CommittedOffset]):
    """Committed offsets by partition; ``size_bytes`` is the sum of their `size_of`."""

    __slots__ = ("_committed", "size_bytes")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self.size_bytes = 0

    def __getitem__(self, partition: TopicPartition) -> CommittedOffset:
        return self._committed[partition]

    def __setitem__(self, partition: TopicPartition, committed: CommittedOffset) -> None:
        self.size_bytes += self.growth(partition, committed.value)
        self._committed[partition] = committed

    def __delitem__(self, partition: TopicPartition) -> None:
        self.size_bytes -= size_of(partition, self._committed.pop(partition).value)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._committed)

    def __len__(self) -> int:
        return len(self._committed)

    def growth(self, partition: TopicPartition, value: OffsetValue) -> int:
        """Return by how many bytes a commit of this value changes ``size_bytes``."""
        known = self._committed.get(partition)
        return size_of(partition, value) - (0 if known is None else size_of(partition, known.value))


def size_of(partition: TopicPartition, value: OffsetValue) -> int:
    """Return the bytes that count for a committed offset: topic name, metadata text, and 32 for its numbers."""
    return len(partition.topic) + len(value.metadata.encode()) + _NUMBERS_BYTES
