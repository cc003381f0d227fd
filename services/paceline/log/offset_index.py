"""The offset index of a segment: 8-byte entries (relative offset, position).

Source: docs/protocol/log-format.md#offset-index.
"""

import struct
from typing import NamedTuple

from paceline.log.index_file import IndexFile


class OffsetPosition(NamedTuple):
    """The batch whose last offset is ``offset`` starts at byte ``position``."""

    offset: int
    position: int


class OffsetIndex(IndexFile[OffsetPosition]):
    """Sparse map from the *last* offset of a batch to the position of its *start*."""

    layout = struct.Struct(">ii")

    @property
    def is_full(self) -> bool:
        """Whether the index has no room for another entry, so that the segment has to be rolled."""
        return self._count >= self._max_entries

    def append(self, offset: int, position: int) -> None:
        """Add an entry if ``offset`` is above that of the last entry.

        Raises:
            OSError: storage failed.
        """
        last = self.last
        if last is None or offset > last.offset:
            self._add(OffsetPosition(offset, position), self.layout.pack(offset - self._base_offset, position))

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the last entry with an offset not above ``offset``, or the start of the segment if there is none.

        Raises:
            OSError: storage failed.
        """
        count = self._position_after(0, offset)
        return self.entry(count - 1) if count else OffsetPosition(self._base_offset, 0)

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at or above ``offset``.

        Raises:
            OSError: storage failed.
        """
        self._keep(self._position_after(0, offset - 1))

    def _decode(self, pair: tuple[int, ...]) -> OffsetPosition:
        return OffsetPosition(self._base_offset + pair[0], pair[1])
