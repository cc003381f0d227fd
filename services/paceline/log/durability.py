"""Track up to which offset one log is durable, and flush the rest.

Epochs, index entries and the producer snapshots of rolled segments are durable before the recovery point passes the
offsets that they describe. The log's owner begins and finishes a flush; the fsyncs in between may run on another
thread. Truncating the log or removing segments increments the generation, and a flush that began in an earlier
generation does not advance the recovery point.

Source: docs/protocol/log-format.md#durability.
"""

from dataclasses import dataclass, field

from paceline.log.checkpoint import PARTITION_METADATA
from paceline.log.files import Files, join
from paceline.log.leader_epoch_cache import LeaderEpochCache
from paceline.log.log_config import LogConfig
from paceline.log.log_directory import LogDirectory
from paceline.log.record_batch import MAX_INT64
from paceline.log.segment_list import SegmentList
from paceline.log.snapshots import SnapshotFiles


@dataclass(slots=True)
class FlushTask:
    """The slow part of a flush. `run` only writes the epoch file and calls fsync; it may run on another thread."""

    durability: "Durability"
    end_offset: int
    generation: int
    paths: list[str]
    directories: list[str]
    epochs: bytes | None
    epochs_version: int

    def run(self) -> None:
        """Write the epoch file and fsync all files of this flush.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
            LogDirFullError: no room for the epoch file; nothing was synced. Call `Durability.abandon`.
        """
        self.durability.perform(self)


@dataclass(slots=True, eq=False)
class Durability:
    """The recovery point of one log, and the files and names that still have to be synced."""

    _files: Files
    _directory: LogDirectory
    _path: str
    _epochs: LeaderEpochCache
    _snapshots: SnapshotFiles
    _flushing: bool = field(default=False, init=False)
    _last_flush_ms: int | None = field(default=None, init=False)
    recovery_point: int = field(default=0, init=False)
    """First offset that may not be durable."""
    generation: int = field(default=0, init=False)
    """Incremented when the log is truncated or segments are removed or replaced."""
    rolled: bool = field(default=False, init=False)
    """Whether a segment was rolled since the last flush."""
    names_dirty: bool = field(default=True, init=False)
    """Whether files were created, renamed or removed since the last flush, or the next append creates files."""
    removals_unsynced: bool = field(default=False, init=False)
    """Whether removed segments may come back after a power loss."""
    topic_id_unsynced: bool = field(default=False, init=False)
    """Whether the topic id was written but may be in the page cache only."""
    is_over: bool = field(default=False, init=False)
    """Whether the log was closed, deleted or set aside."""

    def is_due(self, end_offset: int, config: LogConfig, now_ms: int | None) -> bool:
        """Whether to flush up to ``end_offset``: after a roll, or by ``flush.messages`` or ``flush.ms``."""
        unflushed = end_offset - self.recovery_point
        if unflushed <= 0:
            return False
        if self.rolled or unflushed >= config.flush_messages:
            return True
        if now_ms is None or config.flush_ms == MAX_INT64:
            return False
        if self._last_flush_ms is None:
            self._last_flush_ms = now_ms
        return now_ms - self._last_flush_ms >= config.flush_ms

    def begin(self, end_offset: int, segments: SegmentList) -> FlushTask | None:
        """Start a flush up to ``end_offset``; ``None`` when all is durable or another flush is in progress.

        Raises:
            OSError: storage failed.
        """
        if self._flushing or (self.recovery_point >= end_offset and not self._epochs.dirty):
            return None
        paths = self._snapshots.unsynced()
        self._files.make_directory(self._path)
        for segment in segments.since(self.recovery_point):
            if segment.size:
                segment.write_indexes()
                paths.extend(segment.paths())
        if self.topic_id_unsynced:
            paths.append(join(self._path, PARTITION_METADATA))
        directories = [self._path, self._directory.path] if self.names_dirty else []
        # An active segment without a batch has no file yet: the next flush must sync its name.
        self.names_dirty = not segments.active.size
        self.rolled = self.topic_id_unsynced = False
        self._flushing = True
        epochs = self._epochs
        written = epochs.encode() if epochs.dirty else None
        return FlushTask(self, end_offset, self.generation, paths, directories, written, epochs.version)

    def moved_to(self, path: str) -> None:
        """Use the renamed directory of the log; no flush is in progress."""
        self._path = path
        self.generation += 1
        self.names_dirty = True

    @property
    def is_flushing(self) -> bool:
        """Whether a flush was begun and is not finished."""
        return self._flushing

    def sync_meanwhile(self, segments: SegmentList) -> None:
        """Make the batches durable while another flush is in progress, and leave the recovery point to that flush.

        Indexes and epochs are not synced: recovery rebuilds them from the batches after the recovery point.

        Raises:
            OSError: storage failed.
        """
        paths = [segment.log_path for segment in segments.since(self.recovery_point) if segment.size]
        paths.append(join(self._path, PARTITION_METADATA))
        for path in paths:
            if self._files.exists(path):
                self._files.sync(path)
        # The other flush has cleared `names_dirty`, but may not have synced the names yet.
        self._files.sync_directory(self._path)
        self._files.sync_directory(self._directory.path)

    def perform(self, task: FlushTask) -> None:
        """Do the slow part of a flush, see `FlushTask.run`."""
        if self.is_over:
            # A new log of the same partition may use this path now: do not overwrite its epochs.
            return
        try:
            if task.epochs is not None:
                self._epochs.write(task.epochs)
            for path in task.paths:
                self._files.sync(path)
            for path in task.directories:
                self._files.sync_directory(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and (self.is_over or task.generation != self.generation):
                # The log was deleted, or the segment was removed, during the flush: nothing is left to sync.
                return
            raise self._directory.error_of(error, self._path) from error
        except Exception as error:
            # After any failure it is unknown which records are durable.
            self._directory.fail(error)
            raise

    def finish(self, task: FlushTask, now_ms: int | None) -> None:
        """Advance the recovery point after `FlushTask.run` has returned without an error."""
        self._flushing = False
        if now_ms is not None:
            self._last_flush_ms = now_ms
        if task.epochs is not None:
            self._epochs.flushed(task.epochs_version)
        if task.generation == self.generation:
            self.recovery_point = max(self.recovery_point, task.end_offset)
            self._snapshots.synced(task.paths)
            if task.directories:
                self.removals_unsynced = False
            return
        self._restore(task)

    def abandon(self, task: FlushTask) -> None:
        """End a flush that found no room; the next check of the logs begins another."""
        self._flushing = False
        self.rolled = True
        self._restore(task)

    def _restore(self, task: FlushTask) -> None:
        """Leave names and topic id to the next flush: this one may have stopped, for example at a deleted file."""
        self.names_dirty = self.names_dirty or bool(task.directories)
        self.topic_id_unsynced = self.topic_id_unsynced or join(self._path, PARTITION_METADATA) in task.paths
