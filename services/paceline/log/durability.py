"""Track how far one log is durable, and flush the rest.

Epochs and index entries are durable before the recovery point passes the offsets they describe. The log's owner begins
and finishes a flush; the fsyncs between may run on another thread. A truncation or removal in the meantime raises the
generation, and a flush of an earlier generation does not move the recovery point.

Source: docs/protocol/log-format.md#durability.
"""

from dataclasses import dataclass

from paceline.log.checkpoint import PARTITION_METADATA
from paceline.log.files import Files, join
from paceline.log.leader_epoch_cache import LeaderEpochCache
from paceline.log.log_config import LogConfig
from paceline.log.log_directory import LogDirectory
from paceline.log.record_batch import MAX_INT64
from paceline.log.segment_list import SegmentList
from paceline.model.errors import KafkaStorageError


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
        """Make the data durable.

        Raises:
            KafkaStorageError: storage failed; the directory is offline from now on.
        """
        self.durability.perform(self)


class Durability:
    """How far a log is durable."""

    __slots__ = (
        "_directory",
        "_epochs",
        "_files",
        "_flushing",
        "_last_flush_ms",
        "_path",
        "generation",
        "is_over",
        "names_dirty",
        "recovery_point",
        "removals_unsynced",
        "rolled",
        "topic_id_unsynced",
    )

    def __init__(self, files: Files, directory: LogDirectory, path: str, epochs: LeaderEpochCache) -> None:
        self._files = files
        self._directory = directory
        self._path = path
        self._epochs = epochs
        self._flushing = False
        self._last_flush_ms: int | None = None
        self.recovery_point = 0
        """First offset that may not be durable."""
        self.generation = 0
        """Raised by truncations and removals."""
        self.rolled = False
        """Whether a segment was rolled since the last flush."""
        self.names_dirty = True
        """Whether files were created, renamed or removed since the last flush, or are about to be created."""
        self.removals_unsynced = False
        """Whether segments that were let go may come back after a loss of power."""
        self.topic_id_unsynced = False
        """Whether the topic id was written and may be in the page cache alone."""
        self.is_over = False
        """Whether the log was closed or is being deleted."""

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
        """Start a flush up to ``end_offset``; ``None`` when nothing is to be done or one is running.

        Raises:
            OSError: storage failed.
        """
        if self._flushing or (self.recovery_point >= end_offset and not self._epochs.dirty):
            return None
        paths: list[str] = []
        self._files.make_directory(self._path)
        for segment in segments.since(self.recovery_point):
            if segment.size:
                segment.write_indexes()
                paths.extend(segment.paths())
        if self.topic_id_unsynced:
            paths.append(join(self._path, PARTITION_METADATA))
        directories = [self._path, self._directory.path] if self.names_dirty else []
        # A segment has no file before its first batch; that name is still to come.
        self.names_dirty = not segments.active.size
        self.rolled = self.topic_id_unsynced = False
        self._flushing = True
        epochs = self._epochs
        written = epochs.encode() if epochs.dirty else None
        return FlushTask(self, end_offset, self.generation, paths, directories, written, epochs.version)

    @property
    def is_flushing(self) -> bool:
        """Whether a flush was begun that is not finished."""
        return self._flushing

    def sync_meanwhile(self, segments: SegmentList) -> None:
        """Make the batches durable though a flush is under way; how far the log is durable is left to that one.

        Segments behind the recovery point are checked after a crash, and their epochs and indexes rebuilt.

        Raises:
            OSError: storage failed.
        """
        paths = [segment.log_path for segment in segments.since(self.recovery_point) if segment.size]
        paths.append(join(self._path, PARTITION_METADATA))
        for path in paths:
            if self._files.exists(path):
                self._files.sync(path)
        # The other flush has taken the names over, and may not have come to them yet.
        self._files.sync_directory(self._path)
        self._files.sync_directory(self._directory.path)

    def perform(self, task: FlushTask) -> None:
        """Do the slow part of a flush, see `FlushTask.run`."""
        if self.is_over:
            # The path may be another log's by now, whose epochs are not these.
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
                # The log was deleted, or truncated below the file, while this ran: nothing is left to be durable.
                return
            self._directory.fail(error)
            raise KafkaStorageError(f"{self._path}: {error}") from error
        except Exception as error:
            # After any failure it is unknown which records are durable: take the directory offline.
            self._directory.fail(error)
            raise

    def finish(self, task: FlushTask, now_ms: int | None) -> None:
        """Advance the recovery point after `FlushTask.run` came back without an error."""
        self._flushing = False
        if now_ms is not None:
            self._last_flush_ms = now_ms
        if task.epochs is not None:
            self._epochs.flushed(task.epochs_version)
        if task.generation == self.generation:
            self.recovery_point = max(self.recovery_point, task.end_offset)
            if task.directories:
                self.removals_unsynced = False
            return
        # It may have ended at a deleted file: the names and the topic id behind that file are still to be synced.
        self.names_dirty = self.names_dirty or bool(task.directories)
        self.topic_id_unsynced = self.topic_id_unsynced or join(self._path, PARTITION_METADATA) in task.paths
