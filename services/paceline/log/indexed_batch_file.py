"""Find batches of a file by offset with an offset index, and by timestamp with a time index.

A damaged index costs time but never changes a result: an index entry is used only if it points to a batch that fits it.
Source: docs/protocol/log-format.md#reading-a-log, #offset-index and #time-index.
"""

from collections.abc import Callable, Iterator
from itertools import chain

from paceline.log.batch_file import BatchFile, BatchPosition, cut_whole, last_before
from paceline.log.files import Files
from paceline.log.offset_index import OffsetIndex
from paceline.log.record_batch import MAX_INT64, check_crc, decode_batch
from paceline.log.time_index import TimeIndex, TimestampOffset
from paceline.model.errors import CorruptMessageError

_REMEMBERED_POSITIONS = 32


def remember(positions: dict[int, int], offset: int, position: int) -> None:
    """Add the position of the batch that holds ``offset``; a full dict is cleared first."""
    if len(positions) >= _REMEMBERED_POSITIONS:
        positions.clear()
    positions[offset] = position


class IndexedBatchFile(BatchFile):
    """Batches from ``base_offset`` on, with their indexes. One owner appends; reads may come from other threads."""

    __slots__ = ("_positions", "base_offset", "offset_index", "time_index")

    def __init__(
        self, files: Files, log_path: str, base_offset: int, offset_index: OffsetIndex, time_index: TimeIndex
    ) -> None:
        super().__init__(files, log_path)
        self.base_offset = base_offset
        self.offset_index = offset_index
        self.time_index = time_index
        self._positions: dict[int, int] = {}
        """Positions of some batches by an offset, because most reads begin where the previous read ended."""

    def locate(self, offset: int) -> BatchPosition | None:
        """Return the first batch whose last offset is at least ``offset``, ``None`` if there is no such batch.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in the file are not a batch.
        """
        known = self._positions.get(offset)
        for found in self.headers(known) if known is not None else self._headers_for(offset):
            if found.header.last_offset >= offset:
                return found
        return None

    def position_of(self, offset: int) -> int:
        """Return the position of the batch that `locate` finds, the size of the file if there is no such batch.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in the file are not a batch.
        """
        positions = self._positions
        position = positions.get(offset)
        if position is not None:
            return position
        found = self.locate(offset)
        if found is None:
            return self.size
        remember(positions, offset, found.position)
        return found.position

    def _locate_checked(self, offset: int) -> BatchPosition | None:
        """Call `locate`; unless it finds a batch with base offset ``offset``, check the batches before the result.

        A damaged base offset that is too small hides its batch from `locate`, and the next batch then looks as if it
        followed a gap; no checksum covers base offsets. A damaged last offset delta has the same effect, but the
        checksum covers it.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in the file are not a batch, or a damaged batch may hide ``offset``.
        """
        found = self.locate(offset)
        if found is not None and found.header.base_offset == offset:
            return found
        # Start one index entry earlier than the entry for ``offset``, to check more than the preceding batch.
        headers = self._headers_for(self.offset_index.lookup(offset).offset - 1)
        before = last_before(headers, self.size if found is None else found.position, self.base_offset)
        if before is not None and (found is None or found.header.base_offset > offset):
            check_crc(self._files.read_at(self.log_path, before.position, before.header.size), 0, before.header)
        return found

    def _check_next(self, found: BatchPosition) -> None:
        """Check that the batch after ``found`` begins above the last offset of ``found``.

        Otherwise the base offset of ``found`` may be damaged and too large; no checksum covers base offsets.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the next batch begins at or below the last offset of ``found``.
        """
        position, header = found
        following = self.next_base_offset(position, b"", header.size)
        if following <= header.last_offset:
            raise CorruptMessageError(
                f"the batch at {position} of {self.log_path} has last offset {header.last_offset}, "
                f"which is not below {following}"
            )

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        at_least_one: bool,
        epoch_of: Callable[[int], int | None] = lambda _offset: None,
    ) -> bytes | None:
        """Return whole batches that end below ``limit_offset``, starting with the batch that holds ``offset``.

        Return ``None`` when the segment has no batch at or above ``offset``. ``epoch_of`` returns the log's leader
        epoch at an offset, to check the epochs of the batches, which no checksum covers.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file or index has changed.
        """
        positions = self._positions  # a concurrent truncation replaces the dict, so no stale entry reaches the new dict
        found = self._locate_checked(offset)
        if found is None:
            return None
        position, header = found
        if header.last_offset >= limit_offset:
            return b""
        if header.size > max_bytes:
            if not at_least_one:
                return b""
            max_bytes = header.size
        data = self._files.read_at(self.log_path, position, min(max_bytes, self.size - position))
        try:
            end, following, last = cut_whole(data, limit_offset, epoch_of, position)
            if self.next_base_offset(position, data, end) < following:
                # The last batch read or the batch after it has a damaged base offset, which no checksum covers.
                end, following = last, -1
        except CorruptMessageError as error:
            raise CorruptMessageError(f"{self.log_path} from byte {position}: {error}") from error
        if end == 0:
            raise CorruptMessageError(f"the batch at {position} of {self.log_path} cannot be read")
        if following >= 0:
            remember(positions, following, position + end)
        return data if end == len(data) else data[:end]

    def find_timestamp(self, timestamp: int, from_offset: int) -> TimestampOffset | None:
        """Return the first record with a timestamp of at least ``timestamp`` and an offset of at least ``from_offset``.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file has changed.
        """
        entry = self.time_index.lookup(timestamp)
        start = max(entry.offset if self._holds(entry) else self.base_offset, from_offset)
        following = self.base_offset
        for found in self._headers_for(start):
            header = found.header
            if header.base_offset < following:
                raise CorruptMessageError(f"the batch at {found.position} of {self.log_path} begins below {following}")
            following = header.last_offset + 1
            if header.max_timestamp < timestamp or header.last_offset < from_offset:
                continue
            batch = self._files.read_at(self.log_path, found.position, header.size)
            check_crc(batch, 0, header)
            self._check_next(found)
            for record in decode_batch(batch):
                if record.timestamp >= timestamp and record.offset >= from_offset:
                    return TimestampOffset(record.timestamp, record.offset)
        return None

    def end_offset(self, check_last: bool = False) -> int:
        """Scan the tail and return the last offset of the last batch plus one, or the base offset of an empty file.

        With ``check_last`` the checksum of the last batch is checked, because that batch determines the log end.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the tail is damaged.
        """
        last: BatchPosition | None = None
        for found in self._headers_for(MAX_INT64):
            last = found
        if last is None:
            return self.base_offset
        if check_last:
            check_crc(self._files.read_at(self.log_path, last.position, last.header.size), 0, last.header)
        return last.header.last_offset + 1

    def _headers_for(self, offset: int) -> Iterator[BatchPosition]:
        """Yield batches from the position of the index entry for ``offset``, or from the start if the entry is wrong.

        An entry is right if a batch begins at its position and the last offset of the batch is at most its offset.
        """
        entry = self.offset_index.lookup(offset)
        if 0 < entry.position < self.size:
            headers = self.headers(entry.position)
            try:
                first = next(headers)
            except CorruptMessageError:
                return self.headers(0)
            if self.base_offset <= first.header.base_offset and first.header.last_offset <= entry.offset:
                return chain((first,), headers)
        return self.headers(0)

    def _holds(self, entry: TimestampOffset) -> bool:
        """Whether the timestamp of a time index entry is the largest timestamp of the batch at the entry's offset.

        An entry without a timestamp must point to the base offset; otherwise the index is damaged.
        """
        if entry.timestamp < 0:
            return entry.offset == self.base_offset
        found = self.locate(entry.offset)
        return found is not None and found.header.max_timestamp == entry.timestamp
