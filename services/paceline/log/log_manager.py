"""All logs of a broker: loading and recovery, creation and deletion, checkpoints, the marker of a clean stop.

Per log directory: a lock file while running, the clean-stop marker, the offset checkpoints, and the kernel's boot id
of the last start, from which a restart after power loss is told from one after a crash of the process (design 3.6).
Source: spec/log-format.md sections 1, 7 and 8; spec/replica-manager.md sections 9 and 16.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from paceline.log.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    DamagedFileError,
    MetaProperties,
    decode_meta_properties,
    encode_meta_properties,
    read_offsets,
    write_offsets,
)
from paceline.log.files import FileKind, FileLock, Files, join, read_all, write_atomically
from paceline.log.log_config import LogConfig
from paceline.log.log_directory import LogDirectory
from paceline.log.log_loader import load_log, read_topic_id
from paceline.log.partition_log import PartitionLog
from paceline.model.errors import InvalidTopicError, KafkaStorageError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition, validate_topic_name

LOCK_FILE = ".lock"
BOOT_ID_FILE = ".kernel_boot_id"
UNCLEAN_RESTART = "unclean-restart"
"""Stands in the boot id's place from an unclean restart until a controller has taken note of it."""
MAX_NAME_LENGTH = 255
_DELETE = re.compile(r"(.+)\.[0-9a-f]{32}-delete")
_FUTURE = re.compile(r"(.+)\.[0-9a-f]{32}-future")
DAMAGED = "damaged"
"""Suffix of a log that was set aside because its bytes are not what was written."""
STRAY = "stray"
"""Suffix of a log that was set aside because no controller knows of it."""
_SET_ASIDE = re.compile(r"(.+)\.[0-9a-f]{32}-(damaged|stray)")
_CURRENT = re.compile(r"(.+)-(0|[1-9][0-9]{0,9})")


@dataclass(slots=True)
class DirectoryReport:
    """What loading found in one log directory."""

    path: str
    clean_shutdown: bool = False
    stored_boot_id: str | None = None
    """Boot id of the kernel when the directory was last known to be whole, ``None`` when there was none."""
    recovered: list[TopicPartition] = field(default_factory=list)
    """Logs whose batches had to be checked."""
    truncated_bytes: dict[TopicPartition, int] = field(default_factory=dict)
    """Bytes cut per log, where any were."""
    lost_batches: list[TopicPartition] = field(default_factory=list)
    """Logs of which whole batches were cut; the end of an append that was interrupted was never acknowledged."""
    is_new: bool = False
    """Whether it has never been used: no mark of a start or of a cluster, and no log."""
    quarantined: list[str] = field(default_factory=list)
    """Names that mean nothing to us: left alone, never followed."""
    damaged: list[str] = field(default_factory=list)
    """Files that could not be parsed and were done without."""
    set_aside: list[str] = field(default_factory=list)
    """Damaged and stray logs, kept until somebody removes them."""
    error: Exception | None = None
    """Why the directory is offline."""

    def may_lack_records(self, boot_id: str) -> bool:
        """Whether records may be missing that were acknowledged; a directory that failed is another matter."""
        if self.is_new or self.error is not None:
            return False
        if self.stored_boot_id == UNCLEAN_RESTART:
            # A later stop was clean, but nobody has been told of what was lost before.
            return True
        return not self.clean_shutdown and (self.stored_boot_id != boot_id or bool(self.lost_batches))


@dataclass(slots=True)
class LoadReport:
    """What loading found."""

    directories: list[DirectoryReport] = field(default_factory=list)

    @property
    def clean_shutdown(self) -> bool:
        """Whether every directory was stopped cleanly."""
        return all(directory.clean_shutdown for directory in self.directories)

    @property
    def recovered(self) -> list[TopicPartition]:
        """Logs whose batches had to be checked."""
        return [tp for directory in self.directories for tp in directory.recovered]

    @property
    def truncated_bytes(self) -> int:
        """Bytes cut from all logs."""
        return sum(sum(directory.truncated_bytes.values()) for directory in self.directories)

    @property
    def quarantined(self) -> list[str]:
        """Paths that were left alone."""
        return [name for directory in self.directories for name in directory.quarantined]

    def is_unclean_restart(self, boot_id: str) -> bool:
        """Whether data may be missing that was acknowledged: no clean-stop marker, and either the machine was
        restarted since or recovery cut whole batches. A directory never used has nothing to miss. Design 3.6."""
        return any(directory.may_lack_records(boot_id) for directory in self.directories)


def parse_directory_name(name: str) -> TopicPartition | None:
    """Return the partition whose current log has this directory name, ``None`` when the name is not one.

    Source: spec/log-format.md section 1; the name must be exactly the one we would give.
    """
    match = _CURRENT.fullmatch(name)
    if match is None or int(match[2]) > 2**31 - 1:
        return None
    try:
        validate_topic_name(match[1])
    except InvalidTopicError:
        return None
    return TopicPartition(match[1], int(match[2]))


class LogManager:
    """All logs of one broker, over one or more log directories."""

    log_class: type[PartitionLog] = PartitionLog
    """What it makes; a subclass may have its logs watched."""

    def __init__(
        self,
        files: Files,
        log_dirs: Sequence[str],
        default_config: LogConfig,
        *,
        on_dir_failure: Callable[[str, Exception], None],
        boot_id: str = "",
    ) -> None:
        self._files = files
        self.default_config = default_config
        self._boot_id = boot_id
        self._on_dir_failure = on_dir_failure
        self._directories = [LogDirectory(path.rstrip("/"), self._directory_failed) for path in log_dirs]
        self._locks: dict[str, FileLock] = {}
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._deleted: list[tuple[LogDirectory, str]] = []
        self._unsynced_deletions: dict[str, LogDirectory] = {}
        self._delete_count = 0
        self._stale_checkpoints: dict[str, set[TopicPartition]] = {}
        self.set_aside: list[str] = []
        """Directories of damaged and stray logs that are kept for people to look at."""
        self.cut_after_clean_stop: dict[TopicPartition, str] = {}
        """Logs that were stopped cleanly and had lost batches when they were loaded; the words say what happened."""
        for directory in self._directories:
            directory.checkpoint_recovery_points = self._recovery_point_writer(directory)

    # -- loading -----------------------------------------------------------------------------------------------

    def load(self, now_ms: int, configs: Callable[[str], LogConfig | None] = lambda _topic: None) -> LoadReport:
        """Lock every directory, load and where needed recover every log. ``configs`` gives a topic's settings.

        A directory that fails goes offline and is reported; the others go on.

        Raises:
            KafkaStorageError: another process uses a directory, or a partition has two current logs.
        """
        report = LoadReport()
        for directory in self._directories:
            found = DirectoryReport(directory.path)
            report.directories.append(found)
            try:
                self._lock(directory)
                self._load_directory(directory, found, configs, now_ms)
                directory.load_completed = True
            except OSError as error:
                found.error = error
                directory.fail(error)
        return report

    def _lock(self, directory: LogDirectory) -> None:
        self._files.make_directory(directory.path)
        lock = self._files.lock(join(directory.path, LOCK_FILE))
        if lock is None:
            raise KafkaStorageError(f"log directory {directory.path} is locked by another process")
        self._locks[directory.path] = lock

    def _load_directory(
        self,
        directory: LogDirectory,
        report: DirectoryReport,
        configs: Callable[[str], LogConfig | None],
        now_ms: int,
    ) -> None:
        marker = join(directory.path, CLEAN_SHUTDOWN_MARKER)
        report.clean_shutdown = self._files.exists(marker)
        if report.clean_shutdown:
            # First of all: a crash during the load must count as unclean.
            self._files.remove(marker)
            self._files.sync_directory(directory.path)
        self._read_boot_id(directory, report)
        recovery_points = self._read_checkpoint(directory, RECOVERY_POINT_CHECKPOINT, report)
        log_starts = self._read_checkpoint(directory, LOG_START_CHECKPOINT, report)
        high_watermarks = self._read_checkpoint(directory, HIGH_WATERMARK_CHECKPOINT, report)
        for name, tp in self._partition_names(directory, report):
            if tp in self._logs:
                raise KafkaStorageError(f"{tp} lies in {self._logs[tp].directory.path} and in {directory.path}")
            log = self._open(directory, name, tp, report, configs)
            loaded = load_log(
                self._files,
                log,
                clean=report.clean_shutdown,
                recovery_point=recovery_points.get(tp),
                log_start_offset=log_starts.get(tp),
                power_lost=report.stored_boot_id not in (None, self._boot_id),
            )
            log.update_high_watermark(high_watermarks.get(tp, 0))
            log.checkpointed_recovery_point = recovery_points.get(tp)
            report.quarantined.extend(loaded.ignored)
            report.damaged.extend(loaded.damaged)
            if loaded.recovered:
                report.recovered.append(tp)
            if loaded.truncated_bytes:
                report.truncated_bytes[tp] = loaded.truncated_bytes
            if loaded.lost_batches and not report.clean_shutdown:
                if not report.lost_batches:
                    self._write_boot_id(directory, UNCLEAN_RESTART)
                report.lost_batches.append(tp)
            elif loaded.lost_batches:
                self.cut_after_clean_stop[tp] = f"{loaded.truncated_bytes} damaged bytes were cut at {log.path}"
            self._logs[tp] = log
        known = recovery_points.keys() | log_starts.keys() | high_watermarks.keys()
        self._stale_checkpoints[directory.path] = {tp for tp in known if tp not in self._logs}

    def _open(
        self,
        directory: LogDirectory,
        name: str,
        tp: TopicPartition,
        report: DirectoryReport,
        configs: Callable[[str], LogConfig | None],
    ) -> PartitionLog:
        path = join(directory.path, name)
        topic_id = None
        try:
            topic_id = read_topic_id(self._files, path)
        except DamagedFileError:
            report.damaged.append(path)
        config = configs(tp.topic) or self.default_config
        return self.log_class(
            self._files, directory, path, tp, config, topic_id=topic_id, topic_id_written=topic_id is not None
        )

    def _partition_names(self, directory: LogDirectory, report: DirectoryReport) -> list[tuple[str, TopicPartition]]:
        """Return the current logs of a directory; queue those being deleted; report names that mean nothing."""
        found = []
        for name, kind in self._files.list_directory(directory.path):
            path = join(directory.path, name)
            if kind is FileKind.FILE:
                continue
            tp = parse_directory_name(name)
            if kind is FileKind.OTHER:
                report.quarantined.append(path)
            elif _DELETE.fullmatch(name) is not None:
                self._deleted.append((directory, path))
            elif _SET_ASIDE.fullmatch(name) is not None:
                report.set_aside.append(path)
                self.set_aside.append(path)
            elif tp is None or _FUTURE.fullmatch(name) is not None:
                report.quarantined.append(path)
            else:
                found.append((name, tp))
        return found

    def _read_boot_id(self, directory: LogDirectory, report: DirectoryReport) -> None:
        path = join(directory.path, BOOT_ID_FILE)
        if self._files.exists(path):
            report.stored_boot_id = self._files.read_at(path, 0, 64).decode("ascii", "replace").strip()
        else:
            names = {name for name, _ in self._files.list_directory(directory.path)}
            report.is_new = META_PROPERTIES not in names and not any(map(parse_directory_name, names))
        mark = UNCLEAN_RESTART if report.may_lack_records(self._boot_id) else self._boot_id
        if report.stored_boot_id != mark:
            self._write_boot_id(directory, mark)

    def _write_boot_id(self, directory: LogDirectory, boot_id: str) -> None:
        write_atomically(self._files, join(directory.path, BOOT_ID_FILE), f"{boot_id}\n".encode())

    def unclean_restart_noted(self) -> None:
        """The controller knows of the unclean restart: from here on only a new one counts.

        Until then the mark stays, so that no stop before that, not even a clean one, hides what was lost.
        """
        for directory in self._directories:
            if directory.is_offline:
                continue
            try:
                self._write_boot_id(directory, self._boot_id)
            except OSError as error:
                directory.fail(error)

    def _read_checkpoint(
        self, directory: LogDirectory, name: str, report: DirectoryReport
    ) -> dict[TopicPartition, int]:
        """A damaged checkpoint counts as missing: HW 0, recovery of everything, log start at the first segment."""
        path = join(directory.path, name)
        try:
            return {tp: offset for tp, offset in read_offsets(self._files, path).items() if offset >= 0}
        except DamagedFileError:
            report.damaged.append(path)
            return {}

    # -- logs --------------------------------------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> PartitionLog | None:
        """Return the log of a partition."""
        return self._logs.get(tp)

    def all_logs(self) -> list[PartitionLog]:
        """Return every log, those of offline directories included."""
        return list(self._logs.values())

    @property
    def log_dirs(self) -> list[str]:
        """Paths of the configured directories."""
        return [directory.path for directory in self._directories]

    @property
    def live_log_dirs(self) -> list[str]:
        """Paths of the directories that work."""
        return [directory.path for directory in self._directories if not directory.is_offline]

    def is_offline(self, log_dir: str) -> bool:
        """Whether a storage error took this directory offline."""
        return any(directory.path == log_dir and directory.is_offline for directory in self._directories)

    def get_or_create(
        self, tp: TopicPartition, topic_id: str | None, is_new: bool, config: LogConfig | None = None
    ) -> PartitionLog:
        """Return the partition's log, made in the live directory with the fewest logs when there is none.

        ``is_new`` says that the replica cannot exist anywhere yet; without it a missing log is refused while a
        directory is offline, for the data may lie there. Costs one directory; files come with the first append.

        Raises:
            InconsistentTopicIdError: the log belongs to another topic of the same name.
            KafkaStorageError: its directory is offline, no directory works, or the refusal above.
        """
        log = self._logs.get(tp)
        if log is not None:
            log.directory.check_online()
            if topic_id is not None:
                log.assign_topic_id(topic_id)
            return log
        live = [directory for directory in self._directories if not directory.is_offline]
        if not live or (not is_new and len(live) < len(self._directories)):
            raise KafkaStorageError(f"{tp} may lie in a log directory that is offline")
        counts = dict.fromkeys((directory.path for directory in live), 0)
        if len(live) > 1:
            for other in self._logs.values():
                if other.directory.path in counts:
                    counts[other.directory.path] += 1
        directory = min(live, key=lambda candidate: counts[candidate.path])
        return self._create(directory, tp, topic_id, config or self.default_config)

    def _create(
        self, directory: LogDirectory, tp: TopicPartition, topic_id: str | None, config: LogConfig
    ) -> PartitionLog:
        path = join(directory.path, str(tp))
        try:
            if tp in self._stale_checkpoints.get(directory.path, ()):
                # Offsets of an earlier log of this name must not meet the new one after a crash.
                self._write_all_checkpoints(directory)
            self._files.make_directory(path)
        except OSError as error:
            directory.fail(error)
            raise KafkaStorageError(f"{tp}: {error}") from error
        log = self.log_class(self._files, directory, path, tp, config, topic_id=topic_id)
        log.begin_with([], 0, 0)
        self._logs[tp] = log
        return log

    def delete(self, tp: TopicPartition) -> None:
        """Rename the partition's directory away and forget it; `purge_deleted` removes the files.

        Durable only after `sync_deletions`, so that many deletions cost one fsync.

        Raises:
            UnknownTopicOrPartitionError: there is no such log.
            KafkaStorageError: its directory is offline or fails.
        """
        directory, target = self._take_away(tp, "delete")
        self._deleted.append((directory, target))
        self._unsynced_deletions[directory.path] = directory

    def set_log_aside(self, tp: TopicPartition, why: str) -> str:
        """Rename the partition's directory to one ending in ``-why``, durably, and forget it; return where it is now.

        Nothing ever removes it but a person. ``why`` is `DAMAGED` or `STRAY`.

        Raises:
            UnknownTopicOrPartitionError: there is no such log.
            KafkaStorageError: its directory is offline or fails.
        """
        directory, target = self._take_away(tp, why)
        try:
            self._files.sync_directory(directory.path)
        except OSError as error:
            directory.fail(error)
            raise KafkaStorageError(f"{tp}: {error}") from error
        self.cut_after_clean_stop.pop(tp, None)
        self.set_aside.append(target)
        return target

    def _take_away(self, tp: TopicPartition, suffix: str) -> tuple[LogDirectory, str]:
        log = self._logs.get(tp)
        if log is None:
            raise UnknownTopicOrPartitionError(f"{tp} has no log here")
        directory = log.directory
        directory.check_online()
        log.retire()
        target = self._free_path(directory, tp, suffix)
        try:
            self._files.rename(log.path, target)
        except OSError as error:
            directory.fail(error)
            raise KafkaStorageError(f"{tp}: {error}") from error
        del self._logs[tp]
        self._stale_checkpoints.setdefault(directory.path, set()).add(tp)
        return directory, target

    def sync_deletions(self) -> None:
        """Make deletions durable; to be called before anybody is told of them. A directory that fails goes offline.

        A log that came back after a loss of power would belong to no topic any more, and bar the way to the next one
        of that name.
        """
        unsynced, self._unsynced_deletions = self._unsynced_deletions, {}
        for directory in unsynced.values():
            if directory.is_offline:
                continue
            try:
                self._files.sync_directory(directory.path)
            except OSError as error:
                directory.fail(error)

    def _free_path(self, directory: LogDirectory, tp: TopicPartition, what: str) -> str:
        """A free name ``<topic>-<partition>.<32 hex>-<what>``, the topic cut so that the name fits."""
        while True:
            self._delete_count += 1
            unique = hashlib.blake2s(f"{directory.path} {tp} {self._delete_count}".encode(), digest_size=16).hexdigest()
            suffix = f"-{tp.partition}.{unique}-{what}"
            path = join(directory.path, tp.topic[: MAX_NAME_LENGTH - len(suffix)] + suffix)
            if not self._files.exists(path):
                return path

    def purge_deleted(self) -> int:
        """Remove the files of deleted logs, now; return how many logs. Call ``file.delete.delay.ms`` after `delete`."""
        waiting, self._deleted = self._deleted, []
        removed = 0
        for directory, path in waiting:
            if directory.is_offline:
                continue
            try:
                self._files.remove_tree(path)
                removed += 1
            except FileNotFoundError:
                continue
            except OSError as error:
                directory.fail(error)
        return removed

    # -- checkpoints -------------------------------------------------------------------------------------------

    def checkpoint_high_watermarks(self) -> None:
        """Write every log's high watermark, logs without a role included, so that no entry is ever lost."""
        self._checkpoint_all(self._write_high_watermarks)

    def checkpoint_recovery_points(self) -> None:
        """Write every log's recovery point, after its leader epochs."""
        self._checkpoint_all(self._write_recovery_points)

    def checkpoint_log_start_offsets(self) -> None:
        """Write the log start offset of logs whose first segment does not tell it: beyond its base, or not for good."""
        self._checkpoint_all(self._write_log_starts)

    def read_high_watermarks(self, log_dir: str) -> dict[TopicPartition, int]:
        """Return what the high watermark checkpoint of a directory says, nothing when it is missing.

        Raises:
            DamagedFileError: it does not parse.
            OSError: storage failed.
        """
        return read_offsets(self._files, join(log_dir, HIGH_WATERMARK_CHECKPOINT))

    def flush_epochs(self) -> int:
        """Write the leader-epoch file of every log that knows more than its file; return how many."""
        written = 0
        for log in self.all_logs():
            if log.epochs.dirty and not log.directory.is_offline:
                try:
                    self._files.make_directory(log.path)
                    log.epochs.flush()
                    written += 1
                except OSError as error:
                    log.directory.fail(error)
        return written

    def _checkpoint_all(self, write: Callable[[LogDirectory], None]) -> None:
        for directory in self._directories:
            if directory.load_completed and not directory.is_offline:
                try:
                    write(directory)
                except OSError as error:
                    directory.fail(error)

    def _logs_in(self, directory: LogDirectory) -> Iterable[PartitionLog]:
        return [log for log in self._logs.values() if log.directory is directory]

    def _write_high_watermarks(self, directory: LogDirectory) -> None:
        self._write(directory, HIGH_WATERMARK_CHECKPOINT, lambda log: log.high_watermark)

    def _write_recovery_points(self, directory: LogDirectory) -> None:
        points = {log.topic_partition: log.recovery_point for log in self._logs_in(directory)}
        write_offsets(self._files, join(directory.path, RECOVERY_POINT_CHECKPOINT), points)
        for log in self._logs_in(directory):
            log.checkpointed_recovery_point = points.get(log.topic_partition)

    def _write_log_starts(self, directory: LogDirectory) -> None:
        offsets = {
            log.topic_partition: log.log_start_offset for log in self._logs_in(directory) if not log.names_its_start
        }
        write_offsets(self._files, join(directory.path, LOG_START_CHECKPOINT), offsets)

    def _write(self, directory: LogDirectory, name: str, value: Callable[[PartitionLog], int]) -> None:
        offsets = {log.topic_partition: value(log) for log in self._logs_in(directory)}
        write_offsets(self._files, join(directory.path, name), offsets)

    def _write_all_checkpoints(self, directory: LogDirectory) -> None:
        self._write_recovery_points(directory)
        self._write_log_starts(directory)
        self._write_high_watermarks(directory)
        self._stale_checkpoints[directory.path] = set()

    def _recovery_point_writer(self, directory: LogDirectory) -> Callable[[], None]:
        return lambda: self._write_recovery_points(directory)

    # -- identity ----------------------------------------------------------------------------------------------

    def read_meta_properties(self) -> dict[str, MetaProperties | None]:
        """Return ``meta.properties`` of every working directory, ``None`` where there is none.

        Raises:
            DamagedFileError: one does not parse.
            OSError: storage failed.
        """
        found: dict[str, MetaProperties | None] = {}
        for log_dir in self.live_log_dirs:
            path = join(log_dir, META_PROPERTIES)
            found[log_dir] = decode_meta_properties(read_all(self._files, path)) if self._files.exists(path) else None
        return found

    def write_meta_properties(self, broker_id: int, cluster_id: str, date: str) -> None:
        """Write ``meta.properties`` into every working directory; ``date`` becomes its comment line."""
        data = encode_meta_properties(MetaProperties(broker_id, cluster_id), date)
        for directory in self._directories:
            if not directory.is_offline:
                try:
                    write_atomically(self._files, join(directory.path, META_PROPERTIES), data)
                except OSError as error:
                    directory.fail(error)

    # -- stopping ----------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Flush and close every log, write all checkpoints, then the clean-stop marker, last. Section 7.

        A directory that is offline, or whose load did not complete, gets no marker.
        """
        for directory in self._directories:
            if directory.load_completed and not directory.is_offline:
                try:
                    self._stop_directory(directory)
                except (OSError, KafkaStorageError) as error:
                    directory.fail(error)
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()

    def _stop_directory(self, directory: LogDirectory) -> None:
        for log in self._logs_in(directory):
            log.close()
        self._write_all_checkpoints(directory)
        directory.check_online()
        marker = join(directory.path, CLEAN_SHUTDOWN_MARKER)
        self._files.create(marker)
        self._files.sync(marker)
        self._files.sync_directory(directory.path)

    def _directory_failed(self, log_dir: str, error: Exception) -> None:
        lock = self._locks.pop(log_dir, None)
        if lock is not None:
            lock.release()
        self._on_dir_failure(log_dir, error)
