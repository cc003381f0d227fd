"""`LogCompaction`: the compaction of one log, and how far it has come.

A cleaner calls `find_cleanable`, `begin`, `replace_segments` for each segment that the task has written, and `finish`.
"""

from paceline.log.compaction.cleanable import Cleanable, find_cleanable
from paceline.log.compaction.cleaner import CleanedSegment, Cleaner
from paceline.log.compaction.cleaning_task import CleaningTask
from paceline.log.compaction.offset_map import OffsetMap
from paceline.log.local_log import LocalLog
from paceline.log.segment_names import CLEANED_SUFFIX, SWAP_SUFFIX
from paceline.log.storage_errors import StorageErrors


class LogCompaction:
    """Compacts one log; methods are for the owner of the log."""

    __slots__ = ("_log", "_storage", "first_dirty_offset")

    def __init__(self, log: LocalLog, storage: StorageErrors) -> None:
        self._log = log
        self._storage = storage
        self.first_dirty_offset: int | None = None
        """Exclusive end of the compacted part, ``None`` when the log was never compacted."""

    def truncated_to(self, offset: int) -> None:
        """Note that the log ends at ``offset``."""
        if self.first_dirty_offset is not None:
            self.first_dirty_offset = min(self.first_dirty_offset, offset)

    def roll_idle_segment(self, wall_ms: int) -> bool:
        """Begin a new segment when nothing was appended for ``segment.ms``; return whether it did.

        Compaction skips the active segment: without a roll the last records of an idle log are never compacted.

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
        """Return the range to compact: durable, committed, decided and old enough; ``None`` when nothing is dirty.

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
        """Start to compact a range from `find_cleanable` with a map of ``buffer_bytes``; call `finish` later."""
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
        """Put a compacted segment in place; return the files of those it replaces, now ``.deleted``.

        A crash between two steps leaves either the old segments or the new one:

        1. The swap files become durable before an old segment is removed.
        2. The old segments are removed durably before the new one takes the name of the first.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        log = self._log
        log.check_online()
        removed: list[str] = []
        with self._storage:
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
        # A flush in progress may miss files: it does not count, and another one is due.
        log.durability.rolled |= log.durability.is_flushing
        log.durability.generation += 1
        log.durability.names_dirty = True
        return removed

    def finish(self, task: CleaningTask) -> None:
        """Note how far the log is compacted; the caller writes the cleaner checkpoint."""
        if task.is_current():
            self.first_dirty_offset = task.end_offset
