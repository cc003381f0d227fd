"""Load a log directory: read the clean-stop marker, the kernel's boot id and the checkpoints, then load each log.

Source: docs/protocol/log-format.md#log-directory-names, #clean-shutdown-marker and #unclean-restart.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from paceline.log.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    STOPPED_SEGMENTS,
    DamagedFileError,
    read_offsets,
)
from paceline.log.damage_file import (
    GAP,
    NO_TOPIC_ID,
    TRUNCATED,
    mark_damage_without_room,
    read_known_damage,
    write_known_damage,
)
from paceline.log.directory_names import (
    DELETED,
    free_path,
    is_being_deleted,
    is_set_aside,
    parse_directory_name,
    parse_future_name,
)
from paceline.log.files import FileKind, Files, is_no_room, join, read_all, write_atomically
from paceline.log.future_logs import origin_of
from paceline.log.load_report import UNCLEAN_RESTART, DirectoryReport
from paceline.log.log_config import LogConfig
from paceline.log.log_directory import LogDirectory
from paceline.log.log_loader import load_log, read_topic_id
from paceline.log.missing_segments import decode_segments
from paceline.log.partition_log import PartitionLog
from paceline.model.errors import KafkaStorageError
from paceline.model.identifiers import TopicPartition

BOOT_ID_FILE = ".kernel_boot_id"

TopicSettings = Callable[[str], LogConfig | None]
"""The settings of a topic by its name, ``None`` when they are not known."""


def write_boot_id(files: Files, directory: LogDirectory, boot_id: str) -> None:
    """Write durably the kernel's boot id, or `UNCLEAN_RESTART` if acknowledged records may be missing.

    On a full disk an empty file stands for `UNCLEAN_RESTART`.

    Raises:
        OSError: storage failed.
    """
    path = join(directory.path, BOOT_ID_FILE)
    try:
        write_atomically(files, path, f"{boot_id}\n".encode())
    except OSError as error:
        if boot_id != UNCLEAN_RESTART or not is_no_room(error) or not files.exists(path):
            raise
        files.truncate(path, 0)
        files.sync(path)


@dataclass(slots=True, eq=False)
class DirectoryLoader:
    """Loads log directories in turn and collects their logs and findings."""

    _files: Files
    _boot_id: str
    logs: dict[TopicPartition, PartitionLog]
    """The loaded logs of all directories; a partition may have a current log in one directory only."""
    _log_class: type[PartitionLog]
    _default_config: LogConfig
    deleted: list[tuple[LogDirectory, str]] = field(default_factory=list, init=False)
    """Directories of deleted logs whose files still exist."""
    futures: list[tuple[PartitionLog, DirectoryReport]] = field(default_factory=list, init=False)
    """The future logs, also of partitions without a current log, with the report of their directory."""
    set_aside: list[str] = field(default_factory=list, init=False)
    """Directories of damaged and stray logs that are kept until an operator has examined them."""
    truncated_after_clean_stop: dict[TopicPartition, str] = field(default_factory=dict, init=False)
    """Logs that lack batches although the stop was clean, with a description."""
    unexplained_gaps: dict[TopicPartition, str] = field(default_factory=dict, init=False)
    """Logs that lack a segment, or have a gap that compaction or a power loss left, with a description."""
    without_topic_id: dict[TopicPartition, str] = field(default_factory=dict, init=False)
    """Logs with records whose topic id is missing after a power loss or cannot be read, with a description."""
    stale_checkpoints: dict[str, set[TopicPartition]] = field(default_factory=dict, init=False)
    """Partitions per directory that its checkpoints list but that were not loaded."""

    def load(
        self,
        directory: LogDirectory,
        report: DirectoryReport,
        settings: TopicSettings,
    ) -> None:
        """Load every log of a locked directory; ``report`` has the findings so far even after an error.

        Raises:
            KafkaStorageError: a partition has two current logs.
            OSError: storage failed; logs loaded before that stay in ``logs``.
        """
        marker = join(directory.path, CLEAN_SHUTDOWN_MARKER)
        listing = join(directory.path, STOPPED_SEGMENTS)
        report.clean_shutdown = self._files.exists(marker)
        if report.clean_shutdown:
            # Rename the marker before anything else: a crash during the load must count as an unclean stop, but must
            # not hide that a segment is missing.
            self._files.rename(marker, listing)
            self._files.sync_directory(directory.path)
        is_listed = self._files.exists(listing)
        stopped = decode_segments(read_all(self._files, listing)) if is_listed else {}
        self._read_boot_id(directory, report)
        recovery_points = self._read_checkpoint(directory, RECOVERY_POINT_CHECKPOINT, report)
        log_starts = self._read_checkpoint(directory, LOG_START_CHECKPOINT, report)
        high_watermarks = self._read_checkpoint(directory, HIGH_WATERMARK_CHECKPOINT, report)
        first_dirty = self._read_checkpoint(directory, CLEANER_CHECKPOINT, report)
        power_lost = report.stored_boot_id not in (None, self._boot_id)
        for name, tp in self._partition_names(directory, report):
            if tp in self.logs and not self._is_move(self.logs[tp], directory, join(directory.path, name)):
                raise KafkaStorageError(
                    f"{tp} is in {self.logs[tp].directory.path} and in {directory.path}: its replica was re-created "
                    "while one of these directories was offline. Remove its log from the directory that was offline, "
                    "then start the broker again"
                )
            config = settings(tp.topic)
            log = self._open(directory, name, tp, report, config or self._default_config)
            loaded = load_log(
                self._files,
                log,
                clean=report.clean_shutdown,
                recovery_point=recovery_points.get(tp),
                log_start_offset=log_starts.get(tp),
                power_lost=power_lost,
                may_have_gaps=config is None or config.compacts or tp in first_dirty,
                stopped_segments=stopped.get(name),
                on_loss=partial(self._note_loss, directory, report, log),
            )
            log.update_high_watermark(high_watermarks.get(tp, 0))
            log.checkpointed_recovery_point = recovery_points.get(tp)
            if log.log_start_offset <= first_dirty.get(tp, -1) <= log.log_end_offset:
                log.compaction.first_dirty_offset = first_dirty[tp]
            report.quarantined.extend(loaded.ignored)
            report.damaged.extend(loaded.damaged)
            if loaded.recovered:
                report.recovered.append(tp)
            if loaded.truncated_bytes:
                report.truncated_bytes[tp] = loaded.truncated_bytes
            if loaded.lost_batches and not report.clean_shutdown:
                report.lost_batches.append(tp)
            found = {kind: f"{log.path} {text}" for kind, text in loaded.damage.items()}
            if loaded.lost_batches and report.clean_shutdown:
                found[TRUNCATED] = (
                    f"recovery removed {loaded.truncated_bytes} damaged bytes from {log.path} after a clean stop"
                )
            if log.topic_id is None and log.size_bytes and (power_lost or log.path in report.damaged):
                found[NO_TOPIC_ID] = f"the topic id is missing from {log.path}"
            if self._is_superseded(tp, log):
                continue
            self._keep_damage(tp, log, found)
            self.logs[tp] = log
        for name, tp in self._future_names(directory):
            config = settings(tp.topic) or self._default_config
            future = self._open(directory, name, tp, report, config)
            loaded = load_log(
                self._files,
                future,
                clean=report.clean_shutdown,
                recovery_point=recovery_points.get(tp),
                log_start_offset=log_starts.get(tp),
                power_lost=power_lost,
                may_have_gaps=True,
            )
            future.checkpointed_recovery_point = recovery_points.get(tp)
            future.compaction.first_dirty_offset = first_dirty.get(tp)
            if loaded.damaged or loaded.damage:
                future.truncate_fully_and_start_at(future.log_start_offset)
            self.futures.append((future, report))
        known = recovery_points.keys() | log_starts.keys() | high_watermarks.keys() | first_dirty.keys()
        here = {tp for tp, log in self.logs.items() if log.directory is directory}
        self.stale_checkpoints[directory.path] = {tp for tp in known if tp not in here}
        if is_listed:
            self._files.remove(listing)
            self._files.sync_directory(directory.path)

    def _is_move(self, log: PartitionLog, directory: LogDirectory, path: str) -> bool:
        """Whether two logs of a partition are the result of an interrupted move from one directory to the other."""
        origins = (origin_of(self._files, path), log.directory.path), (origin_of(self._files, log.path), directory.path)
        return any(origin is not None and origin.directory == other for origin, other in origins)

    def _is_superseded(self, tp: TopicPartition, log: PartitionLog) -> bool:
        """Delete the old log of a move that was interrupted; return whether it is ``log``.

        The moved log is deleted instead if the old log has been used since: the move had failed.
        """
        other = self.logs.get(tp)
        if other is None:
            return False
        origin = origin_of(self._files, log.path)
        moved, old = (log, other) if origin is not None and origin.directory == other.directory.path else (other, log)
        origin = origin_of(self._files, moved.path)
        loser = moved if origin is None or origin.has_grown(old) else old
        # The last process may have died before the sync of its rename: the deletion must not become durable before it.
        self._files.sync_directory((old if loser is moved else moved).directory.path)
        loser.retire()
        target = free_path(self._files, loser.directory.path, tp, DELETED, count(1))
        self._files.rename(loser.path, target)
        self._files.sync_directory(loser.directory.path)
        self.deleted.append((loser.directory, target))
        if loser is other:
            for found in (self.truncated_after_clean_stop, self.unexplained_gaps, self.without_topic_id):
                found.pop(tp, None)
        return loser is log

    def _future_names(self, directory: LogDirectory) -> list[tuple[str, TopicPartition]]:
        listed = (
            (name, parse_future_name(name))
            for name, kind in self._files.list_directory(directory.path)
            if kind is FileKind.DIRECTORY
        )
        return [(name, tp) for name, tp in listed if tp is not None]

    def _note_loss(self, directory: LogDirectory, report: DirectoryReport, log: PartitionLog) -> None:
        """Record durably that a log lacks batches, before recovery removes these batches."""
        if report.clean_shutdown:
            known = read_known_damage(self._files, log.path)
            found = {TRUNCATED: f"recovery removed damaged bytes from {log.path} after a clean stop"}
            self._write_damage(log, known | found)
        elif not report.lost_batches:
            write_boot_id(self._files, directory, UNCLEAN_RESTART)

    def _write_damage(self, log: PartitionLog, found: dict[str, str]) -> None:
        try:
            write_known_damage(self._files, log.path, found)
        except OSError as error:
            if not is_no_room(error) or not mark_damage_without_room(self._files, log.path):
                raise
            log.epochs.mark_dirty()

    def _keep_damage(self, tp: TopicPartition, log: PartitionLog, found: dict[str, str]) -> None:
        """Report the damage that this load or an earlier load has found in a log, and store it for later loads."""
        known = read_known_damage(self._files, log.path)
        if known | found != known:
            self._write_damage(log, known | found)
        for kind, by_partition in (
            (TRUNCATED, self.truncated_after_clean_stop),
            (GAP, self.unexplained_gaps),
            (NO_TOPIC_ID, self.without_topic_id),
        ):
            reason = found.get(kind) or known.get(kind)
            if reason is not None:
                by_partition[tp] = reason

    def _open(
        self,
        directory: LogDirectory,
        name: str,
        tp: TopicPartition,
        report: DirectoryReport,
        config: LogConfig,
    ) -> PartitionLog:
        path = join(directory.path, name)
        topic_id = None
        try:
            topic_id = read_topic_id(self._files, path)
        except DamagedFileError:
            report.damaged.append(path)
        return self._log_class(
            self._files, directory, path, tp, config, topic_id=topic_id, topic_id_written=topic_id is not None
        )

    def _partition_names(self, directory: LogDirectory, report: DirectoryReport) -> list[tuple[str, TopicPartition]]:
        """Return the current logs of a directory; collect deleted logs and logs set aside, report unknown names."""
        found = []
        for name, kind in self._files.list_directory(directory.path):
            path = join(directory.path, name)
            if kind is FileKind.FILE:
                continue
            tp = parse_directory_name(name)
            if kind is FileKind.OTHER:
                report.quarantined.append(path)
            elif is_being_deleted(name):
                self.deleted.append((directory, path))
            elif is_set_aside(name):
                report.set_aside.append(path)
                self.set_aside.append(path)
            elif parse_future_name(name) is not None:
                continue
            elif tp is None:
                report.quarantined.append(path)
            else:
                found.append((name, tp))
        return found

    def _read_boot_id(self, directory: LogDirectory, report: DirectoryReport) -> None:
        path = join(directory.path, BOOT_ID_FILE)
        if self._files.exists(path):
            stored = self._files.read_at(path, 0, 64).decode("ascii", "replace").strip()
            report.stored_boot_id = stored or UNCLEAN_RESTART
        else:
            names = {name for name, _ in self._files.list_directory(directory.path)}
            report.is_new = META_PROPERTIES not in names and not any(map(parse_directory_name, names))
        mark = UNCLEAN_RESTART if report.may_lack_records(self._boot_id) else self._boot_id
        if report.stored_boot_id != mark:
            try:
                write_boot_id(self._files, directory, mark)
            except OSError as error:
                # With the old boot id the next load is at least as careful as this one.
                if not is_no_room(error):
                    raise

    def _read_checkpoint(
        self, directory: LogDirectory, name: str, report: DirectoryReport
    ) -> dict[TopicPartition, int]:
        """Return the offsets of a checkpoint; a damaged checkpoint is reported and counts as missing.

        Without its entries a log has high watermark 0, is recovered from its start after an unclean stop, and starts at
        its first segment.
        """
        path = join(directory.path, name)
        try:
            return {tp: offset for tp, offset in read_offsets(self._files, path).items() if offset >= 0}
        except DamagedFileError:
            report.damaged.append(path)
            return {}
