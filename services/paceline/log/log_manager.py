"""Manage all logs of a broker: loading and recovery, creation and deletion, checkpoints, the clean-stop marker.

Each log directory holds a lock file while the broker runs, the clean-stop marker, the offset checkpoints, and the boot
id that the kernel had at the last start. The boot id changes with a power loss, not with a crash of the process.
Source: docs/protocol/log-format.md#clean-shutdown-marker, #unclean-restart and #offset-checkpoints.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count

from paceline.log.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    META_PROPERTIES,
    DamagedFileError,
    MetaProperties,
    decode_meta_properties,
    encode_meta_properties,
)
from paceline.log.damage import DamagedLogError
from paceline.log.damage_file import DAMAGE_FILE
from paceline.log.directory_loader import DirectoryLoader, TopicSettings, write_boot_id
from paceline.log.directory_names import (
    DELETED,
    FUTURE,
    directory_name,
    free_path,
    is_being_deleted,
    parse_directory_name,
    parse_future_name,
)
from paceline.log.directory_retry import DirectoryRetry
from paceline.log.directory_space import DirectorySpace, Room
from paceline.log.files import FileKind, FileLock, Files, join, read_all, write_atomically
from paceline.log.future_logs import MOVED_FROM, FutureLogs, forget_origin
from paceline.log.load_report import UNCLEAN_RESTART, DirectoryReport, LoadReport
from paceline.log.log_config import LogConfig
from paceline.log.log_directory import LogDirectory
from paceline.log.missing_segments import encode_segments
from paceline.log.offset_checkpoints import OffsetCheckpoints
from paceline.log.partition_log import PartitionLog
from paceline.log.session_file import SESSION_FILE, SessionFile, decode_session_file
from paceline.log.storage_errors import StorageErrors
from paceline.model.errors import (
    InvalidTopicError,
    KafkaStorageError,
    LogDirFullError,
    LogDirNotFoundError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition

LOCK_FILE = ".lock"
MAX_PREFERRED_DIRS = 20_000


class LogManager:
    """All logs of one broker, over one or more log directories."""

    log_class: type[PartitionLog] = PartitionLog
    """Class of the logs to create and load; a subclass may set its own."""

    def __init__(
        self,
        files: Files,
        log_dirs: Sequence[str],
        default_config: LogConfig,
        *,
        on_dir_failure: Callable[[str, Exception], None],
        boot_id: str = "",
        min_free_bytes: int | None = 0,
        by_space: bool = False,
    ) -> None:
        """Create a manager without logs.

        Args:
            files: the disk.
            log_dirs: paths of the log directories.
            default_config: settings of topics that set nothing.
            on_dir_failure: called with the path and the first storage error of a directory.
            boot_id: changes with each start of the machine.
            min_free_bytes: ``log.dir.min.free.bytes``, see `DirectorySpace`.
            by_space: whether a new log goes to the directory with most free bytes, else to that with fewest logs.
        """
        self._files = files
        self._by_space = by_space
        self.default_config = default_config
        self._boot_id = boot_id
        self._on_dir_failure = on_dir_failure
        self._min_free_bytes = min_free_bytes
        self._directories = [self._new_directory(path.rstrip("/")) for path in log_dirs]
        self._locks: dict[str, FileLock] = {}
        self.sessions_of_dead_processes: frozenset[int] = frozenset()
        """ZooKeeper sessions of earlier processes that held the same locks and are therefore dead."""
        self._sessions: tuple[int, ...] = ()
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._deleted: list[tuple[LogDirectory, str]] = []
        self._unsynced_deletions: dict[str, LogDirectory] = {}
        self._name_counter = count(1)
        self._checkpoints = OffsetCheckpoints(files, self._logs)
        self.futures = FutureLogs(files, self._logs, self._checkpoints, self._delete)
        self._preferred_dirs: dict[TopicPartition, str] = {}
        """Directories in which logs will be created that do not exist yet."""
        self.set_aside: list[str] = []
        """Directories of damaged and stray logs that are kept until an operator has examined them."""
        self.truncated_after_clean_stop: dict[TopicPartition, str] = {}
        """Logs from which recovery removed batches although the stop was clean, with a description."""
        self.unexplained_gaps: dict[TopicPartition, str] = {}
        """Logs that lack a segment, or have a gap that a loss of power or compaction left, with a description."""
        self.without_topic_id: dict[TopicPartition, str] = {}
        """Logs that had records but no topic id when they were loaded, with a description."""

    def _new_directory(self, path: str) -> LogDirectory:
        return LogDirectory(
            path, self._directory_failed, self._write_recovery_points, self._files.space, self._min_free_bytes
        )

    # -- loading -----------------------------------------------------------------------------------------------

    def topics_on_disk(self) -> set[str]:
        """Return the topics that have a log in a readable directory; loads no log, so it can run before `load`."""
        topics = set()
        for directory in self._directories:
            try:
                listed = self._files.list_directory(directory.path)
            except OSError:
                continue
            for name, kind in listed:
                tp = parse_directory_name(name)
                if tp is not None and kind is FileKind.DIRECTORY and not is_being_deleted(name):
                    topics.add(tp.topic)
        return topics

    def load(self, now_ms: int, settings: TopicSettings | None = None) -> LoadReport:
        """Lock every directory, load every log and recover those that need it.

        ``settings`` returns the settings of a topic, or ``None`` while they are not known; the load then assumes that
        the topic may be compacted and keeps all that a compacted topic would keep. Without ``settings`` every topic has
        the defaults. A directory with a storage error is taken offline and reported; the other directories are loaded.
        In a directory that is short of room, old records are deleted before this method returns.

        Raises:
            KafkaStorageError: another process uses a directory, or a partition has two current logs.
        """
        report = LoadReport()
        loader = DirectoryLoader(self._files, self._boot_id, self._logs, self.log_class, self.default_config)
        for directory in self._directories:
            found = DirectoryReport(directory.path)
            report.directories.append(found)
            try:
                self._lock(directory)
                directory.measure_space()
                if directory.space.room is Room.FULL:
                    self._remove_deleted(directory)
                loader.load(directory, found, settings or (lambda _topic: self.default_config))
                self._lower_recovery_points(directory)
                directory.load_completed = True
                if directory.space.room is not Room.ROOMY:
                    self._apply_retention(directory, now_ms, settings or (lambda _topic: self.default_config))
            except OSError as error:
                found.error = error
                directory.fail(error)
        self._take_over(loader)
        for future, found in loader.futures:
            self._resume_move(future, found)
        self._forget_origins()
        self._read_sessions()
        return report

    def begin_retry(self, path: str) -> DirectoryRetry | None:
        """Return the work that loads an offline directory again, None for a directory that is online.

        Raises:
            LogDirNotFoundError: there is no such directory.
        """
        directory = next((one for one in self._directories if one.path == path), None)
        if directory is None:
            raise LogDirNotFoundError(f"there is no log directory {path!r}, only {', '.join(self.log_dirs)}")
        if not directory.is_offline:
            return None
        loader = DirectoryLoader(self._files, self._boot_id, {}, self.log_class, self.default_config)
        return DirectoryRetry(self._files, self._new_directory(path), LOCK_FILE, loader, self._boot_id)

    def finish_retry(self, retry: DirectoryRetry) -> None:
        """Use the directory and the logs that `DirectoryRetry.run` has loaded.

        Raises:
            KafkaStorageError: a partition has a log in another directory by now, or a log lacks records.
        """
        directory, loader = retry.directory, retry.loader
        old = next(one for one in self._directories if one.path == directory.path)
        found = loader.logs
        twice = [tp for tp in found if tp in self._logs and self._logs[tp].directory is not old]
        # This process still knows the ends of the logs: a shorter log lacks records that were in the page cache.
        ends = {log.topic_partition: log.log_end_offset for log in self._checkpoints.logs_in(old)}
        shorter = [tp for tp, end in ends.items() if end > (found[tp].log_end_offset if tp in found else 0)]
        try:
            if shorter:
                write_boot_id(self._files, directory, UNCLEAN_RESTART)
                raise KafkaStorageError(f"restart the broker to use {directory.path}: {shorter} lack records")
            if twice or not old.is_offline:
                raise KafkaStorageError(f"{directory.path} is not used: {twice} are in another directory")
        except (OSError, KafkaStorageError) as error:
            retry.give_up()
            raise KafkaStorageError(str(error)) from error
        for log in self._checkpoints.logs_in(old):
            del self._logs[log.topic_partition]
        self._directories[self._directories.index(old)] = directory
        assert retry.lock is not None
        self._locks[directory.path] = retry.lock
        self._take_over(loader)
        directory.measure_space()

    def _take_over(self, loader: DirectoryLoader) -> None:
        """Add the logs and the findings of a load."""
        self._logs |= loader.logs
        self._deleted += loader.deleted
        self.set_aside += loader.set_aside
        self.truncated_after_clean_stop |= loader.truncated_after_clean_stop
        self.unexplained_gaps |= loader.unexplained_gaps
        self.without_topic_id |= loader.without_topic_id
        self._checkpoints.stale |= loader.stale_checkpoints

    def _remove_deleted(self, directory: LogDirectory) -> None:
        """Remove the directories of deleted logs before the logs are loaded: the load itself needs some room."""
        for name, kind in self._files.list_directory(directory.path):
            if kind is FileKind.DIRECTORY and is_being_deleted(name):
                self._files.remove_tree(join(directory.path, name))

    def _apply_retention(self, directory: LogDirectory, now_ms: int, settings: TopicSettings) -> None:
        """Delete what the topics' settings do not retain, also the files, which no request reads yet."""
        for log in self._checkpoints.logs_in(directory):
            config = settings(log.topic_partition.topic)
            if config is None or not config.deletes:
                continue
            try:
                offset = log.retained_from(now_ms)
                if offset is not None and log.increment_log_start_offset(offset):
                    log.remove_files(log.remove_segments_below_start())
            except (KafkaStorageError, DamagedLogError):
                continue
        self.checkpoint_log_start_offsets()
        directory.measure_space()

    def measure_space(self, now_ms: int) -> dict[str, DirectorySpace]:
        """Measure and return the free space of the online directories by path; ``now_ms`` is monotonic."""
        for directory in self._directories:
            directory.measure_space(now_ms)
        return self.spaces

    @property
    def spaces(self) -> dict[str, DirectorySpace]:
        """Free space of the online directories by path."""
        return {directory.path: directory.space for directory in self._directories if not directory.is_offline}

    def _resume_move(self, future: PartitionLog, report: DirectoryReport) -> None:
        """Go on with a move that the last process had begun, if the future log still belongs to the current log."""
        tp, current = future.topic_partition, self._logs.get(future.topic_partition)
        ids = {future.topic_id, None if current is None else current.topic_id} - {None}
        try:
            if current is None or current.directory.is_offline:
                report.quarantined.append(future.path)
            elif self.futures.get(tp) is not None or future.directory is current.directory or len(ids) > 1:
                self._delete(future)
            else:
                self.futures.add(future)
        except KafkaStorageError:
            return  # The directory is offline; the next process finds the future log again.

    def _forget_origins(self) -> None:
        """Finish the moves that the last process had finished but for the removal of ``moved-from``."""
        if 1 < len(self._directories) == len(self.live_log_dirs):
            for log in self._logs.values():
                if self._files.exists(join(log.path, MOVED_FROM)):
                    forget_origin(self._files, log)

    def _read_sessions(self) -> None:
        held = {lock.identity for lock in self._locks.values()}
        for log_dir in self._locks:
            path = join(log_dir, SESSION_FILE)
            try:
                found = decode_session_file(path, read_all(self._files, path)) if self._files.exists(path) else None
            except (OSError, DamagedFileError):
                continue  # Without this proof the broker waits until ZooKeeper has expired the old session.
            if found is not None and found.proves_death(self._boot_id, held):
                self.sessions_of_dead_processes |= set(found.sessions)
                self._sessions = (*self._sessions, *(one for one in found.sessions if one not in self._sessions))

    def remember_session(self, session_id: int) -> None:
        """Write a session id of this process to disk before the broker registers with that session.

        The next process on these directories then knows that the registration is left over. The file is not synced,
        because it proves nothing after the kernel has restarted.
        """
        self._sessions = (*(one for one in self._sessions if one != session_id), session_id)
        locks = tuple(sorted(lock.identity for lock in self._locks.values()))
        content = SessionFile(self._boot_id, locks, self._sessions).encode()
        for directory in self._directories:
            if directory.is_offline:
                continue
            try:
                write_atomically(self._files, join(directory.path, SESSION_FILE), content, durable=False)
            except OSError as error:
                directory.error_of(error, SESSION_FILE)

    def _lower_recovery_points(self, directory: LogDirectory) -> None:
        """Write the recovery points again if a log ends below its checkpointed recovery point.

        With the old recovery point a later recovery would treat the next appends as flushed, and not check them.
        """
        if any(
            log.log_end_offset < (log.checkpointed_recovery_point or 0) for log in self._checkpoints.logs_in(directory)
        ):
            self._checkpoints.write_recovery_points(directory)

    def _lock(self, directory: LogDirectory) -> None:
        self._files.make_directory(directory.path)
        lock = self._files.lock(join(directory.path, LOCK_FILE))
        if lock is None:
            raise KafkaStorageError(f"log directory {directory.path} is locked by another process")
        self._locks[directory.path] = lock

    def unclean_restart_noted(self) -> None:
        """Replace the unclean-restart mark by the boot id, once the controller knows of the unclean restart.

        Until then the mark stays on disk: a stop in between, even a clean stop, must not hide the loss.
        """
        for directory in self._directories:
            if directory.is_offline:
                continue
            try:
                write_boot_id(self._files, directory, self._boot_id)
            except OSError as error:
                directory.error_of(error, "boot id")

    # -- logs --------------------------------------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> PartitionLog | None:
        """Return the log of a partition."""
        return self._logs.get(tp)

    def all_logs(self) -> list[PartitionLog]:
        """Return every log, including the logs of offline directories."""
        return list(self._logs.values())

    @property
    def log_dirs(self) -> list[str]:
        """Paths of the configured directories."""
        return [directory.path for directory in self._directories]

    @property
    def live_log_dirs(self) -> list[str]:
        """Paths of the directories that are online."""
        return [directory.path for directory in self._directories if not directory.is_offline]

    def get_or_create(
        self, tp: TopicPartition, topic_id: str | None, is_new: bool, config: LogConfig | None = None
    ) -> PartitionLog:
        """Return the partition's log; create it if it does not exist, in its preferred or the emptiest directory.

        ``is_new`` means that the controller has just created the replica, so no directory can hold its log yet.
        Otherwise a missing log is not created while a directory is offline, because that directory may hold the log.
        Creating a log makes one directory; the first append creates its files.

        Raises:
            InconsistentTopicIdError: the log belongs to another topic of the same name.
            KafkaStorageError: the log's directory is offline, every directory is offline, or the missing log may lie in
                an offline directory.
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
        preferred = self._preferred_dirs.pop(tp, None)
        directory = next((one for one in live if one.path == preferred), None) or self._emptiest(live)
        path = join(directory.path, directory_name(tp))
        log = self._logs[tp] = self._create(directory, path, tp, topic_id, config or self.default_config)
        return log

    def _emptiest(self, live: list[LogDirectory]) -> LogDirectory:
        if self._by_space:
            return max(live, key=lambda candidate: candidate.space.disk.free_bytes if candidate.space.disk else 0)
        counts = dict.fromkeys((directory.path for directory in live), 0)
        if len(live) > 1:
            for other in (*self._logs.values(), *self.futures.all()):
                if other.directory.path in counts:
                    counts[other.directory.path] += 1
        return min(live, key=lambda candidate: counts[candidate.path])

    def prefer(self, tp: TopicPartition, log_dir: str) -> None:
        """Create the log of a partition in this directory, when its replica is created in the life of this process.

        The latest `MAX_PREFERRED_DIRS` are remembered, until their topics are deleted.
        """
        self._preferred_dirs.pop(tp, None)
        self._preferred_dirs[tp] = log_dir
        if len(self._preferred_dirs) > MAX_PREFERRED_DIRS:
            del self._preferred_dirs[next(iter(self._preferred_dirs))]

    def forget_preferred(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forget the preferred directories of deleted partitions."""
        for tp in topic_partitions:
            self._preferred_dirs.pop(tp, None)

    def begin_move(self, tp: TopicPartition, log_dir: str) -> PartitionLog:
        """Create the empty future log of a partition in another directory, and return it; see `FutureLogs`.

        Raises:
            InvalidTopicError: the name of the directory would be too long.
            KafkaStorageError: the directory is offline or fails.
        """
        current = self._logs[tp]
        directory = next(one for one in self._directories if one.path == log_dir)
        directory.check_online()
        path = free_path(self._files, directory.path, tp, FUTURE, self._name_counter)
        if parse_future_name(path.rpartition("/")[2]) != tp:
            raise InvalidTopicError(f"the name of {tp} is too long for a move to another log directory")
        future = self._create(directory, path, tp, current.topic_id, current.config)
        future.truncate_fully_and_start_at(current.log_start_offset)
        self.futures.add(future)
        if future.compaction.first_dirty_offset is not None:
            self.checkpoint_cleaner_offsets()
        return future

    def _create(
        self, directory: LogDirectory, path: str, tp: TopicPartition, topic_id: str | None, config: LogConfig
    ) -> PartitionLog:
        try:
            if tp in self._checkpoints.stale.get(directory.path, ()):
                # After a crash the new log must not be loaded with the checkpointed offsets of the deleted log.
                self._checkpoints.write_all(directory)
            self._files.make_directory(path)
        except OSError as error:
            raise directory.error_of(error, tp) from error
        log = self.log_class(self._files, directory, path, tp, config, topic_id=topic_id)
        log.begin_with([], 0, 0)
        return log

    def delete(self, tp: TopicPartition) -> None:
        """Rename the partition's directory to one ending in ``-delete`` and drop the log from memory.

        `purge_deleted` removes the files. The rename is durable only after `sync_deletions`, so that many deletions
        share one fsync.

        Raises:
            UnknownTopicOrPartitionError: there is no such log.
            KafkaStorageError: its directory is offline or fails.
        """
        self._delete(self._detach_log(tp))

    def _delete(self, log: PartitionLog) -> None:
        self._deleted.append((log.directory, self._rename_away(log, DELETED)))
        self._unsynced_deletions[log.directory.path] = log.directory

    def set_log_aside(self, tp: TopicPartition, why: str) -> str:
        """Rename the partition's directory durably to one ending in ``-why`` and drop the log; return the new path.

        Only an operator removes the directory. ``why`` is `DAMAGED` or `STRAY`.

        Raises:
            UnknownTopicOrPartitionError: there is no such log.
            KafkaStorageError: its directory is offline or fails.
        """
        log = self._detach_log(tp)
        target, directory = self._rename_away(log, why), log.directory
        with StorageErrors(directory, tp, in_steps=True):
            self._files.sync_directory(directory.path)
        self.set_aside.append(target)
        return target

    def forget_truncation(self, tp: TopicPartition) -> None:
        """Stop reporting that a log was truncated after a clean stop: it follows a leader now, outside the ISR.

        Raises:
            KafkaStorageError: its directory is offline or fails.
        """
        if self.truncated_after_clean_stop.pop(tp, None) is None:
            return
        log = self._logs[tp]
        log.directory.check_online()
        with StorageErrors(log.directory, tp, in_steps=True), suppress(FileNotFoundError):
            self._files.remove(join(log.path, DAMAGE_FILE))

    def _detach_log(self, tp: TopicPartition) -> PartitionLog:
        log = self._logs.get(tp)
        if log is None:
            raise UnknownTopicOrPartitionError(f"{tp} has no log here")
        log.directory.check_online()
        # Before the current log: after a crash in between, the controller deletes the rest.
        self.futures.discard(tp)
        return log

    def _rename_away(self, log: PartitionLog, suffix: str) -> str:
        tp, directory = log.topic_partition, log.directory
        directory.check_online()
        log.retire()
        target = free_path(self._files, directory.path, tp, suffix, self._name_counter)
        with StorageErrors(directory, tp, in_steps=True):
            self._files.rename(log.path, target)
        if self._logs.get(tp) is log:
            del self._logs[tp]
            self.truncated_after_clean_stop.pop(tp, None)
            self.unexplained_gaps.pop(tp, None)
            self.without_topic_id.pop(tp, None)
        self._checkpoints.stale.setdefault(directory.path, set()).add(tp)
        return target

    def sync_deletions(self) -> None:
        """Make deletions durable; call it before a response confirms them. A directory that fails is taken offline.

        Without the sync a power loss could bring a deleted log back. That log would belong to no topic, and a new topic
        of the same name could not create its log.
        """
        unsynced, self._unsynced_deletions = self._unsynced_deletions, {}
        for directory in unsynced.values():
            if directory.is_offline:
                continue
            try:
                self._files.sync_directory(directory.path)
            except OSError as error:
                directory.fail(error)

    def purge_deleted(self) -> int:
        """Remove the files of deleted logs and return the number of logs.

        Call it ``file.delete.delay.ms`` after `delete`.
        """
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
        """Write the high watermarks of all logs, also of logs that are neither leader nor follower at the moment."""
        self._checkpoint_all(self._checkpoints.write_high_watermarks)

    def checkpoint_recovery_points(self) -> None:
        """Write every log's recovery point, after its leader epochs."""
        self._checkpoint_all(self._checkpoints.write_recovery_points)

    def checkpoint_log_start_offsets(self) -> bool:
        """Write the log start offset of every log whose first segment's file name does not durably give it.

        Return False if a disk had no room for them.
        """
        without_room = self._checkpoint_all(self._checkpoints.write_log_starts)
        for directory in self._directories:
            directory.log_starts_durable = directory not in without_room
        return not without_room

    def checkpoint_cleaner_offsets(self) -> None:
        """Write the first dirty offset of each compacted log."""
        self._checkpoint_all(self._checkpoints.write_cleaner_offsets)

    def _checkpoint_all(self, write: Callable[[LogDirectory], None]) -> list[LogDirectory]:
        """Write a checkpoint in each directory; return those without room for it, which keep their old one."""
        without_room = []
        for directory in self._directories:
            if directory.load_completed and not directory.is_offline:
                try:
                    write(directory)
                except OSError as error:
                    if isinstance(directory.error_of(error, "checkpoint"), LogDirFullError):
                        without_room.append(directory)
        return without_room

    def _write_recovery_points(self, directory: LogDirectory) -> None:
        self._checkpoints.write_recovery_points(directory)

    # -- identity ----------------------------------------------------------------------------------------------

    def read_meta_properties(self) -> dict[str, MetaProperties | None]:
        """Return the ``meta.properties`` of every online directory, ``None`` where the file is missing.

        Raises:
            DamagedFileError: a file does not parse.
            OSError: storage failed.
        """
        found: dict[str, MetaProperties | None] = {}
        for log_dir in self.live_log_dirs:
            path = join(log_dir, META_PROPERTIES)
            try:
                data = read_all(self._files, path) if self._files.exists(path) else None
                found[log_dir] = None if data is None else decode_meta_properties(data)
            except DamagedFileError as error:
                raise DamagedFileError(f"{path}: {error}") from None
        return found

    def write_meta_properties(self, broker_id: int, cluster_id: str, date: str) -> None:
        """Write ``meta.properties`` into every online directory; ``date`` becomes its comment line."""
        data = encode_meta_properties(MetaProperties(broker_id, cluster_id), date)
        for directory in self._directories:
            if not directory.is_offline:
                try:
                    write_atomically(self._files, join(directory.path, META_PROPERTIES), data)
                except OSError as error:
                    directory.fail(error)

    # -- stopping ----------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Flush and close every log, write all checkpoints, and create the clean-stop marker last.

        A directory that is offline or was not loaded completely gets no marker.
        """
        for directory in self._directories:
            if directory.load_completed and not directory.is_offline:
                try:
                    self._stop_directory(directory)
                except OSError as error:
                    directory.error_of(error, "clean stop")
                except LogDirFullError:
                    continue  # without the marker the next load recovers the logs
                except KafkaStorageError as error:
                    directory.fail(error)
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()

    def _stop_directory(self, directory: LogDirectory) -> None:
        logs = self._checkpoints.logs_in(directory)
        for log in logs:
            log.close()
        self._checkpoints.write_all(directory)
        directory.check_online()
        # An empty marker of a disk that became full would hide the loss of a segment.
        write_atomically(self._files, join(directory.path, CLEAN_SHUTDOWN_MARKER), encode_segments(logs))

    def _directory_failed(self, log_dir: str, error: Exception) -> None:
        lock = self._locks.pop(log_dir, None)
        if lock is not None:
            lock.release()
        self._files.forget(log_dir)
        self._on_dir_failure(log_dir, error)
