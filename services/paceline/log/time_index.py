"""The time index of a segment: 12-byte entries (timestamp, relative offset).

Source: docs/protocol/log-format.md#time-index.
"""

import struct
from typing import NamedTuple

from paceline.log.index_file import IndexFile


class TimestampOffset(NamedTuple):
    """``timestamp``, in milliseconds, is the largest one of the segment up to and including ``offset``."""

    timestamp: int
    offset: int


class TimeIndex(IndexFile[TimestampOffset]):
    """Sparse map from the largest timestamp so far to the offset of its record."""

    layout = struct.Struct(">qi")

    @property
    def is_full(self) -> bool:
        """Whether only one slot is left, reserved for the entry that `Segment.seal` adds."""
        return self._count >= self._max_entries - 1

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry if ``timestamp`` is above that of the last entry.

        Raises:
            OSError: storage failed.
        """
        last = self.last
        if timestamp > (last.timestamp if last is not None else -1):
            self._add(TimestampOffset(timestamp, offset), self.layout.pack(timestamp, offset - self._base_offset))

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Return the last entry with a timestamp not above ``timestamp``, or (-1, base offset) if there is none.

        Raises:
            OSError: storage failed.
        """
        count = self._position_after(0, timestamp)
        return self.entry(count - 1) if count else TimestampOffset(-1, self._base_offset)

    def truncate_to(self, offset: int) -> None:
        """Remove the entries with an offset at or above ``offset``.

        Raises:
            OSError: storage failed.
        """
        self._keep(self._position_after(1, offset - 1))

    def _decode(self, pair: tuple[int, ...]) -> TimestampOffset:
        return TimestampOffset(pair[0], self._base_offset + pair[1])
