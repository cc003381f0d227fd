"""What a broker's core uses of `paceline.log`, as protocols: the real logs satisfy them, and so may a test's.

All offsets that end something are exclusive. Storage failures raise `KafkaStorageError`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from paceline.log.checkpoint import MetaProperties
from paceline.log.compaction.cleanable import Cleanable
from paceline.log.compaction.cleaner import CleanedSegment
from paceline.log.compaction.cleaning_task import CleaningTask
from paceline.log.durability import FlushTask
from paceline.log.log_config import LogConfig
from paceline.model.identifiers import TopicPartition


class ReplicaLogDirectory(Protocol):
    """The log directory a log lies in."""

    @property
    def path(self) -> str:
        """Where it is."""

    @property
    def is_offline(self) -> bool:
        """Whether storage failed there; it stays so until the process restarts."""


class ReplicaLogEpochs(Protocol):
    """The leader epochs of a log."""

    @property
    def dirty(self) -> bool:
        """Whether memory knows more than the file."""

    def epoch_of(self, offset: int) -> int | None:
        """Return the epoch that wrote ``offset``, or would write it at the log's end."""


class AppendResult(Protocol):
    """What an append did."""

    @property
    def base_offset(self) -> int:
        """First offset of the batch."""

    @property
    def last_offset(self) -> int:
        """Last offset, inclusive."""

    @property
    def log_append_time_ms(self) -> int:
        """Time the broker stamped, -1 when the producer's stands."""

    @property
    def log_start_offset(self) -> int:
        """First offset of the log."""

    @property
    def duplicate(self) -> bool:
        """Whether the batch was there already and nothing was appended."""


class ReplicaLog(Protocol):
    """One replica on disk."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Whose log it is."""

    @property
    def topic_id(self) -> str | None:
        """Topic id it was created under."""

    @property
    def directory(self) -> ReplicaLogDirectory:
        """Where it lies."""

    config: LogConfig
    """Present settings; the broker replaces them when the topic's change."""

    @property
    def epochs(self) -> ReplicaLogEpochs:
        """Leader epochs."""

    @property
    def log_start_offset(self) -> int:
        """First offset."""

    @property
    def log_end_offset(self) -> int:
        """Offset the next record gets."""

    @property
    def high_watermark(self) -> int:
        """First offset not known to be committed."""

    @property
    def latest_epoch(self) -> int | None:
        """Largest leader epoch known."""

    @property
    def segment_count(self) -> int:
        """How many segments it has."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""

    def update_high_watermark(self, high_watermark: int) -> object:
        """Set the high watermark, within log start and log end."""

    def append_as_leader(self, data: bytes, leader_epoch: int, now_ms: int) -> AppendResult:
        """Validate, assign offsets, append."""

    def append_as_follower(self, data: bytes) -> AppendResult | None:
        """Append a leader's batches as they are; a cut batch at the end is left out. None when nothing was whole."""

    def read(self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool = True) -> bytes:
        """Return whole batches from the one that holds ``offset``, none of them at or above ``limit_offset``."""

    def truncate_to(self, offset: int) -> None:
        """Drop records, and epoch entries, at and above ``offset``."""

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and start anew at ``offset``."""

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that an epoch starts."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """Return the largest epoch not above ``epoch`` and its end."""

    def increment_log_start_offset(self, offset: int) -> object:
        """Move the log's start up, never down."""

    def retained_from(self, wall_ms: int) -> int | None:
        """Return from where on records stay by the topic's settings, None when all do."""

    def remove_segments_below_start(self) -> list[str]:
        """Let go of whole segments below the log's start; return their files, renamed."""

    def roll_idle_segment(self, wall_ms: int) -> bool:
        """Begin a new segment when nothing was appended for ``segment.ms``."""

    def cleanable(self, wall_ms: int) -> Cleanable | None:
        """Return what may be compacted, None when nothing is dirty."""

    def begin_cleaning(self, cleanable: Cleanable, wall_ms: int, buffer_bytes: int, load_factor: float) -> CleaningTask:
        """Start to compact; the task's `run` may happen on another thread."""

    def replace_segments(self, task: CleaningTask, cleaned: CleanedSegment) -> list[str]:
        """Put a compacted segment in place; return the files it replaces, renamed."""

    def finish_cleaning(self, task: CleaningTask) -> None:
        """Note how far the log is compacted."""

    def remove_files(self, paths: list[str]) -> None:
        """Remove files that were let go."""

    def flush_needed(self, now_ms: int | None = None) -> bool:
        """Whether a flush is due."""

    def begin_flush(self) -> FlushTask | None:
        """Start a flush; its `run` may happen on another thread."""

    def finish_flush(self, task: FlushTask, now_ms: int | None = None) -> None:
        """Note that the task has run without an error."""

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget idempotent producers that have been idle for longer; ``now_ms`` is wall clock."""

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after a time, below ``limit_offset``."""


class ReplicaLogs(Protocol):
    """All logs of a broker."""

    @property
    def default_config(self) -> LogConfig:
        """Settings of a topic without settings of its own."""

    @property
    def log_dirs(self) -> list[str]:
        """Configured directories."""

    @property
    def live_log_dirs(self) -> list[str]:
        """Directories that work."""

    def get(self, topic_partition: TopicPartition) -> ReplicaLog | None:
        """Return a log that exists."""

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: str | None, is_new: bool, config: LogConfig | None = None
    ) -> ReplicaLog:
        """Return the log; one that is not new is not created while a directory is offline."""

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take the log away, durably after `sync_deletions`; `purge_deleted` removes the files."""

    def set_log_aside(self, topic_partition: TopicPartition, why: str) -> str:
        """Take a log away, durably, and keep it under another name; return where it is."""

    @property
    def set_aside(self) -> Sequence[str]:
        """Logs that were set aside and are still there."""

    @property
    def cut_after_clean_stop(self) -> Mapping[TopicPartition, str]:
        """Logs that have lost batches though they were stopped cleanly, and what happened to them."""

    @property
    def without_owner(self) -> Mapping[TopicPartition, str]:
        """Logs with records that may be another topic's, for their topic id was lost, and what happened to them."""

    def sync_deletions(self) -> None:
        """Make deletions durable; a directory that fails goes offline."""

    def purge_deleted(self) -> int:
        """Remove the files of deleted logs."""

    def checkpoint_high_watermarks(self) -> None:
        """Write every log's high watermark."""

    def checkpoint_recovery_points(self) -> None:
        """Write every log's recovery point."""

    def checkpoint_log_start_offsets(self) -> None:
        """Write log starts that the segments do not tell."""

    def checkpoint_cleaner_offsets(self) -> None:
        """Write up to where each log is compacted."""

    def all_logs(self) -> Iterable[ReplicaLog]:
        """Return every log."""

    def read_meta_properties(self) -> Mapping[str, MetaProperties | None]:
        """Return whose each working directory is."""

    def unclean_restart_noted(self) -> None:
        """Say in the directories that a controller knows of the unclean restart."""

    @property
    def sessions_of_dead_processes(self) -> Collection[int]:
        """ZooKeeper sessions of earlier processes that held the same locks and so are certainly dead."""

    def remember_session(self, session_id: int) -> None:
        """Note a session of this process before it registers, for its successor."""

    def write_meta_properties(self, broker_id: int, cluster_id: str, date: str) -> None:
        """Say whose the working directories are."""

    def shutdown(self) -> None:
        """Flush, close, mark clean."""
