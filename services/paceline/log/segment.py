"""One segment: a file of batches, its offset index and its time index.

Source: docs/protocol/log-format.md#partition-files and #recovery. `batch_file.py` has the layout of the batches.
"""

from collections.abc import Callable, Iterator
from itertools import chain

from paceline.log.batch_file import BatchFile, BatchPosition, cut_whole, last_before
from paceline.log.files import Files, join
from paceline.log.offset_index import OffsetIndex
from paceline.log.record_batch import (
    MAX_INT32,
    MAX_INT64,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    check_crc,
    decode_batch,
)
from paceline.log.segment_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from paceline.log.time_index import TimeIndex, TimestampOffset
from paceline.model.errors import CorruptMessageError

_REMEMBERED_POSITIONS = 32


def pairs_of(headers: Iterator[BatchHeader]) -> Iterator[tuple[BatchHeader, BatchHeader | None]]:
    """Yield each header with the one that follows."""
    one = next(headers, None)
    while one is not None:
        following = next(headers, None)
        yield one, following
        one = following


class Segment(BatchFile):
    """Batches from ``base_offset`` on. One owner appends; reads may come from other threads."""

    __slots__ = (
        "_bytes_since_index_entry",
        "_directory",
        "_first_max_timestamp",
        "_index_interval_bytes",
        "_largest",
        "_positions",
        "_suffix",
        "base_offset",
        "created_ms",
        "ended_in_an_append",
        "offset_index",
        "time_index",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        max_index_bytes: int,
        suffix: str = "",
    ) -> None:
        """``suffix`` follows the names of all files: ``.cleaned`` while compaction writes them."""
        super().__init__(files, join(directory, file_name(base_offset, LOG_SUFFIX) + suffix))
        self._directory = directory
        self._suffix = suffix
        self.base_offset = base_offset
        self.offset_index = OffsetIndex(
            files, join(directory, file_name(base_offset, INDEX_SUFFIX) + suffix), base_offset, max_index_bytes
        )
        self.time_index = TimeIndex(
            files, join(directory, file_name(base_offset, TIME_INDEX_SUFFIX) + suffix), base_offset, max_index_bytes
        )
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_index_entry = 0
        self._largest: TimestampOffset | None = TimestampOffset(NO_TIMESTAMP, base_offset)
        self._first_max_timestamp: int | None = None
        self._positions: dict[int, int] = {}
        self.ended_in_an_append = False
        """Whether all that recovery cut was the beginning of one batch."""
        self.created_ms: int | None = None
        """Wall clock of the first append in this process that knew it."""

    def set_index_limits(self, index_interval_bytes: int, max_index_bytes: int) -> None:
        """Change how dense the index entries are and how many there may be; for a segment without batches."""
        self._index_interval_bytes = index_interval_bytes
        self.offset_index.set_max_bytes(max_index_bytes)
        self.time_index.set_max_bytes(max_index_bytes)

    def start_new(self) -> None:
        """Begin as an empty segment without files; the first append makes them."""
        self.offset_index.start_new()
        self.time_index.start_new()

    def open(self) -> None:
        """Begin with the files found on disk.

        Raises:
            OSError: storage failed.
        """
        self.size = self._files.size(self.log_path)
        self.offset_index.open()
        self.time_index.open()
        self._largest = None
        self._first_max_timestamp = None

    # -- appending ---------------------------------------------------------------------------------------------

    def append(self, data: Buffer) -> None:
        """Write whole batches at the end in one go; `note` makes them visible, one by one.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file is not what it was; nothing is written.
        """
        if self._largest is None:
            # `note` needs it. Batches that were written and not noted would shift all that follow.
            self._largest = self._find_largest()
        super().append(data)

    def note(
        self, size: int, first_offset: int, last_offset: int, max_timestamp: int, max_timestamp_offset: int
    ) -> None:
        """Make one batch visible that is in the file at ``self.size``, with its index entries.

        Raises:
            OSError: an index could not be written.
        """
        position = self.size
        if position == 0:
            self._first_max_timestamp = max_timestamp
        largest = self.largest
        if max_timestamp > largest.timestamp:
            self._largest = largest = TimestampOffset(max_timestamp, max_timestamp_offset)
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(largest.timestamp, largest.offset)
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size
        self.size = position + size
        positions = self._positions
        if len(positions) >= _REMEMBERED_POSITIONS:
            positions.clear()
        positions[first_offset] = position

    def write_indexes(self) -> None:
        """Write buffered index entries to the files.

        Raises:
            OSError: storage failed.
        """
        self.offset_index.write_pending()
        self.time_index.write_pending()

    def activate(self) -> None:
        """Prepare for appends: keep the indexes in memory, rebuilt first when they are not what they should be.

        Raises:
            OSError: storage failed.
            CorruptMessageError: what stands in the file is no batch.
        """
        if not self._indexes_are_sound():
            self.rebuild_indexes()
        self.load_indexes()

    def load_indexes(self) -> None:
        """Keep the indexes in memory as they are.

        Raises:
            OSError: storage failed.
        """
        self.offset_index.load()
        self.time_index.load()

    def rebuild_indexes(self) -> None:
        """Build both indexes again from the batches.

        Raises:
            OSError: storage failed.
            CorruptMessageError: what stands in the file is no batch.
        """
        headers = [found.header for found in self.headers(0)]
        self.offset_index.start_empty()
        self.time_index.start_empty()
        self._reset_counters()
        for header in headers:
            self.note(header.size, header.base_offset, header.last_offset, header.max_timestamp, header.last_offset)
        self.seal()
        self._bytes_since_index_entry = 0

    def _indexes_are_sound(self) -> bool:
        """Whether the last entries lead to batches that fit them; an append goes on from there."""
        if self.offset_index.damaged or self.time_index.damaged:
            return False
        last, last_time = self.offset_index.last, self.time_index.last
        if last is not None:
            first = next(self._headers_for(MAX_INT64), None)
            if first is None or last.position <= 0 or first.position != last.position:
                return False
        return last_time is None or (last_time.timestamp >= 0 and self._holds(last_time))

    def seal(self) -> None:
        """Finish the indexes as at a roll or close: the final maximum timestamp, everything written to the files.

        Raises:
            OSError: storage failed.
        """
        if self.size:
            self.time_index.load()
            largest = self.largest
            self.time_index.append(largest.timestamp, largest.offset)
        if not self._files.exists(self.log_path):
            self._files.create(self.log_path)
        self.write_indexes()

    def release(self) -> None:
        """Stop keeping the indexes in memory; the segment was sealed."""
        self.offset_index.unload()
        self.time_index.unload()

    # -- looking things up -------------------------------------------------------------------------------------

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp and where it was reached, (-1, base offset) when there is none.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file is not what it was.
        """
        if self._largest is None:
            self._largest = self._find_largest()
        return self._largest

    @property
    def newest_ms(self) -> int:
        """The largest timestamp, or when the file was last written where no record has one, in wall clock.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file is not what it was.
        """
        timestamp = self.largest.timestamp
        return timestamp if timestamp != NO_TIMESTAMP or not self.size else self._files.modified_ms(self.log_path)

    @property
    def first_max_timestamp(self) -> int:
        """The maximum timestamp of the first batch, -1 when there is none: where rolling by time counts from."""
        if self._first_max_timestamp is None:
            first = next(self.headers(0), None)
            self._first_max_timestamp = first.header.max_timestamp if first is not None else NO_TIMESTAMP
        return self._first_max_timestamp

    def locate(self, offset: int) -> BatchPosition | None:
        """Return the first batch whose last offset is not below ``offset``, ``None`` past the end.

        Raises:
            OSError: storage failed.
            CorruptMessageError: what stands in the file is no batch.
        """
        known = self._positions.get(offset)
        for found in self.headers(known) if known is not None else self._headers_for(offset):
            if found.header.last_offset >= offset:
                return found
        return None

    def _locate_checked(self, offset: int) -> BatchPosition | None:
        """`locate`, where a batch that begins elsewhere, or none, is believed only if nothing in front is wrong.

        A base offset that has become too small, which no checksum covers, hides its batch from `locate`: what follows
        looks like the end of a gap. So does a last offset delta; that one has a checksum.

        Raises:
            OSError: storage failed.
            CorruptMessageError: what stands in the file is no batch, or hides one.
        """
        found = self.locate(offset)
        if found is not None and found.header.base_offset == offset:
            return found
        # From the index entry in front of the one for ``offset``, so that the batch before is not the first one seen.
        headers = self._headers_for(self.offset_index.lookup(offset).offset - 1)
        before = last_before(headers, self.size if found is None else found.position, self.base_offset)
        if before is not None and (found is None or found.header.base_offset > offset):
            check_crc(self._files.read_at(self.log_path, before.position, before.header.size), 0, before.header)
        return found

    def _check_next(self, found: BatchPosition) -> None:
        """A batch whose offset has become too large passes for one that may be reached only later.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the batch behind it begins below its end; no checksum covers base offsets.
        """
        position, header = found
        following = self.next_base_offset(position, b"", header.size)
        if following <= header.last_offset:
            raise CorruptMessageError(
                f"the batch at {position} of {self.log_path} reaches {header.last_offset}, beyond {following}"
            )

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        at_least_one: bool,
        epoch_of: Callable[[int], int | None] = lambda _offset: None,
    ) -> bytes | None:
        """Return whole batches from the one that holds ``offset``, none that reaches ``limit_offset``.

        ``None`` means that the segment has nothing at or above ``offset``. ``epoch_of`` is what the leader epochs of
        the log say of an offset; no checksum covers those of the batches.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file or index is not what it was.
        """
        positions = self._positions  # a truncation meanwhile replaces the dict, so nothing stale can enter the new one
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
            end, following, last = cut_whole(data, limit_offset, epoch_of)
            if self.next_base_offset(position, data, end) < following:
                # One of the two has a wrong offset, which no checksum covers.
                end, following = last, -1
        except CorruptMessageError as error:
            raise CorruptMessageError(f"{self.log_path} from byte {position}: {error}") from error
        if end == 0:
            raise CorruptMessageError(f"the batch at {position} of {self.log_path} cannot be read")
        if len(positions) >= _REMEMBERED_POSITIONS:
            positions.clear()
        if following >= 0:
            positions[following] = position + end
        return data if end == len(data) else data[:end]

    def find_timestamp(self, timestamp: int, from_offset: int) -> TimestampOffset | None:
        """Return the first record with a timestamp not below ``timestamp`` and an offset not below ``from_offset``.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file is not what it was.
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
        """Return the last offset of the last batch plus one, the base offset when empty, by scanning the tail.

        With ``check_last`` the last batch's checksum is checked: it says where the log ends.

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
        """Yield the batches from where the index leads for ``offset``, from the start when its entry is wrong.

        An entry is right when it leads to a batch that ends at or before the entry's offset. So a damaged index
        costs time and never an answer.
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
        """Whether the batch at a time index entry's offset has the entry's timestamp as its largest."""
        if entry.timestamp < 0:
            return True
        found = self.locate(entry.offset)
        return found is not None and found.header.max_timestamp == entry.timestamp

    # -- recovery and truncation -------------------------------------------------------------------------------

    def recover(self, accept: Callable[[BatchHeader, bool], bool] = lambda _header, _is_last: True) -> int:
        """Check every batch, rebuild both indexes, cut the file at the first bad one; return the bytes removed.

        ``accept`` sees the header of each sound batch, and whether it is the last one, and may still refuse it.

        Raises:
            OSError: storage failed.
        """
        on_disk = self._files.size(self.log_path)
        self.offset_index.start_empty()
        self.time_index.start_empty()
        self._reset_counters()
        next_offset = self.base_offset
        for header, following in pairs_of(self.sound_batches(on_disk)):
            if header.base_offset < next_offset or header.last_offset - self.base_offset > MAX_INT32:
                break
            if following is not None and next_offset <= following.base_offset <= header.last_offset:
                # No checksum covers base offsets. The next batch would fit here, and not behind this one.
                break
            if not accept(header, following is None):
                break
            next_offset = header.last_offset + 1
            self.note(header.size, header.base_offset, header.last_offset, header.max_timestamp, header.last_offset)
        removed = on_disk - self.size
        self.ended_in_an_append = removed > 0 and self.is_interrupted_append(on_disk, next_offset)
        if removed:
            self._files.truncate(self.log_path, self.size)
            # There may be nothing left to flush; after a clean stop it must not come back.
            self._files.sync(self.log_path)
        self.seal()
        self._bytes_since_index_entry = 0
        return removed

    def truncate_to(self, offset: int) -> int:
        """Cut at the first batch whose last offset is not below ``offset``; return the bytes removed.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file or index is not what it was.
        """
        found = self._locate_checked(offset)
        if found is not None:
            self._check_next(found)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        removed = 0
        if found is not None:
            removed = self.size - found.position
            self._files.truncate(self.log_path, found.position)
            self.size = found.position
        self._positions = {}
        self._bytes_since_index_entry = 0
        self._largest = None
        if self.size == 0:
            self._first_max_timestamp = None
            self.created_ms = None
        return removed

    # -- files -------------------------------------------------------------------------------------------------

    def paths(self) -> list[str]:
        """Paths of the log file and its indexes."""
        return [self.log_path, self.offset_index.path, self.time_index.path]

    @property
    def txn_index_path(self) -> str:
        """Path of the transaction index, which exists only when needed."""
        return join(self._directory, file_name(self.base_offset, TXN_INDEX_SUFFIX) + self._suffix)

    def change_suffix(self, suffix: str, *, log_first: bool) -> None:
        """Rename all files; the log file first or last, for the load decides by its name.

        Raises:
            OSError: storage failed.
        """
        base = join(self._directory, file_name(self.base_offset, ""))
        if log_first:
            self._rename_log(base + LOG_SUFFIX + suffix)
        if self._files.exists(self.txn_index_path):
            self._files.rename(self.txn_index_path, base + TXN_INDEX_SUFFIX + suffix)
        self.offset_index.rename(base + INDEX_SUFFIX + suffix)
        self.time_index.rename(base + TIME_INDEX_SUFFIX + suffix)
        if not log_first:
            self._rename_log(base + LOG_SUFFIX + suffix)
        self._suffix = suffix

    def _rename_log(self, path: str) -> None:
        self._files.rename(self.log_path, path)
        self.log_path = path

    def rename_deleted(self) -> list[str]:
        """Mark all files of the segment as deleted by their names; return those.

        Raises:
            OSError: storage failed.
        """
        renamed = []
        for path in (*self.paths(), self.txn_index_path):
            if self._files.exists(path):
                self._files.rename(path, path + DELETED_SUFFIX)
                renamed.append(path + DELETED_SUFFIX)
        return renamed

    def remove(self) -> None:
        """Remove all files of the segment, the transaction index included.

        Raises:
            OSError: storage failed.
        """
        for path in (*self.paths(), self.txn_index_path):
            if self._files.exists(path):
                self._files.remove(path)

    def _reset_counters(self) -> None:
        self.size = 0
        self._largest = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._first_max_timestamp = None
        self._bytes_since_index_entry = 0
        self._positions = {}

    def _find_largest(self) -> TimestampOffset:
        """The last time index entry, or a larger timestamp in the batches behind it."""
        nothing = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        largest = self.time_index.last or nothing
        if largest is not nothing and not (largest.timestamp >= 0 and self._holds(largest)):
            largest = nothing
        for found in self._headers_for(largest.offset):
            if found.header.max_timestamp > largest.timestamp:
                largest = TimestampOffset(found.header.max_timestamp, found.header.last_offset)
        return largest
