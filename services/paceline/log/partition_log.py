"""One replica's log: its segments, offsets, leader epochs and producer state.

Offsets: ``log_start_offset`` <= ``high_watermark`` <= ``log_end_offset``; the last two are exclusive. A log has one
owner at a time and holds no locks; reads and the fsync part of a flush may run on other threads.

Invariants:
 * a reader sees a batch only after the whole batch was written; a refused append changes nothing;
 * after the first storage error the directory is offline: every later call raises, and no operation is retried;
 * on a full disk an append raises LogDirFullError, writes nothing, and may be retried;
 * epochs and index entries are durable before the recovery point passes the offsets that they describe.

Source: docs/protocol/log-format.md. Read `PartitionLog.append_as_leader` first.
"""

from collections.abc import Callable

from paceline.log.append_info import AppendInfo
from paceline.log.batch_validation import check_replicated_batches, prepare_client_batch
from paceline.log.checkpoint import PARTITION_METADATA, encode_partition_metadata
from paceline.log.compaction.log_compaction import LogCompaction
from paceline.log.durability import FlushTask
from paceline.log.files import Files, is_no_room, join, write_atomically
from paceline.log.local_log import LocalLog
from paceline.log.log_config import LogConfig, TimestampType
from paceline.log.log_directory import LogDirectory
from paceline.log.read_place import ReadPlace
from paceline.log.record_batch import MAX_INT64, NO_TIMESTAMP, stamp
from paceline.log.retention import retained_from
from paceline.log.segment import Segment
from paceline.log.storage_errors import StorageErrors
from paceline.model.errors import (
    CorruptMessageError,
    InconsistentTopicIdError,
    InvalidRecordError,
    KafkaStorageError,
    LogDirFullError,
    OffsetOutOfRangeError,
)
from paceline.model.identifiers import TopicPartition


class PartitionLog:
    """One replica's log in its directory. `LogManager` creates and loads the logs."""

    def __init__(
        self,
        files: Files,
        directory: LogDirectory,
        path: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: str | None = None,
        topic_id_written: bool = False,
    ) -> None:
        self._files = files
        self.local = LocalLog(files, directory, path, topic_partition, config)
        """The log's files and their state; apart from this class only the loader changes them."""
        self._storage = StorageErrors(directory, topic_partition)
        self._reads = StorageErrors(directory, topic_partition, only_reads=True)
        self._steps = StorageErrors(directory, topic_partition, in_steps=True)
        self.compaction = LogCompaction(self.local, self._storage, self._steps)
        self.topic_partition = topic_partition
        self.path = path
        self.directory = directory
        """The log directory that contains ``path``."""
        self.epochs = self.local.epochs
        self.producers = self.local.producers
        self.snapshots = self.local.snapshots
        self.topic_id = topic_id
        self._topic_id_written = topic_id_written
        self.checkpointed_recovery_point: int | None = None
        """Recovery point of this log in the directory's checkpoint, ``None`` when the checkpoint does not list it."""
        self.future: PartitionLog | None = None
        """The copy of this log that replaces it at the end of a move to another directory, see `FutureLogs`."""
        self.truncations = 0
        """Number of truncations so far; each makes a `SegmentCopy` void."""

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """Current settings; new index settings apply to the active segment only while it is empty."""
        return self.local.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        local = self.local
        local.config = config
        if len(local.segments) and not local.segments.active.size:
            local.segments.active.set_index_limits(config.index_interval_bytes, config.segment_index_bytes)

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
        return self.local.start_offset

    @property
    def names_its_start(self) -> bool:
        """Whether the first segment's name would still give the log start offset after a power loss.

        It would not while the removal of earlier segments is not durable, because those segments could come back. It
        would not before the first segment's first batch is durable, because the segment's file could be missing.
        """
        local = self.local
        if not local.start_offset:
            return True
        is_there = local.segments.bases[0] == local.start_offset < local.durability.recovery_point
        return is_there and not local.durability.removals_unsynced

    @property
    def log_end_offset(self) -> int:
        """LEO: the offset the next record gets."""
        return self.local.end_offset

    @property
    def high_watermark(self) -> int:
        """HW, exclusive: records below are committed."""
        return self.local.high_watermark

    @property
    def recovery_point(self) -> int:
        """First offset that may not be durable."""
        return self.local.durability.recovery_point

    @property
    def segment_count(self) -> int:
        """Number of segments, the active one included."""
        return len(self.local.segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self.local.segments.size_bytes

    @property
    def segments(self) -> list[Segment]:
        """The segments, ascending; the last one is active."""
        return list(self.local.segments)

    @property
    def latest_epoch(self) -> int | None:
        """Largest leader epoch the log knows, ``None`` when there is none."""
        return self.epochs.latest_epoch

    def update_high_watermark(self, high_watermark: int) -> int:
        """Set the high watermark, bounded by log start and log end; return the new value."""
        local = self.local
        local.high_watermark = max(local.start_offset, min(high_watermark, local.end_offset))
        return local.high_watermark

    def increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start offset (delete-records, or following the leader); return whether it moved.

        `remove_segments_below_start` removes the segments. A high watermark below ``offset`` is raised to it.

        Raises:
            OffsetOutOfRangeError: ``offset`` is beyond the log end.
        """
        local = self.local
        if offset > local.end_offset:
            raise self._out_of_range(offset)
        if offset <= local.start_offset:
            return False
        local.start_offset = offset
        local.high_watermark = max(local.high_watermark, offset)
        self.epochs.truncate_from_start(offset)
        if self.future is not None:
            self._repeat(self.future, lambda future: future.follow_start(offset))
        return True

    def retained_from(self, wall_ms: int) -> int | None:
        """Return the first offset that the topic's settings retain, ``None`` when they retain all records.

        A log always has a segment: if not even the active segment is retained, it is first rolled durably. Without room
        for the roll the active segment stays until the removal of the others has made room.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
            DamagedLogError: a segment's timestamps cannot be read.
        """
        local = self.local
        local.check_online()
        with self._storage:
            # After a truncation within a batch the next append may begin below the log end, in the active segment.
            end = local.end_offset if local.physical_end == local.end_offset else None
            segments = local.segments.extents(end)
            offset = retained_from(segments, self.config, self.size_bytes, local.high_watermark, wall_ms)
            if offset is not None and offset == end:
                active_from = local.segments.active.base_offset
                try:
                    local.roll_durably(offset)
                except OSError as error:
                    if not is_no_room(error):
                        raise
                    offset = active_from
        return offset

    def remove_segments_below_start(self) -> list[str]:
        """Remove the segments that lie wholly below the log start offset; return their files, renamed to ``.deleted``.

        The caller removes the files with `remove_files` after ``file.delete.delay.ms``, so that reads in progress can
        finish. Files that are left over are removed by the next load.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        local = self.local
        local.check_online()
        renamed: list[str] = []
        with self._steps:
            while (segment := local.segments.pop_below(local.start_offset)) is not None:
                renamed.extend(segment.rename_deleted())
                self.snapshots.remove(segment.base_offset)
        if renamed:
            # A flush in progress may fail to find these files, so it must not advance the recovery point.
            local.durability.generation += 1
            local.truncation_count += 1
            local.durability.names_dirty = local.durability.removals_unsynced = True
        return renamed

    def remove_files(self, paths: list[str]) -> None:
        """Remove files that `remove_segments_below_start` returned.

        Missing files are not an error: they were removed together with a deleted log.
        """
        try:
            for path in paths:
                if self._files.exists(path):
                    self._files.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.directory.fail(error)

    def assign_topic_id(self, topic_id: str) -> None:
        """Set the topic id, and write it at once if the log has records, otherwise before the first append.

        Raises:
            InconsistentTopicIdError: the log belongs to another topic of the same name.
            KafkaStorageError: storage failed; the directory is offline.
        """
        if self.topic_id is None:
            self.topic_id = topic_id
            self._topic_id_written = False
            if self.size_bytes:
                # This replica now becomes leader or follower; the next process must know the topic of its records.
                with self._storage:
                    self._write_topic_id(durable=True)
        elif self.topic_id != topic_id:
            raise InconsistentTopicIdError(f"{self.topic_partition} has topic id {self.topic_id}, not {topic_id}")

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Add ``epoch`` with its ``start_offset`` to the leader epoch cache; the next flush makes it durable."""
        self.epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """Return (largest epoch not above ``epoch``, its exclusive end offset), ``None`` when unknown."""
        return self.epochs.end_offset(epoch, self.local.end_offset)

    # -- appending ---------------------------------------------------------------------------------------------

    def append_as_leader(self, data: bytes, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Check a producer's single batch, assign offsets and the leader epoch, and write it.

        ``now_ms`` is wall clock. A duplicate of one of the producer's last five batches is not written again; the
        result has the offsets of the first append.

        Raises:
            PacelineError: an error of `prepare_client_batch`; nothing is written.
            InvalidProducerEpochError, OutOfOrderSequenceNumberError: the batch of an idempotent producer has an old
                epoch or a sequence gap; nothing is written.
            LogDirFullError: the disk is full; nothing is written.
            KafkaStorageError: storage failed; the directory is offline.
        """
        local = self.local
        local.check_online()
        prepared = prepare_client_batch(data, self.config, now_ms)
        header = prepared.header
        if header.producer_id >= 0:
            repeated = self.producers.find_duplicate(header)
            if repeated is not None:
                return AppendInfo(
                    repeated.first_offset,
                    repeated.last_offset,
                    self._append_time(repeated.timestamp),
                    local.start_offset,
                    duplicate=True,
                )
            self.producers.check(header)
        base_offset = local.end_offset
        if base_offset > MAX_INT64 - header.record_count:
            raise InvalidRecordError(f"{self.topic_partition} has no offsets left")
        header = header._replace(base_offset=base_offset, max_timestamp=prepared.max_timestamp.timestamp)
        stamp(prepared.buffer, base_offset, leader_epoch)
        with self._storage:
            self._write_topic_id()
            local.write_leader_batch(prepared, header, now_ms)
        self.directory.note_append(prepared.size)
        self.epochs.assign(leader_epoch, base_offset)
        if header.producer_id >= 0:
            self.producers.update(header)
        self._flush_if_due()
        return AppendInfo(
            base_offset,
            header.last_offset,
            self._append_time(header.max_timestamp),
            local.start_offset,
        )

    def append_as_follower(self, data: bytes | memoryview, now_ms: int | None = None) -> AppendInfo | None:
        """Write the leader's batches unchanged; ignore an incomplete batch at the end.

        Return ``None`` when there is no complete batch. ``now_ms``, wall clock, is used only to roll by time when the
        records have no timestamps.

        Raises:
            CorruptMessageError: a checksum, length, magic or marker is wrong; nothing is written.
            InvalidRecordError: the offsets do not continue the log; nothing is written.
            LogDirFullError: the disk is full; the batches below the log end offset are written.
            KafkaStorageError: storage failed; the directory is offline.
        """
        local = self.local
        local.check_online()
        is_empty = local.end_offset == local.start_offset and not self.size_bytes
        headers = check_replicated_batches(data, local.end_offset, 0 if is_empty else local.physical_end)
        if not headers:
            return None
        first, last = headers[0], headers[-1]
        with self._storage:
            if first.base_offset < local.physical_end:
                local.rebase(first.base_offset)
            self._write_topic_id()
            local.write_follower_batches(memoryview(data), headers, now_ms)
        self.directory.note_append(len(data))
        self._flush_if_due()
        return AppendInfo(
            first.base_offset,
            last.last_offset,
            last.max_timestamp if last.is_log_append_time else NO_TIMESTAMP,
            local.start_offset,
        )

    def _append_time(self, timestamp: int) -> int:
        is_append_time = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        return timestamp if is_append_time else NO_TIMESTAMP

    def _write_topic_id(self, *, durable: bool = False) -> None:
        """Write the topic id unless it is written; without ``durable`` the next flush syncs it and no append waits."""
        if self.topic_id is not None and not self._topic_id_written:
            data = encode_partition_metadata(self.topic_id)
            write_atomically(self._files, join(self.path, PARTITION_METADATA), data, durable=durable)
            durability = self.local.durability
            self._topic_id_written = durability.topic_id_unsynced = durability.names_dirty = True

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool = True) -> bytes:
        """Return whole batches that end below ``limit_offset``, starting with the batch that holds ``offset``.

        At most ``max_bytes`` are returned; with ``at_least_one`` the first batch is returned even if it is larger. A
        read never crosses a segment boundary, so a result shorter than ``max_bytes`` may have batches after it.

        Raises:
            OffsetOutOfRangeError: ``offset`` is below the log start or above the log end.
            DamagedLogError: the bytes at ``offset`` differ from those written. A batch whose checksum does not match is
                never returned.
            KafkaStorageError: storage failed; the directory is offline.
            ThrottledError: the process has no file descriptor left.
        """
        local = self.local
        local.check_online()
        end = local.end_offset
        if not local.start_offset <= offset <= end:
            raise self._out_of_range(offset)
        limit = min(limit_offset, end)
        if offset >= limit:
            return b""
        with self._reads:
            data = local.segments.read(offset, max_bytes, limit, at_least_one, self.epochs.epoch_of)
            if not data and at_least_one:
                local.segments.check_end(offset, limit, local.end_offset)
            return data

    def bytes_below(self, limit_offset: int, place: ReadPlace) -> int | None:
        """Return the bytes that `read` would return at ``place`` without a limit of bytes; usually reads no file.

        Return None if no append can add to them: the segment is complete.

        Raises:
            OffsetOutOfRangeError: the place is below the log start or above the log end.
            DamagedLogError: bytes in the file are not a batch.
            KafkaStorageError: storage failed; the directory is offline.
            ThrottledError: the process has no file descriptor left.
        """
        local = self.local
        local.check_online()
        if not local.start_offset <= place.offset <= local.end_offset:
            raise self._out_of_range(place.offset)
        with self._reads:
            return place.bytes_below(local, min(limit_offset, local.end_offset))

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record with a timestamp of at least ``timestamp_ms``.

        Return ``None`` when there is no such record below ``limit_offset``.

        Raises:
            DamagedLogError: bytes in the file are not a batch.
            KafkaStorageError: storage failed; the directory is offline.
            ThrottledError: the process has no file descriptor left.
        """
        local = self.local
        local.check_online()
        with self._reads:
            found = local.segments.find_timestamp(timestamp_ms, local.start_offset, limit_offset)
            return None if found is None else (found.offset, found.timestamp)

    # -- truncation --------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Remove the records from ``offset`` on; the log end offset becomes ``offset``.

        The file is truncated at the start of the batch with ``offset``. If ``offset`` is at or above the log end, only
        leader epochs without records are removed. A recovery point in the checkpoint above ``offset`` is first lowered
        durably.

        Raises:
            DamagedLogError: the batch to remove was not found, or the log still ends above ``offset``; the log may be
                partly truncated and must be rebuilt.
            LogDirFullError: the disk is full; nothing was removed.
            KafkaStorageError: storage failed; the directory is offline.
        """
        local = self.local
        local.check_online()
        self.truncations += 1
        if offset >= local.end_offset:
            self.epochs.truncate_from_end(local.end_offset)
            return
        self._lower_recovery_point(offset)
        with self._steps:
            if local.segments.bases[0] > offset:
                local.reset_at(offset)
            else:
                local.truncate_at(offset)
            self._after_truncation(offset)
            if self.future is not None:
                self._repeat(self.future, lambda future: future.truncate_to(offset))
            if local.physical_end > offset:
                raise CorruptMessageError(f"the last batch below {offset} ends at {local.physical_end}")

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records; the empty log starts and ends at ``offset``.

        Raises:
            LogDirFullError: the disk is full; nothing was removed.
            KafkaStorageError: storage failed; the directory is offline.
        """
        self.local.check_online()
        self.truncations += 1
        self._lower_recovery_point(offset)
        with self._steps:
            self.local.reset_at(offset)
            self._after_truncation(offset)
        if self.future is not None:
            self._repeat(self.future, lambda future: future.truncate_fully_and_start_at(offset))

    def _after_truncation(self, offset: int) -> None:
        local = self.local
        local.start_offset = min(local.start_offset, offset)
        local.high_watermark = max(local.start_offset, min(local.high_watermark, offset))
        self.compaction.truncated_to(offset)

    def _lower_recovery_point(self, offset: int) -> None:
        """Lower the recovery point before a truncation to ``offset``, durably if it is in the checkpoint.

        With the old recovery point a recovery would not check the records that replace the removed ones.
        """
        durability = self.local.durability
        durability.recovery_point = min(durability.recovery_point, offset)
        if self.checkpointed_recovery_point is not None and self.checkpointed_recovery_point > offset:
            with self._storage:
                self.directory.checkpoint_recovery_points()

    # -- moving to another directory ---------------------------------------------------------------------------

    def _repeat(self, future: "PartitionLog", change: Callable[["PartitionLog"], None]) -> None:
        """Make a change of this log on its future log, too; a failure ends the move but not the change."""
        try:
            change(future)
        except KafkaStorageError:
            self.future = None
        except CorruptMessageError:
            future.truncate_fully_and_start_at(self.log_start_offset)

    def follow_start(self, offset: int) -> None:
        """Raise the log start of this future log to ``offset``, which may be beyond its end.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        if offset > self.log_end_offset:
            self.truncate_fully_and_start_at(offset)
        elif self.increment_log_start_offset(offset):
            self.remove_files(self.remove_segments_below_start())

    def extend_to(self, physical_end: int, end_offset: int) -> None:
        """End this future log at ``end_offset``, although no batch of the log that it copies reaches that offset.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        local = self.local
        with self._storage:
            if local.physical_end < physical_end:
                local.roll_durably(physical_end)
                local.physical_end = physical_end
            local.end_offset = end_offset

    def roll(self) -> None:
        """Roll the active segment durably, so that it can be copied as a whole; it has batches.

        Raises:
            LogDirFullError: the disk is full; nothing was rolled.
            KafkaStorageError: storage failed; the directory is offline.
        """
        self.local.check_online()
        with self._storage:
            self.local.roll_durably(self.local.end_offset)

    def adopt(self, segment: Segment, end_offset: int) -> None:
        """Put a copied segment, in ``.cleaned`` files, at the end of this future log, which then has ``end_offset``.

        Raises:
            LogDirFullError: the disk is full; nothing has changed.
            KafkaStorageError: storage failed; the directory is offline.
        """
        local = self.local
        local.check_online()
        if local.segments.active.size:
            self.roll()
        with self._steps:
            local.adopt(segment, end_offset)

    def take_over(self, current: "PartitionLog") -> None:
        """Take over the state of the log that this future log replaces; both have the same batches.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        if current.topic_id is not None:
            self.assign_topic_id(current.topic_id)
        # The batches do not show an epoch without records, or a producer whose batches were deleted.
        self.epochs.replace(current.epochs)
        self.producers = self.local.producers = current.producers
        self.snapshots.is_paused = False
        with self._storage:
            self.snapshots.write(self.log_end_offset, self.producers)
            self.snapshots.sync()
        self.compaction.first_dirty_offset = current.compaction.first_dirty_offset
        self.update_high_watermark(current.high_watermark)

    def rename_to(self, path: str) -> None:
        """Rename the log's directory; the caller syncs its parent.

        Raises:
            OSError: storage failed.
        """
        self.local.rename_to(path)
        self.path = path

    # -- flushing and closing ----------------------------------------------------------------------------------

    def flush_needed(self, now_ms: int | None = None) -> bool:
        """Whether a flush is due: a segment was rolled, or ``flush.messages`` or ``flush.ms`` is reached."""
        return self.local.durability.is_due(self.local.end_offset, self.config, now_ms)

    def begin_flush(self) -> FlushTask | None:
        """Start a flush up to the current log end; ``None`` when all is durable or another flush is in progress.

        The owner calls this and `finish_flush`; `FlushTask.run` between them may run on another thread.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        local = self.local
        local.check_online()
        with self._storage:
            return local.durability.begin(local.end_offset, local.segments)

    def finish_flush(self, task: FlushTask, now_ms: int | None = None) -> None:
        """Advance the recovery point after `FlushTask.run` has returned without an error."""
        self.local.durability.finish(task, now_ms)

    def flush(self, now_ms: int | None = None) -> None:
        """Make the log durable up to its end and advance the recovery point to the log end.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        task = self.begin_flush()
        if task is not None:
            try:
                task.run()
            except LogDirFullError:
                self.abandon_flush(task)
                raise
            self.finish_flush(task, now_ms)

    def abandon_flush(self, task: FlushTask) -> None:
        """End a flush after `FlushTask.run` has raised LogDirFullError."""
        self.local.durability.abandon(task)

    def close(self) -> None:
        """Write indexes, producer snapshot and epochs for a clean stop, flush, and refuse every later call.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        local = self.local
        if local.durability.is_over:
            return
        local.check_online()
        with self._storage:
            self._files.make_directory(self.path)
            # The flush below may find nothing to do, and the next process assumes that the topic id is durable.
            self._write_topic_id(durable=self.size_bytes > 0)
            local.seal()
            self.snapshots.write(local.end_offset, self.producers)
            if not self.size_bytes:
                # The next load drops the epochs of a log without records, so they are not worth an fsync.
                self.epochs.flush(durable=False)
        if self.size_bytes:
            self.flush()
        self.retire()

    def retire(self) -> None:
        """Refuse every later call: the log is closed, or its directory is about to be renamed."""
        self.local.durability.is_over = True

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers idle for longer than ``expiration_ms``; return their number. ``now_ms`` is wall clock."""
        return self.producers.remove_expired(now_ms, expiration_ms)

    # -- loading -----------------------------------------------------------------------------------------------

    def begin_with(self, segments: list[Segment], log_start_offset: int, recovery_point: int) -> None:
        """Use loaded segments, in ascending order, the last one activated; only the loader calls this.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the last segment ends in bytes that are not a batch.
        """
        self.local.begin_with(segments, log_start_offset, recovery_point)
        # Even a clean stop does not sync the files of a log without records.
        self.local.durability.topic_id_unsynced = self._topic_id_written and not self.size_bytes

    # -- helpers -----------------------------------------------------------------------------------------------

    def _flush_if_due(self) -> None:
        local = self.local
        if local.end_offset - local.durability.recovery_point < local.config.flush_messages:
            return
        if not local.durability.is_flushing:
            try:
                self.flush()
                return
            except LogDirFullError:
                pass  # The batch is in the log. Without room for indexes and epochs only the batches are synced.
        with self._storage:
            local.durability.sync_meanwhile(local.segments)

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        local = self.local
        return OffsetOutOfRangeError(
            f"{self.topic_partition} has offsets {local.start_offset} to {local.end_offset}, not {offset}",
            local.start_offset,
            local.end_offset,
        )
