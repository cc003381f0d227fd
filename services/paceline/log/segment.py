"""One segment: a file of batches, its offset index and its time index.

Source: docs/protocol/log-format.md#partition-files and #recovery. `batch_file.py` has the layout of the batches.
"""

from collections.abc import Callable, Iterator

from paceline.log.files import Files, join
from paceline.log.indexed_batch_file import IndexedBatchFile
from paceline.log.offset_index import OffsetIndex
from paceline.log.record_batch import MAX_INT32, MAX_INT64, NO_TIMESTAMP, BatchHeader, Buffer
from paceline.log.segment_names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from paceline.log.time_index import TimeIndex, TimestampOffset


def pairs_of(headers: Iterator[BatchHeader]) -> Iterator[tuple[BatchHeader, BatchHeader | None]]:
    """Yield each header with the one that follows."""
    one = next(headers, None)
    while one is not None:
        following = next(headers, None)
        yield one, following
        one = following


class Segment(IndexedBatchFile):
    """Part of a log from ``base_offset`` on. One owner appends; reads may come from other threads."""

    __slots__ = (
        "_bytes_since_index_entry",
        "_directory",
        "_first_max_timestamp",
        "_index_interval_bytes",
        "_largest",
        "_suffix",
        "created_ms",
        "ended_in_an_append",
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
        name = join(directory, file_name(base_offset, ""))
        super().__init__(
            files,
            name + LOG_SUFFIX + suffix,
            base_offset,
            OffsetIndex(files, name + INDEX_SUFFIX + suffix, base_offset, max_index_bytes),
            TimeIndex(files, name + TIME_INDEX_SUFFIX + suffix, base_offset, max_index_bytes),
        )
        self._directory = directory
        self._suffix = suffix
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_index_entry = 0
        self._largest: TimestampOffset | None = TimestampOffset(NO_TIMESTAMP, base_offset)
        self._first_max_timestamp: int | None = None
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
            CorruptMessageError: the file has changed; nothing is written.
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
        self._remember(first_offset, position)

    def write_indexes(self) -> None:
        """Write buffered index entries to the files.

        Raises:
            OSError: storage failed.
        """
        self.offset_index.write_pending()
        self.time_index.write_pending()

    def activate(self) -> None:
        """Prepare for appends: keep the indexes in memory, rebuilt first when they are inconsistent.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in the file are not a batch.
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
            CorruptMessageError: bytes in the file are not a batch.
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
        """Whether the last entries lead to batches that match them; appends continue behind those."""
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

    # -- timestamps -------------------------------------------------------------------------------------

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp and where it was reached, (-1, base offset) when there is none.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file has changed.
        """
        if self._largest is None:
            self._largest = self._find_largest()
        return self._largest

    @property
    def newest_ms(self) -> int:
        """The largest timestamp, or when the file was last written where no record has one, in wall clock.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file has changed.
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
            CorruptMessageError: the file or index has changed.
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
