"""The segments of one log, ascending by base offset: the last one is active, and there always is one.

Source: docs/protocol/log-format.md#reading-a-log, #retention and #truncating-a-log.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from paceline.log.files import Files
from paceline.log.retention import SegmentExtent
from paceline.log.segment import Segment
from paceline.log.time_index import TimestampOffset
from paceline.model.errors import CorruptMessageError


class SegmentList:
    """Segments in order. One owner changes the list; reads may come from other threads."""

    __slots__ = ("_directory", "_files", "_segments", "bases")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._segments: list[Segment] = []
        self.bases: list[int] = []
        """Base offsets of the segments; only `SegmentList` changes them."""

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size for segment in self._segments)

    def since(self, offset: int) -> list[Segment]:
        """Return the segment that holds ``offset`` and those behind it; all when every one is."""
        return self._segments[max(bisect_right(self.bases, offset) - 1, 0) :]

    def extents(self, log_end_offset: int | None) -> Iterator[SegmentExtent]:
        """Yield the facts of each segment for retention, oldest first; of the active segment only if the log end is
        given.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in a file are not a batch.
        """
        for index, segment in enumerate(self._segments):
            if segment is not self.active:
                yield SegmentExtent(self.bases[index + 1], segment.size, segment.newest_ms)
            elif log_end_offset is not None and segment.size:
                yield SegmentExtent(log_end_offset, segment.size, segment.newest_ms)

    def add(self, segment: Segment) -> None:
        """Make ``segment`` the active one; its base offset is beyond those of the others."""
        self._segments.append(segment)
        self.bases.append(segment.base_offset)

    def pop_below(self, offset: int) -> Segment | None:
        """Take out the first segment when all of it lies below ``offset`` and it is not the active one."""
        if len(self._segments) < 2 or self.bases[1] > offset:
            return None
        self.bases.pop(0)
        return self._segments.pop(0)

    def replace(self, sources: Sequence[Segment], segment: Segment) -> None:
        """Put ``segment`` in the place of ``sources``, which follow each other and begin where it begins."""
        first = self._segments.index(sources[0])
        self._segments[first : first + len(sources)] = [segment]
        self.bases[first : first + len(sources)] = [segment.base_offset]

    def remove_above(self, offset: int) -> None:
        """Remove the segments that begin above ``offset``, but for the first one, durably.

        Raises:
            OSError: storage failed.
        """
        self._remove_while(lambda: len(self._segments) > 1 and self.bases[-1] > offset)

    def remove_all(self) -> None:
        """Remove every segment, durably; the owner adds a new one at once.

        Raises:
            OSError: storage failed.
        """
        self._remove_while(lambda: bool(self._segments))

    def _remove_while(self, condition: Callable[[], bool]) -> None:
        """Remove segments from the end, durably: one that came back after a power loss could not be told from ours."""
        removed = False
        while condition():
            removed = removed or self._segments[-1].size > 0
            self._segments[-1].remove()
            self._segments.pop()
            self.bases.pop()
        if removed:
            self._files.sync_directory(self._directory)

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit: int,
        at_least_one: bool,
        epoch_of: Callable[[int], int | None],
    ) -> bytes:
        """Return whole batches of one segment from the one that holds ``offset``, none that reaches ``limit``.

        See `Segment.read` for the rest.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the bytes at ``offset`` differ from those written.
        """
        for index in range(max(bisect_right(self.bases, offset) - 1, 0), len(self._segments)):
            segment = self._segments[index]
            if segment.base_offset >= limit:
                break
            next_base = self.bases[index + 1] if index + 1 < len(self.bases) else None
            end = limit if next_base is None else min(limit, next_base)
            data = segment.read(offset, max_bytes, end, at_least_one, epoch_of)
            if data is not None:
                return data
        return b""

    def check_end(self, offset: int, limit: int, log_end_offset: int) -> None:
        """Nothing was found below ``limit``: tell a batch that reaches beyond it from one with a wrong offset.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the batch ends behind its segment or the log.
        """
        for index in range(max(bisect_right(self.bases, offset) - 1, 0), len(self._segments)):
            segment = self._segments[index]
            if segment.base_offset >= limit:
                break
            found = segment.locate(offset)
            if found is not None:
                end = self.bases[index + 1] if index + 1 < len(self.bases) else log_end_offset
                if found.header.last_offset >= end:
                    raise CorruptMessageError(f"the batch at {found.position} of {segment.log_path} ends behind {end}")
                break

    def find_timestamp(self, timestamp_ms: int, from_offset: int, limit_offset: int) -> TimestampOffset | None:
        """Return the first record between the two offsets with a timestamp not below ``timestamp_ms``.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in a file are not a batch.
        """
        for segment in list(self._segments):
            if segment.base_offset >= limit_offset:
                break
            if segment.largest.timestamp >= timestamp_ms:
                found = segment.find_timestamp(timestamp_ms, from_offset)
                if found is not None:
                    return found if found.offset < limit_offset else None
        return None
