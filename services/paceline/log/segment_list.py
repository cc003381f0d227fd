"""The segments of one log in ascending order of base offset; a log has at least one, and the last is active.

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
    """Segments in order. Only the log's owner uses the list; other threads may use a `Segment` that they were given."""

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
        """The segment that receives appends."""
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size for segment in self._segments)

    def since(self, offset: int) -> list[Segment]:
        """Return the segment that holds ``offset`` and all later segments; all if the first begins above ``offset``."""
        return self._segments[max(bisect_right(self.bases, offset) - 1, 0) :]

    def holding(self, offset: int) -> tuple[Segment, int | None]:
        """Return the segment that holds ``offset``, and the base offset of the next segment, None for the last one."""
        index = max(bisect_right(self.bases, offset) - 1, 0)
        return self._segments[index], self.bases[index + 1] if index + 1 < len(self.bases) else None

    def extents(self, log_end_offset: int | None) -> Iterator[SegmentExtent]:
        """Yield the extent of each segment, oldest first; skip the active one if empty or without ``log_end_offset``.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in a file are not a batch.
        """
        for index, segment in enumerate(self._segments):
            if segment is not self.active:
                yield SegmentExtent(self.bases[index + 1], segment.size, segment.newest_ms)
            elif log_end_offset is not None and segment.size:
                yield SegmentExtent(log_end_offset, segment.size, segment.newest_ms)

    def moved_to(self, directory: str) -> None:
        """Use the files of all segments in their renamed directory."""
        self._directory = directory
        for segment in self._segments:
            segment.moved_to(directory)

    def add(self, segment: Segment) -> None:
        """Append ``segment``, which becomes active; its base offset must be the largest."""
        self._segments.append(segment)
        self.bases.append(segment.base_offset)

    def pop_below(self, offset: int) -> Segment | None:
        """Remove the first segment from the list and return it, if it ends below ``offset`` and is not active."""
        if len(self._segments) < 2 or self.bases[1] > offset:
            return None
        self.bases.pop(0)
        return self._segments.pop(0)

    def replace(self, sources: Sequence[Segment], segment: Segment) -> None:
        """Replace ``sources``, which are adjacent and begin at the same base offset, by ``segment``."""
        first = self._segments.index(sources[0])
        self._segments[first : first + len(sources)] = [segment]
        self.bases[first : first + len(sources)] = [segment.base_offset]

    def remove_active(self) -> None:
        """Remove the active segment; the segment before becomes active, or the caller must add another.

        Raises:
            OSError: storage failed.
        """
        self.active.remove()
        self._segments.pop()
        self.bases.pop()

    def remove_above(self, offset: int) -> None:
        """Remove durably all segments that begin above ``offset``, except the first segment.

        Raises:
            OSError: storage failed.
        """
        self._remove_while(lambda: len(self._segments) > 1 and self.bases[-1] > offset)

    def remove_all(self) -> None:
        """Remove every segment durably; the caller must add a new one.

        Raises:
            OSError: storage failed.
        """
        self._remove_while(lambda: bool(self._segments))

    def _remove_while(self, condition: Callable[[], bool]) -> None:
        """Remove segments from the end, then sync: a file restored by a power loss would look like part of the log."""
        removed = False
        while condition():
            removed = removed or self._segments[-1].size > 0
            self.remove_active()
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
        """Return whole batches of one segment that end below ``limit``, starting with the batch that holds ``offset``.

        See `Segment.read` for the other parameters.

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
        """Check the batch at ``offset``, after `read` found no batch below ``limit``.

        An intact batch may extend beyond ``limit``, but not beyond its segment or the log; otherwise its offsets are
        damaged.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the batch extends beyond its segment or the log.
        """
        for index in range(max(bisect_right(self.bases, offset) - 1, 0), len(self._segments)):
            segment = self._segments[index]
            if segment.base_offset >= limit:
                break
            found = segment.locate(offset)
            if found is not None:
                end = self.bases[index + 1] if index + 1 < len(self.bases) else log_end_offset
                if found.header.last_offset >= end:
                    raise CorruptMessageError(
                        f"the batch at {found.position} of {segment.log_path} has last offset "
                        f"{found.header.last_offset}, but its segment ends at offset {end}"
                    )
                break

    def find_timestamp(self, timestamp_ms: int, from_offset: int, limit_offset: int) -> TimestampOffset | None:
        """Return the first record between the two offsets with a timestamp of at least ``timestamp_ms``, else ``None``.

        ``from_offset`` is inclusive, ``limit_offset`` exclusive.

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
