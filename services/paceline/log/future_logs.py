"""`FutureLogs`: copies of logs that are moving to another log directory of the broker (KIP-113).

A future log lies in ``<topic>-<partition>.<32 hex>-future`` of its new directory. It is a prefix of the current log,
which repeats every truncation, and every advance of its start, on the future log. Segments that take no more appends
are copied as files on another thread (`SegmentCopy`); `copy` appends the batches of the rest.

`swap` puts the future log in place of the current log. Each step is durable before the next:

1. The future log takes over leader epochs, producers and high watermark; the checkpoints of its directory are written.
2. A file ``moved-from`` in the future log names the old directory, and the end and the leader epoch of the old log.
3. The future log gets the plain name. Now the partition has two logs.
4. The old log gets a name that ends in ``-delete``.
5. ``moved-from`` is removed.

If the process dies between 3 and 4, the load finds both logs and keeps the new log, unless the old log has grown since:
then the new directory had failed in step 3, and the broker continued with the old log. Kafka refuses to start with two
logs of a partition.

Source: docs/protocol/log-format.md#future-logs.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from paceline.log.damage_file import read_known_damage, write_known_damage
from paceline.log.directory_names import directory_name
from paceline.log.directory_space import Room
from paceline.log.files import Files, join, read_all, write_atomically
from paceline.log.leader_epoch_cache import LeaderEpochCache
from paceline.log.offset_checkpoints import OffsetCheckpoints
from paceline.log.partition_log import PartitionLog
from paceline.log.segment_copy import SegmentCopy
from paceline.model.errors import CorruptMessageError, InvalidRecordError, KafkaStorageError, LogDirFullError
from paceline.model.identifiers import TopicPartition

MOVED_FROM: Final = "moved-from"
_ROLL_BYTES: Final = 8 << 20
"""An active segment with fewer bytes is copied batch by batch; it takes appends meanwhile."""


class FutureLogs:
    """The future logs of one broker, at most one per partition; a current log has its future log as ``future``."""

    def __init__(
        self,
        files: Files,
        logs: dict[TopicPartition, PartitionLog],
        checkpoints: OffsetCheckpoints,
        delete: Callable[[PartitionLog], None],
    ) -> None:
        """``delete`` renames the directory of a log to one ending in ``-delete``; it raises KafkaStorageError."""
        self._files = files
        self._logs = logs
        self._checkpoints = checkpoints
        self._futures = checkpoints.futures
        self._delete = delete

    def get(self, tp: TopicPartition) -> PartitionLog | None:
        """Return the future log of a partition."""
        return self._futures.get(tp)

    def all(self) -> list[PartitionLog]:
        """Return every future log."""
        return list(self._futures.values())

    def add(self, future: PartitionLog) -> None:
        """Make ``future`` the future log of its partition.

        A future log that was loaded may have other records than the current log, after a power loss: these are removed.
        It begins again if the current log was compacted meanwhile: a removed tombstone may have hidden a copied value.

        Raises:
            KafkaStorageError: its directory has failed.
        """
        current = self._logs[future.topic_partition]
        try:
            if future.compaction.first_dirty_offset != current.compaction.first_dirty_offset:
                future.truncate_fully_and_start_at(current.log_start_offset)
                future.compaction.first_dirty_offset = current.compaction.first_dirty_offset
            _agree(future, current)
        except CorruptMessageError:
            future.truncate_fully_and_start_at(current.log_start_offset)
        future.snapshots.is_paused = True
        current.future = self._futures[future.topic_partition] = future

    def discard(self, tp: TopicPartition) -> None:
        """Forget the future log, if any, and delete it unless its directory is offline.

        Raises:
            KafkaStorageError: its directory has failed just now.
        """
        future = self._forget(tp)
        if future is not None and not future.directory.is_offline:
            self._delete(future)

    def forget_failed(self) -> None:
        """Forget the future logs that are offline, or whose current log is."""
        for tp, future in list(self._futures.items()):
            if future.directory.is_offline or tp not in self._logs or self._logs[tp].directory.is_offline:
                self._forget(tp)

    def _forget(self, tp: TopicPartition) -> PartitionLog | None:
        current = self._logs.get(tp)
        if current is not None:
            current.future = None
        return self._futures.pop(tp, None)

    # -- copying -----------------------------------------------------------------------------------------------

    def begin_segment(self, tp: TopicPartition) -> SegmentCopy | None:
        """Return the copy of the next segment of the current log, None if the future log ends within a segment.

        An active segment of `_ROLL_BYTES` or more is first rolled, so that it takes no more appends.

        Raises:
            LogDirFullError: the new directory has no room for the segment.
            KafkaStorageError: one of the two directories is offline.
        """
        current, future = self._begin(tp)
        source, end_offset = current.local.segments.holding(future.log_end_offset)
        if source.base_offset != future.log_end_offset and future.size_bytes:
            return None
        is_whole = current.local.physical_end == current.log_end_offset
        if end_offset is None and source.size >= _ROLL_BYTES and is_whole and current.directory.space.room < Room.FULL:
            current.roll()
            end_offset = current.log_end_offset
        if end_offset is None or not source.size:
            return None
        future.directory.space.check(uses_reserve=False, size=source.size)
        return SegmentCopy(self._files, current, future, source, end_offset)

    def adopt(self, tp: TopicPartition, copy: SegmentCopy) -> bool:
        """Put a copy of a segment at the end of the future log, unless it is void; return whether it is in place.

        Raises:
            LogDirFullError: the new directory has no room.
            KafkaStorageError: one of the two directories is offline.
        """
        if copy.is_void or not copy.is_current():
            return False
        current, future = self._begin(tp)
        future.adopt(copy.segment, copy.end_offset)
        for epoch, start_offset in current.epochs.entries:
            if start_offset < copy.end_offset and (future.latest_epoch is None or epoch > future.latest_epoch):
                future.assign_leader_epoch(epoch, start_offset)
        future.update_high_watermark(current.high_watermark)
        return True

    def copy(self, tp: TopicPartition, max_bytes: int) -> int:
        """Append the next batches of the current log to the future log; return their bytes.

        At most ``max_bytes`` are copied, but at least one batch. 0 means that the future log has reached the end.

        Raises:
            DamagedLogError: the current log is damaged; the future log is unchanged.
            LogDirFullError: the new directory has no room for records of producers; the future log is unchanged.
            KafkaStorageError: one of the two directories is offline.
            ThrottledError: the process has no file descriptor left.
        """
        current, future = self._begin(tp)
        data = current.read(future.log_end_offset, max_bytes, current.log_end_offset)
        try:
            if data:
                future.append_as_follower(data)
            elif future.log_end_offset < current.log_end_offset:
                # Compaction has removed the last batches, or a truncation within a batch the batch at the end.
                future.extend_to(current.local.physical_end, current.log_end_offset)
        except (CorruptMessageError, InvalidRecordError):
            future.truncate_fully_and_start_at(current.log_start_offset)
            raise
        future.update_high_watermark(current.high_watermark)
        return len(data)

    def _begin(self, tp: TopicPartition) -> tuple[PartitionLog, PartitionLog]:
        """Return both logs, when records may be added to the future log."""
        current, future = self._logs[tp], self._futures[tp]
        current.directory.check_online()
        future.directory.check_online()
        future.directory.space.check(uses_reserve=False)
        future.config = current.config
        if future.log_end_offset < current.log_start_offset:
            future.truncate_fully_and_start_at(current.log_start_offset)
        return current, future

    def is_complete(self, tp: TopicPartition, flush_to: int | None) -> bool:
        """Whether `swap` may replace the current log: same start and end, and the future log is at least as durable.

        It must also be flushed to ``flush_to``, where it first reached the end, because the kernel may have written the
        current log although the broker never flushed it. None means that it never reached the end.
        """
        current, future = self._logs[tp], self._futures[tp]
        return (
            flush_to is not None
            and future.recovery_point >= min(flush_to, future.log_end_offset)
            and future.log_end_offset == current.log_end_offset
            and future.log_start_offset == current.log_start_offset
            and future.recovery_point >= current.recovery_point
            and not future.local.durability.is_flushing
        )

    # -- the swap ----------------------------------------------------------------------------------------------

    def swap(self, tp: TopicPartition) -> PartitionLog:
        """Put the future log, which `is_complete`, in place of the current log, and return it; delete the current log.

        If the old directory fails in the last steps, the swap is valid: the load deletes the old log later.

        Raises:
            LogDirFullError: the new directory has no room. The current log stays, and the move ends if it had begun to
                take over the producers of the current log.
            KafkaStorageError: the new directory has failed; the current log stays.
        """
        current, future = self._logs[tp], self._futures[tp]
        directory = future.directory
        directory.space.check(uses_reserve=False)
        try:
            damage = read_known_damage(self._files, current.path)
            if damage:
                write_known_damage(self._files, future.path, damage)
            future.take_over(current)
            self._checkpoints.write_all(directory)
            content = f"{current.log_end_offset} {current.latest_epoch or 0}\n{current.directory.path}\n"
            write_atomically(self._files, join(future.path, MOVED_FROM), content.encode())
            future.rename_to(join(directory.path, directory_name(tp)))
            self._files.sync_directory(directory.path)
        except (OSError, LogDirFullError) as error:
            failure = directory.error_of(error, tp) if isinstance(error, OSError) else error
            self.discard(tp)
            raise failure from error
        self._forget(tp)
        self._logs[tp] = future
        try:
            self._delete(current)
            self._files.sync_directory(current.directory.path)
        except (KafkaStorageError, OSError) as error:
            current.directory.fail(error)
            return future
        forget_origin(self._files, future)
        return future


class Origin(NamedTuple):
    """Where a log was moved from: directory, end and latest leader epoch of the log that it replaced."""

    directory: str
    end_offset: int
    latest_epoch: int

    def has_grown(self, log: PartitionLog) -> bool:
        """Whether the log in the old directory, although it was replaced, has got records or a leader epoch since."""
        return log.log_end_offset > self.end_offset or (log.latest_epoch or 0) > self.latest_epoch


def origin_of(files: Files, path: str) -> Origin | None:
    """Return the content of ``moved-from`` in the directory of a log, ``None`` if it is missing or does not parse.

    Raises:
        OSError: storage failed.
    """
    file = join(path, MOVED_FROM)
    if not files.exists(file):
        return None
    numbers, _, directory = read_all(files, file).decode(errors="replace").rstrip("\n").partition("\n")
    try:
        end_offset, epoch = (int(number) for number in numbers.split())
    except ValueError:
        return None
    return Origin(directory, end_offset, epoch)


def forget_origin(files: Files, log: PartitionLog) -> None:
    """Remove ``moved-from``: the log in the old directory is certainly deleted."""
    try:
        files.remove(join(log.path, MOVED_FROM))
    except OSError as error:
        log.directory.fail(error)


def _agree(future: PartitionLog, current: PartitionLog) -> None:
    """Remove from ``future`` what ``current`` does not have, by their leader epochs and ends."""
    if future.log_end_offset > current.log_end_offset:
        future.truncate_to(current.log_end_offset)
    end = _common_end(future.epochs, current, future.log_end_offset)
    if end < future.log_end_offset:
        future.truncate_to(end)
    start = current.log_start_offset
    if future.log_end_offset < start or future.log_start_offset > start:
        future.truncate_fully_and_start_at(start)
    elif future.increment_log_start_offset(start):
        future.remove_files(future.remove_segments_below_start())


def _common_end(epochs: LeaderEpochCache, current: PartitionLog, end_offset: int) -> int:
    """Return the offset up to which the epochs of both logs are the same: a record is known by its epoch and offset."""
    for entry in reversed(epochs.entries):
        found = current.end_offset_for_epoch(entry.epoch)
        if found is not None and found[0] == entry.epoch and entry.start_offset < end_offset:
            return min(end_offset, found[1])
        end_offset = min(end_offset, entry.start_offset)
    return end_offset
