"""One segment: a file of batches, its offset index and its time index.

Source: docs/protocol/log-format.md#partition-files and #recovery. `batch_file.py` reads and writes the file of batches.
"""

from collections.abc import Callable, Iterator

from paceline.log.files import Files, is_no_room, join
from paceline.log.indexed_batch_file import IndexedBatchFile, remember
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
    """Yield each header with the next header, ``None`` after the last."""
    one = next(headers, None)
    while one is not None:
        following = next(headers, None)
        yield one, following
        one = following


class Segment(IndexedBatchFile):
    """Part of a log from ``base_offset`` on. Only its owner appends; reads may run on other threads."""

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
        """``suffix`` is appended to all file names: ``.cleaned`` while compaction writes the segment."""
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
        """Whether recovery removed only the beginning of a single batch, as an interrupted append leaves."""
        self.created_ms: int | None = None
        """Wall-clock time of the first append in this process for which the caller gave the time."""

    def set_index_limits(self, index_interval_bytes: int, max_index_bytes: int) -> None:
        """Set the interval of index entries and the index size, for a segment without batches."""
        self._index_interval_bytes = index_interval_bytes
        self.offset_index.set_max_bytes(max_index_bytes)
        self.time_index.set_max_bytes(max_index_bytes)

    def start_new(self) -> None:
        """Start an empty segment without files; the first append creates them."""
        self.offset_index.start_new()
        self.time_index.start_new()

    def open(self) -> None:
        """Open the existing files.

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
        """Append whole batches with one write; the caller makes each batch visible to readers with `publish_batch`.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file has changed; nothing is written.
        """
        if self._largest is None:
            # Search before the write: a search that failed after the write would make later positions wrong.
            self._largest = self._find_largest()
        super().append(data)

    def publish_batch(
        self, size: int, first_offset: int, last_offset: int, max_timestamp: int, max_timestamp_offset: int
    ) -> None:
        """Make the batch at byte ``self.size`` of the file visible, and add its index entries.

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
        remember(self._positions, first_offset, position)

    def write_indexes(self) -> None:
        """Write buffered index entries to the files.

        Raises:
            OSError: storage failed.
        """
        self.offset_index.write_pending()
        self.time_index.write_pending()

    def activate(self) -> None:
        """Load the indexes into memory for appends; rebuild them first if they are inconsistent.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in the file are not a batch.
        """
        if not self._indexes_are_sound():
            self.rebuild_indexes()
        self.load_indexes()

    def load_indexes(self) -> None:
        """Load the indexes into memory without a check.

        Raises:
            OSError: storage failed.
        """
        self.offset_index.load()
        self.time_index.load()

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the batches.

        Raises:
            OSError: storage failed.
            CorruptMessageError: bytes in the file are not a batch.
        """
        headers = [found.header for found in self.headers(0)]
        self.offset_index.start_empty()
        self.time_index.start_empty()
        self._reset_counters()
        for header in headers:
            self.publish_batch(
                header.size, header.base_offset, header.last_offset, header.max_timestamp, header.last_offset
            )
        self._seal_if_room()
        self._bytes_since_index_entry = 0

    def _indexes_are_sound(self) -> bool:
        """Whether the last entry of each index points to a batch that matches it, so that appends can continue."""
        if self.offset_index.damaged or self.time_index.damaged:
            return False
        last, last_time = self.offset_index.last, self.time_index.last
        if last is not None:
            first = next(self._headers_for(MAX_INT64), None)
            if first is None or last.position <= 0 or first.position != last.position:
                return False
        return last_time is None or (last_time.timestamp >= 0 and self._holds(last_time))

    def seal(self) -> None:
        """Add the last time index entry, create missing files and write the indexes, for a roll or a close.

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

    def _seal_if_room(self) -> None:
        """Call `seal`, but keep rebuilt index entries in memory while the disk has no room for them."""
        try:
            self.seal()
        except OSError as error:
            if not is_no_room(error):
                raise

    def release(self) -> None:
        """Release the indexes in memory, after `seal`."""
        self.offset_index.unload()
        self.time_index.unload()

    # -- timestamps -------------------------------------------------------------------------------------

    @property
    def largest(self) -> TimestampOffset:
        """The largest timestamp and the offset of its record, (-1, base offset) when no record has a timestamp.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file has changed.
        """
        if self._largest is None:
            self._largest = self._find_largest()
        return self._largest

    @property
    def newest_ms(self) -> int:
        """The largest timestamp; the file's modification time if no record has a timestamp, -1 for an empty segment.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the file has changed.
        """
        timestamp = self.largest.timestamp
        return timestamp if timestamp != NO_TIMESTAMP or not self.size else self._files.modified_ms(self.log_path)

    @property
    def first_max_timestamp(self) -> int:
        """The maximum timestamp of the first batch, from which a roll by time counts; -1 without a timestamp."""
        if self._first_max_timestamp is None:
            first = next(self.headers(0), None)
            self._first_max_timestamp = first.header.max_timestamp if first is not None else NO_TIMESTAMP
        return self._first_max_timestamp

    # -- recovery and truncation -------------------------------------------------------------------------------

    def recover(
        self,
        accept: Callable[[BatchHeader, bool], bool] = lambda _header, _is_last: True,
        before_truncation: Callable[[], None] = lambda: None,
    ) -> int:
        """Check every batch, rebuild both indexes, truncate the file at the first bad batch; return the bytes removed.

        ``accept`` receives the header of each sound batch and whether the batch is the last; a batch that it
        refuses counts as bad. ``before_truncation`` is called before bytes are removed.

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
                # The next batch overlaps this batch but fits after the previous batch: the base offset of this batch is
                # wrong, which its checksum does not cover.
                break
            if not accept(header, following is None):
                break
            next_offset = header.last_offset + 1
            self.publish_batch(
                header.size, header.base_offset, header.last_offset, header.max_timestamp, header.last_offset
            )
        removed = on_disk - self.size
        self.ended_in_an_append = removed > 0 and self.is_interrupted_append(on_disk, next_offset)
        if removed:
            before_truncation()
            self._files.truncate(self.log_path, self.size)
            # fsync now: a later flush may find nothing to write, and the bytes must not reappear after a clean stop.
            self._files.sync(self.log_path)
        self._seal_if_room()
        self._bytes_since_index_entry = 0
        return removed

    def truncate_to(self, offset: int) -> int:
        """Truncate the file at the first batch whose last offset is at least ``offset``; return the bytes removed.

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
        """Return the paths of the log file, the offset index and the time index."""
        return [self.log_path, self.offset_index.path, self.time_index.path]

    @property
    def txn_index_path(self) -> str:
        """Path of the transaction index, which exists only after an aborted transaction."""
        return join(self._directory, file_name(self.base_offset, TXN_INDEX_SUFFIX) + self._suffix)

    def change_suffix(self, suffix: str, *, log_first: bool) -> None:
        """Rename all files, the log file first or last: after a crash, the load decides by the name of the log file.

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

    def moved_to(self, directory: str) -> None:
        """Use the files in their renamed directory."""
        self._directory = directory
        name = join(directory, file_name(self.base_offset, ""))
        self.log_path = name + LOG_SUFFIX + self._suffix
        self.offset_index.moved_to(name + INDEX_SUFFIX + self._suffix)
        self.time_index.moved_to(name + TIME_INDEX_SUFFIX + self._suffix)

    def _rename_log(self, path: str) -> None:
        self._files.rename(self.log_path, path)
        self.log_path = path

    def rename_deleted(self) -> list[str]:
        """Add ``.deleted`` to the names of all files of the segment; return the new paths.

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
        """Remove all files of the segment, including the transaction index.

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
        """Return the largest timestamp: that of the last time index entry or of a batch after it."""
        nothing = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        largest = self.time_index.last or nothing
        if largest is not nothing and not (largest.timestamp >= 0 and self._holds(largest)):
            largest = nothing
        for found in self._headers_for(largest.offset):
            if found.header.max_timestamp > largest.timestamp:
                largest = TimestampOffset(found.header.max_timestamp, found.header.last_offset)
        return largest
