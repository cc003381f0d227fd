"""`LogCompaction`: compact one log and track its first dirty offset.

The log cleaner calls `find_cleanable` and `begin`, then `replace_segments` for each segment that the task has written,
then `finish`.
"""

from paceline.log.compaction.cleanable import Cleanable, find_cleanable
from paceline.log.compaction.cleaner import CleanedSegment, Cleaner
from paceline.log.compaction.cleaning_task import CleaningTask
from paceline.log.compaction.offset_map import OffsetMap
from paceline.log.local_log import LocalLog
from paceline.log.segment_names import CLEANED_SUFFIX, SWAP_SUFFIX
from paceline.log.storage_errors import StorageErrors


class LogCompaction:
    """Compacts one log. Only the owner of the log may call the methods."""

    __slots__ = ("_log", "_steps", "_storage", "first_dirty_offset")

    def __init__(self, log: LocalLog, storage: StorageErrors, steps: StorageErrors) -> None:
        """``steps`` is for operations that may be half done after an error."""
        self._log = log
        self._storage = storage
        self._steps = steps
        self.first_dirty_offset: int | None = None
        """Exclusive end of the compacted part, ``None`` when the log was never compacted."""

    def truncated_to(self, offset: int) -> None:
        """Lower the first dirty offset to ``offset``, where the log was truncated."""
        if self.first_dirty_offset is not None:
            self.first_dirty_offset = min(self.first_dirty_offset, offset)

    def roll_idle_segment(self, wall_ms: int) -> bool:
        """Roll the active segment of an idle log; return whether it was rolled.

        A log is idle after ``segment.ms`` or ``max.compaction.lag.ms`` without an append, whichever is shorter.
        Compaction skips the active segment: without a roll the last records of an idle log would never be compacted.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        log = self._log
        log.check_online()
        active = log.segments.active
        if not active.size or log.physical_end != log.end_offset:
            return False
        idle_ms = min(log.config.segment_ms, log.config.max_compaction_lag_ms)
        with self._storage:
            if wall_ms - log.files.modified_ms(active.log_path) <= idle_ms:
                return False
            log.roll_durably(log.end_offset)
        return True

    def find_cleanable(self, wall_ms: int) -> Cleanable | None:
        """Return the range to compact, or ``None`` when the range has no dirty bytes.

        The range is below the last stable offset and the recovery point, and older than ``min.compaction.lag.ms``.

        Raises:
            DamagedLogError: a segment's timestamps cannot be read.
            KafkaStorageError: storage failed; the directory is offline.
        """
        log = self._log
        log.check_online()
        limit = min(log.last_stable_offset, log.durability.recovery_point)
        first_dirty = max(self.first_dirty_offset or 0, log.start_offset)
        with self._storage:
            return find_cleanable(list(log.segments), first_dirty, limit, log.config, wall_ms)

    def begin(self, cleanable: Cleanable, wall_ms: int, buffer_bytes: int, load_factor: float) -> CleaningTask:
        """Return a task that compacts the range from `find_cleanable`, with an offset map of ``buffer_bytes``."""
        log = self._log
        last_offsets = {one.producer_id: one.batches[-1].last_offset for one in log.producers.entries if one.batches}
        cleaner = Cleaner(
            log.files,
            log.path,
            log.config,
            cleanable,
            last_offsets,
            wall_ms,
            OffsetMap(buffer_bytes, load_factor),
            lambda base_offset: log.new_segment(base_offset, CLEANED_SUFFIX),
        )
        truncations = log.truncation_count
        return CleaningTask(
            cleaner, log.directory, lambda: not log.durability.is_over and log.truncation_count == truncations
        )

    def replace_segments(self, task: CleaningTask, cleaned: CleanedSegment) -> list[str]:
        """Put a compacted segment in place; return the files of the segments it replaces, renamed to ``.deleted``.

        Two rules ensure that a crash between two steps leaves either the old segments or the new segment:

        1. The swap files become durable before an old segment is removed.
        2. The old segments are removed durably before the new segment takes the name of the first old segment.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        log = self._log
        log.check_online()
        removed: list[str] = []
        with self._steps:
            if not task.is_current():
                cleaned.segment.remove()
                return []
            cleaned.segment.change_suffix(SWAP_SUFFIX, log_first=False)
            log.files.sync_directory(log.path)
            for source in cleaned.sources:
                removed.extend(source.rename_deleted())
                if source is not cleaned.sources[0]:
                    log.snapshots.remove(source.base_offset)
            log.files.sync_directory(log.path)
            cleaned.segment.change_suffix("", log_first=True)
        log.segments.replace(cleaned.sources, cleaned.segment)
        # A flush in progress may find its files removed: it must not advance the recovery point; request a new flush.
        log.durability.rolled |= log.durability.is_flushing
        log.durability.generation += 1
        log.durability.names_dirty = True
        return removed

    def finish(self, task: CleaningTask) -> None:
        """Advance the first dirty offset to the end of the task; the caller writes the cleaner checkpoint."""
        if task.is_current():
            self.first_dirty_offset = task.end_offset
