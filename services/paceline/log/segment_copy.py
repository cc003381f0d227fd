"""`SegmentCopy`: copy a segment that takes no more appends into a future log, on another thread than the logs' owner.

Each batch is checked as for a reader, so a damaged batch is never copied. The files end in ``.cleaned`` until the owner
puts the segment in place (`FutureLogs.adopt`); a load removes them. If the segment is truncated or removed meanwhile,
the copy is void, and the owner begins another one.

Source: docs/protocol/log-format.md#future-logs.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from paceline.log.batch_file import cut_whole
from paceline.log.files import Files, join, read_all
from paceline.log.leader_epoch_cache import LeaderEpochCache
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import LENGTH_PREFIX_BYTES
from paceline.log.segment import Segment
from paceline.log.segment_names import CLEANED_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, file_name
from paceline.log.snapshots import EARLIER_SUFFIX, SNAPSHOT_SUFFIX
from paceline.log.storage_errors import StorageErrors
from paceline.model.errors import CorruptMessageError, PacelineError

T = TypeVar("T")
_READ_BYTES: Final = 1 << 18


class SegmentCopy:
    """The copy of one segment; `run` may run on any thread, the rest belongs to the owner of the logs."""

    def __init__(
        self, files: Files, current: PartitionLog, future: PartitionLog, source: Segment, end_offset: int
    ) -> None:
        """``end_offset`` is the base offset of the segment after ``source``."""
        self._files = files
        self._current = current
        self._future = future
        self._source = source
        self._size = source.size
        self.end_offset = end_offset
        self.segment = future.local.new_segment(source.base_offset, CLEANED_SUFFIX)
        self._batches_end = source.base_offset
        """Offset after the last batch copied."""
        self._copied_bytes = 0
        self.is_finished = False
        self.is_void = False
        """Whether `run` has found that the logs have changed, or the owner has given the copy up."""
        self._position = 0
        self._epochs = LeaderEpochCache(files, "")
        self._epochs.replace(current.epochs)
        self._reads = StorageErrors(current.directory, current.topic_partition, only_reads=True)
        self._writes = StorageErrors(future.directory, future.topic_partition)
        self._truncations = current.truncations, future.truncations

    def take_copied_bytes(self) -> int:
        """Return the bytes copied by the last `run`, once."""
        taken, self._copied_bytes = self._copied_bytes, 0
        return taken

    def is_current(self) -> bool:
        """Whether the source still is a segment of the log, and both logs were neither truncated nor closed."""
        logs = self._current, self._future
        return (
            tuple(log.truncations for log in logs) == self._truncations
            and not any(log.local.durability.is_over for log in logs)
            and self._source in self._current.segments
        )

    def run(self, limit_bytes: int) -> None:
        """Copy at least ``limit_bytes`` durably, or the rest with indexes and producer snapshot: then it `is_finished`.

        Raises:
            DamagedLogError: the segment is damaged.
            LogDirFullError: the new directory has no room.
            KafkaStorageError: storage failed; the directory is offline.
            ThrottledError: the process has no file descriptor left.
        """
        end = min(self._position + limit_bytes, self._size)
        try:
            while not self.is_void and self._position < end:
                data = self._try(self._reads, self._read)
                if data is not None:
                    self._try(self._writes, partial(self._write, data))
            self._try(self._writes, lambda: self._files.sync(self.segment.log_path))
            if self._position == self._size:
                self._try(self._writes, self._finish)
        except PacelineError:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the files of a copy that has failed or is void; otherwise the next load removes them."""
        with suppress(OSError):
            self.segment.remove()
            for suffix in (EARLIER_SUFFIX, SNAPSHOT_SUFFIX):
                path = join(self._future.path, file_name(self.end_offset, suffix) + CLEANED_SUFFIX)
                if self._files.exists(path):
                    self._files.remove(path)

    def _try(self, errors: StorageErrors, step: Callable[[], T]) -> T | None:
        """Return the result of a step, None if the copy is void: then files may be missing."""
        self.is_void = self.is_void or not self.is_current()
        if self.is_void:
            return None
        try:
            return step()
        except (OSError, CorruptMessageError) as error:
            self.is_void = self.is_void or not self.is_current()
            if self.is_void:
                return None
            with errors:
                raise error

    def _read(self) -> memoryview:
        """Return the next batches.

        Raises:
            OSError: storage failed.
            CorruptMessageError: they differ from those written.
        """
        position, path, left = self._position, self._source.log_path, self._size - self._position
        data = self._files.read_at(path, position, min(_READ_BYTES, left))
        size = int.from_bytes(data[8:LENGTH_PREFIX_BYTES], "big") + LENGTH_PREFIX_BYTES
        if len(data) < size <= left:
            data = self._files.read_at(path, position, size)
        end, following, _last = cut_whole(data, self.end_offset, self._epochs.epoch_of, position)
        first = int.from_bytes(data[:8], "big")
        if first < self._batches_end:
            raise CorruptMessageError(f"the batch at {position} of {path} begins at {first}, below {self._batches_end}")
        self._batches_end = following
        return memoryview(data)[:end]

    def _write(self, data: memoryview) -> None:
        if not self._position:
            self.segment.remove()
        self._files.append(self.segment.log_path, data)
        self._position += len(data)
        self._copied_bytes += len(data)

    def _finish(self) -> None:
        """Copy what belongs to the segment; indexes that do not fit its batches are built again."""
        base = self.segment.base_offset
        if self._files.size(self.segment.log_path) != self._size:
            self._position, self._batches_end = (
                0,
                base,
            )  # an earlier copy of the segment has still appended: begin again
            return
        for offset, suffix in (
            (base, INDEX_SUFFIX),
            (base, TIME_INDEX_SUFFIX),
            (base, TXN_INDEX_SUFFIX),
            (self.end_offset, EARLIER_SUFFIX),
            (self.end_offset, SNAPSHOT_SUFFIX),
        ):
            name = file_name(offset, suffix)
            try:
                data = read_all(self._files, join(self._current.path, name))
            except FileNotFoundError:
                continue
            target = join(self._future.path, name + CLEANED_SUFFIX)
            self._files.create(target)
            self._files.append(target, data)
        self.segment.open()
        self.segment.activate()
        self.segment.write_indexes()
        self.segment.release()
        self.is_finished = True
