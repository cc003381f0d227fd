"""One replica's log: its segments, offsets, leader epochs and producer state.

Offsets: ``log_start_offset`` <= ``high_watermark`` <= ``log_end_offset``; the last two are exclusive. A log has one
owner at a time and holds no locks; reads and the fsync part of a flush may run on other threads.

Invariants:
 * nothing is visible before it is written whole; nothing changes when an append is refused;
 * after the first storage error the directory is offline: every later call raises, nothing is retried;
 * epochs and index entries are durable before the recovery point passes the offsets they speak of.

Source: docs/protocol/log-format.md. Read `PartitionLog.append_as_leader` first.
"""

from typing import NoReturn

from paceline.log.append_info import AppendInfo
from paceline.log.batch_validation import PreparedBatch, check_replicated_batches, prepare_client_batch
from paceline.log.checkpoint import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, encode_partition_metadata
from paceline.log.compaction.cleanable import Cleanable, find_cleanable
from paceline.log.compaction.cleaner import CleanedSegment, Cleaner
from paceline.log.compaction.cleaning_task import CleaningTask
from paceline.log.compaction.offset_map import OffsetMap
from paceline.log.damage import DamagedLogError
from paceline.log.durability import Durability, FlushTask
from paceline.log.files import NO_DESCRIPTOR, Files, join, write_atomically
from paceline.log.leader_epoch_cache import LeaderEpochCache
from paceline.log.log_config import LogConfig, TimestampType
from paceline.log.log_directory import LogDirectory
from paceline.log.producer_state import ProducerStateManager
from paceline.log.record_batch import (
    MAX_INT32,
    MAX_INT64,
    NO_TIMESTAMP,
    BatchHeader,
    control_record_type,
    stamp,
)
from paceline.log.retention import retained_from
from paceline.log.segment import Segment
from paceline.log.segment_list import SegmentList
from paceline.log.segment_names import CLEANED_SUFFIX, SWAP_SUFFIX
from paceline.log.segment_roll import must_roll
from paceline.log.snapshots import SnapshotFiles
from paceline.log.transaction_index import append_row, truncate_rows
from paceline.model.errors import (
    CorruptMessageError,
    InconsistentTopicIdError,
    InvalidRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    ThrottledError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition


class PartitionLog:
    """One replica's log in its directory. `LogManager` makes and loads them."""

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
        self._directory = directory
        self._path = path
        self.topic_partition = topic_partition
        self._config = config
        self.topic_id = topic_id
        self._topic_id_written = topic_id_written
        self.epochs = LeaderEpochCache(files, join(path, LEADER_EPOCH_CHECKPOINT))
        self._durability = Durability(files, directory, path, self.epochs)
        self.producers = ProducerStateManager()
        self.snapshots = SnapshotFiles(files, path)
        self._segments = SegmentList(files, path)
        self._log_start_offset = 0
        self._log_end_offset = 0
        self._physical_end = 0
        self._high_watermark = 0
        self.checkpointed_recovery_point: int | None = None
        """What the recovery point checkpoint of the directory says of this log, ``None`` when it says nothing."""
        self.first_dirty_offset: int | None = None
        """Up to where the log is compacted, exclusive, ``None`` when it never was."""
        self._truncation_count = 0
        """Raised when segments are cut or let go, but not by compaction: a cleaning that is under way is void then."""
        self._retired = False

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """Present settings; new ones hold for the active segment's indexes, too, while it is empty."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        if len(self._segments) and not self._segments.active.size:
            self._segments.active.set_index_limits(config.index_interval_bytes, config.segment_index_bytes)

    @property
    def path(self) -> str:
        """Directory of the log."""
        return self._path

    @property
    def directory(self) -> LogDirectory:
        """The log directory this log lies in."""
        return self._directory

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
        return self._log_start_offset

    @property
    def names_its_start(self) -> bool:
        """Whether the first segment's name says where the log starts, even after a loss of power.

        It does not while segments below may come back, for their removal is not durable yet, nor before its first
        batch is durable: until then the segment has no file, or one that may be lost.
        """
        if not self._log_start_offset:
            return True
        is_there = self._segments.bases[0] == self._log_start_offset < self._durability.recovery_point
        return is_there and not self._durability.removals_unsynced

    @property
    def log_end_offset(self) -> int:
        """LEO: the offset the next record gets."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """HW, exclusive: records below are committed."""
        return self._high_watermark

    @property
    def recovery_point(self) -> int:
        """First offset that may not be durable."""
        return self._durability.recovery_point

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self._segments.size_bytes

    @property
    def segments(self) -> list[Segment]:
        """The segments, ascending; the last one is active."""
        return list(self._segments)

    @property
    def latest_epoch(self) -> int | None:
        """Largest leader epoch the log knows, ``None`` when there is none."""
        return self.epochs.latest_epoch

    @property
    def last_stable_offset(self) -> int:
        """LSO: start of the oldest open transaction, at most the high watermark."""
        undecided = self.producers.first_undecided_offset
        return self._high_watermark if undecided is None else min(undecided, self._high_watermark)

    def update_high_watermark(self, high_watermark: int) -> int:
        """Set the high watermark, kept between log start and log end; return what it became."""
        self._high_watermark = max(self._log_start_offset, min(high_watermark, self._log_end_offset))
        return self._high_watermark

    def increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start offset (delete-records, or following the leader); return whether it moved.

        Segments stay until `remove_segments_below_start`. A high watermark below is lifted along.

        Raises:
            OffsetOutOfRangeError: ``offset`` is beyond the log end.
        """
        if offset > self._log_end_offset:
            raise self._out_of_range(offset)
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self._high_watermark = max(self._high_watermark, offset)
        self.epochs.truncate_from_start(offset)
        return True

    def retained_from(self, wall_ms: int) -> int | None:
        """Return the first offset that the topic's settings retain, None when they retain all records.

        If the active segment goes, too, a new segment is begun before that, durably: a log always has one.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
            DamagedLogError: a segment's timestamps cannot be read.
        """
        self._check_online()
        try:
            # Behind a cut inside a batch the next append may begin below the log end: the active segment stays for it.
            end = self._log_end_offset if self._physical_end == self._log_end_offset else None
            segments = self._segments.extents(end)
            offset = retained_from(segments, self.config, self.size_bytes, self._high_watermark, wall_ms)
            if offset is not None and offset == end:
                self._roll_durably(offset)
        except CorruptMessageError as error:
            raise self._damaged(error) from error
        except OSError as error:
            self._fail(error)
        return offset

    def remove_segments_below_start(self) -> list[str]:
        """Let go of the segments that lie below the log start offset as a whole; return their files, now ``.deleted``.

        A reader that is under way may still finish: `remove_files` is called after ``file.delete.delay.ms``, or the
        next load does it.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        self._check_online()
        renamed: list[str] = []
        try:
            while (segment := self._segments.pop_below(self._log_start_offset)) is not None:
                renamed.extend(segment.rename_deleted())
                self.snapshots.remove(segment.base_offset)
        except OSError as error:
            self._fail(error)
        if renamed:
            # A flush that is under way may miss them: it has to say nothing of how far the log is durable.
            self._durability.generation += 1
            self._truncation_count += 1
            self._durability.names_dirty = self._durability.removals_unsynced = True
        return renamed

    def remove_files(self, paths: list[str]) -> None:
        """Remove files that `remove_segments_below_start` has let go; those of a log that is gone are gone with it."""
        try:
            for path in paths:
                if self._files.exists(path):
                    self._files.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._directory.fail(error)

    def assign_topic_id(self, topic_id: str) -> None:
        """Adopt a topic id; it is written before the first append, at once where there are records.

        Raises:
            InconsistentTopicIdError: the log belongs to another topic of the same name.
            KafkaStorageError: storage failed; the directory is offline.
        """
        if self.topic_id is None:
            self.topic_id = topic_id
            self._topic_id_written = False
            if self.size_bytes:
                # They are led or followed from here on: the next process has to know whose they are.
                try:
                    self._write_topic_id(durable=True)
                except OSError as error:
                    self._fail(error)
        elif self.topic_id != topic_id:
            raise InconsistentTopicIdError(f"{self.topic_partition} has topic id {self.topic_id}, not {topic_id}")

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that ``epoch`` starts at ``start_offset``; in memory, made durable by the next flush."""
        self.epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """Return (largest epoch not above ``epoch``, its exclusive end offset), ``None`` when unknown."""
        return self.epochs.end_offset(epoch, self._log_end_offset)

    # -- appending ---------------------------------------------------------------------------------------------

    def append_as_leader(self, data: bytes, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Check a producer's one batch, give it offsets and the leader epoch, and write it.

        ``now_ms`` is wall clock. A repetition of one of the producer's last five batches is answered with its
        original offsets and not written again.

        Raises:
            PacelineError: one of those of `prepare_client_batch`; nothing is written.
            InvalidProducerEpochError, OutOfOrderSequenceNumberError: idempotent producer; nothing is written.
            KafkaStorageError: storage failed; the directory is offline.
        """
        self._check_online()
        prepared = prepare_client_batch(data, self.config, now_ms)
        header = prepared.header
        if header.producer_id >= 0:
            repeated = self.producers.find_duplicate(header)
            if repeated is not None:
                return AppendInfo(
                    repeated.first_offset,
                    repeated.last_offset,
                    self._append_time(repeated.timestamp),
                    self._log_start_offset,
                    duplicate=True,
                    max_timestamp_ms=repeated.timestamp,
                    record_count=header.record_count,
                )
            self.producers.check(header)
        base_offset = self._log_end_offset
        if base_offset > MAX_INT64 - header.record_count:
            raise InvalidRecordError(f"{self.topic_partition} has no offsets left")
        header = header._replace(base_offset=base_offset, max_timestamp=prepared.max_timestamp.timestamp)
        stamp(prepared.buffer, base_offset, leader_epoch)
        try:
            self._write_leader_batch(prepared, header, now_ms)
        except CorruptMessageError as error:
            raise self._damaged(error) from error
        except OSError as error:
            self._fail(error)
        self.epochs.assign(leader_epoch, base_offset)
        if header.producer_id >= 0:
            self.producers.update(header)
        self._flush_if_due()
        return AppendInfo(
            base_offset,
            header.last_offset,
            self._append_time(header.max_timestamp),
            self._log_start_offset,
            max_timestamp_ms=header.max_timestamp,
            record_count=header.record_count,
        )

    def append_as_follower(self, data: bytes | memoryview, now_ms: int | None = None) -> AppendInfo | None:
        """Write the leader's batches as they are; an incomplete one at the end is ignored.

        Returns ``None`` when there is no complete batch. ``now_ms``, wall clock, only serves rolling by time when
        records have no timestamps.

        Raises:
            CorruptMessageError: a checksum, length, magic or marker is wrong; nothing is written.
            InvalidRecordError: the offsets do not continue the log; nothing is written.
            KafkaStorageError: storage failed; the directory is offline.
        """
        self._check_online()
        is_empty = self._log_end_offset == self._log_start_offset and not self.size_bytes
        headers = check_replicated_batches(data, self._log_end_offset, 0 if is_empty else self._physical_end)
        if not headers:
            return None
        first, last = headers[0], headers[-1]
        try:
            if first.base_offset < self._physical_end:
                self._rebase(first.base_offset)
            self._write_follower_batches(memoryview(data), headers, now_ms)
        except CorruptMessageError as error:
            raise self._damaged(error) from error
        except OSError as error:
            self._fail(error)
        self._flush_if_due()
        return AppendInfo(
            first.base_offset,
            last.last_offset,
            last.max_timestamp if last.is_log_append_time else NO_TIMESTAMP,
            self._log_start_offset,
            max_timestamp_ms=max(header.max_timestamp for header in headers),
            record_count=sum(header.record_count for header in headers),
        )

    def _append_time(self, timestamp: int) -> int:
        is_append_time = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        return timestamp if is_append_time else NO_TIMESTAMP

    def _write_leader_batch(self, prepared: PreparedBatch, header: BatchHeader, now_ms: int) -> None:
        self._write_topic_id()
        segment = self._active_for(header, prepared.size, now_ms)
        segment.append(memoryview(prepared.buffer)[: prepared.size])
        segment.note(
            prepared.size,
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            header.base_offset + prepared.max_timestamp.offset_delta,
        )
        self._log_end_offset = self._physical_end = header.last_offset + 1

    def _write_follower_batches(self, view: memoryview, headers: list[BatchHeader], now_ms: int | None) -> None:
        """Write runs of batches, one write each; a new run begins where the segment is rolled."""
        self._write_topic_id()
        position = 0
        index = 0
        while index < len(headers):
            segment = self._active_for(headers[index], headers[index].size, now_ms)
            end, size = index + 1, headers[index].size
            first_timestamp = headers[index].max_timestamp if segment.size == 0 else segment.first_max_timestamp
            while end < len(headers) and not must_roll(
                self.config, segment, segment.size + size, first_timestamp, headers[end], headers[end].size, now_ms
            ):
                size += headers[end].size
                end += 1
            segment.append(view[position : position + size])
            for header in headers[index:end]:
                self._note_replicated(segment, header, view, position)
                position += header.size
            index = end

    def _note_replicated(self, segment: Segment, header: BatchHeader, view: memoryview, position: int) -> None:
        segment.note(header.size, header.base_offset, header.last_offset, header.max_timestamp, header.last_offset)
        self._log_end_offset = self._physical_end = header.last_offset + 1
        self.epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            self.take_in_producer(segment, header, view, position)

    def take_in_producer(
        self,
        segment: Segment,
        header: BatchHeader,
        data: bytes | memoryview,
        position: int,
        *,
        index_aborts: bool = True,
    ) -> None:
        """Take a batch of the log into the producer state, and an abort into the segment's transaction index.

        Raises:
            CorruptMessageError: a transaction marker cannot be read.
            OSError: storage failed.
        """
        if not header.is_control:
            self.producers.update(header)
        elif header.record_count:
            marker_type, coordinator_epoch = control_record_type(data[position : position + header.size])
            aborted = self.producers.end_transaction(header, marker_type, coordinator_epoch)
            if aborted is not None and index_aborts:
                append_row(self._files, segment.txn_index_path, aborted)

    def _rebase(self, base_offset: int) -> None:
        """Let an empty log begin where the batch begins that holds its start offset."""
        start = self._log_start_offset
        self._reset_at(base_offset)
        self._log_start_offset = self._log_end_offset = self._high_watermark = start

    def _write_topic_id(self, *, durable: bool = False) -> None:
        """Write the topic id before the first batch; the next flush makes it durable, no append waits for that."""
        if self.topic_id is not None and not self._topic_id_written:
            data = encode_partition_metadata(self.topic_id)
            write_atomically(self._files, join(self._path, PARTITION_METADATA), data, durable=durable)
            self._topic_id_written = self._durability.topic_id_unsynced = self._durability.names_dirty = True

    # -- rolling -----------------------------------------------------------------------------------------------

    def _active_for(self, header: BatchHeader, size: int, now_ms: int | None) -> Segment:
        """Return the segment for an append of ``size`` bytes, rolled when it has to be."""
        segment = self._segments.active
        first_timestamp = segment.first_max_timestamp
        too_far = header.last_offset - segment.base_offset > MAX_INT32
        if too_far or (
            segment.size and must_roll(self.config, segment, segment.size, first_timestamp, header, size, now_ms)
        ):
            # Below the log end after a cut inside a batch: a segment never begins above its first batch.
            segment = self._roll(header.base_offset)
        if segment.created_ms is None:
            segment.created_ms = now_ms
        return segment

    def _roll(self, base_offset: int) -> Segment:
        active = self._segments.active
        active.seal()
        self.snapshots.write(base_offset, self.producers)
        segment = self.new_segment(base_offset)
        segment.remove()
        segment.start_new()
        self._segments.add(segment)
        active.release()
        self._durability.rolled = self._durability.names_dirty = True
        return segment

    def _roll_durably(self, base_offset: int) -> None:
        # Its name is all that tells where the log goes on when the segments in front are gone.
        self._files.create(self._roll(base_offset).log_path)
        self._files.sync_directory(self._path)

    def new_segment(self, base_offset: int, suffix: str = "") -> Segment:
        """Return a segment of this log; it still has to be opened or started."""
        config = self.config
        return Segment(
            self._files,
            self._path,
            base_offset,
            index_interval_bytes=config.index_interval_bytes,
            max_index_bytes=config.segment_index_bytes,
            suffix=suffix,
        )

    # -- compaction --------------------------------------------------------------------------------------------

    def roll_idle_segment(self, wall_ms: int) -> bool:
        """Begin a new segment when nothing was appended for ``segment.ms``; return whether it did.

        Compaction leaves the active segment alone: the last records of an idle log would never be compacted.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        self._check_online()
        active = self._segments.active
        if not active.size or self._physical_end != self._log_end_offset:
            return False
        idle_ms = min(self.config.segment_ms, self.config.max_compaction_lag_ms)
        try:
            if wall_ms - self._files.modified_ms(active.log_path) <= idle_ms:
                return False
            self._roll_durably(self._log_end_offset)
        except OSError as error:
            self._fail(error)
        return True

    def cleanable(self, wall_ms: int) -> Cleanable | None:
        """Return what may be compacted: durable, committed, decided and old enough; ``None`` when nothing is dirty.

        Raises:
            DamagedLogError: a segment's timestamps cannot be read.
            KafkaStorageError: storage failed; the directory is offline.
        """
        self._check_online()
        limit = min(self.last_stable_offset, self._durability.recovery_point)
        first_dirty = max(self.first_dirty_offset or 0, self._log_start_offset)
        try:
            return find_cleanable(self.segments, first_dirty, limit, self.config, wall_ms)
        except CorruptMessageError as error:
            raise self._damaged(error) from error
        except OSError as error:
            self._fail(error)

    def begin_cleaning(self, cleanable: Cleanable, wall_ms: int, buffer_bytes: int, load_factor: float) -> CleaningTask:
        """Start to compact what `cleanable` has returned, with a map of so many bytes; call `finish_cleaning` later."""
        last_offsets = {one.producer_id: one.batches[-1].last_offset for one in self.producers.entries if one.batches}
        cleaner = Cleaner(
            self._files,
            self._path,
            self.config,
            cleanable,
            last_offsets,
            wall_ms,
            OffsetMap(buffer_bytes, load_factor),
            lambda base_offset: self.new_segment(base_offset, CLEANED_SUFFIX),
        )
        truncations = self._truncation_count
        return CleaningTask(
            cleaner, self._directory, lambda: not self._retired and self._truncation_count == truncations
        )

    def replace_segments(self, task: CleaningTask, cleaned: CleanedSegment) -> list[str]:
        """Put a compacted segment in place; return the files of those it replaces, now ``.deleted``.

        A crash between two steps leaves the old segments or the new one. The swap file is durable before an old
        segment goes, and the old ones are gone for good before the new one takes the name of the first.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        self._check_online()
        removed: list[str] = []
        try:
            if not task.is_current():
                cleaned.segment.remove()
                return []
            cleaned.segment.change_suffix(SWAP_SUFFIX, log_first=False)
            self._files.sync_directory(self._path)
            for source in cleaned.sources:
                removed.extend(source.rename_deleted())
                if source is not cleaned.sources[0]:
                    self.snapshots.remove(source.base_offset)
            self._files.sync_directory(self._path)
            cleaned.segment.change_suffix("", log_first=True)
        except OSError as error:
            self._fail(error)
        self._segments.replace(cleaned.sources, cleaned.segment)
        # A flush that is under way may miss files: it does not count, and another one is due.
        self._durability.rolled |= self._durability.is_flushing
        self._durability.generation += 1
        self._durability.names_dirty = True
        return removed

    def finish_cleaning(self, task: CleaningTask) -> None:
        """Note how far the log is compacted; the caller writes the cleaner checkpoint."""
        if task.is_current():
            self.first_dirty_offset = task.end_offset

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool = True) -> bytes:
        """Return whole batches, from the one that holds ``offset``, none that reaches ``limit_offset`` (exclusive).

        At most ``max_bytes``, except that the first batch comes whole when ``at_least_one``. Never crosses a
        segment boundary, so less than ``max_bytes`` does not mean that there is no more.

        Raises:
            OffsetOutOfRangeError: ``offset`` is below the log start or above the log end.
            DamagedLogError: what stands at ``offset`` is not what was written. Never is anything returned whose
                checksum does not match.
            KafkaStorageError: storage failed; the directory is offline.
            ThrottledError: the process has no file descriptor left.
        """
        self._check_online()
        end = self._log_end_offset
        if not self._log_start_offset <= offset <= end:
            raise self._out_of_range(offset)
        limit = min(limit_offset, end)
        if offset >= limit:
            return b""
        try:
            data = self._segments.read(offset, max_bytes, limit, at_least_one, self.epochs.epoch_of)
            if not data and at_least_one:
                self._segments.check_end(offset, limit, self._log_end_offset)
            return data
        except CorruptMessageError as error:
            raise self._damaged(error) from error
        except OSError as error:
            self._fail_read(error)

    def offset_for_timestamp(self, timestamp_ms: int, limit_offset: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record below ``limit_offset`` with a timestamp not below this one.

        Raises:
            DamagedLogError: what stands in the file is no batch.
            KafkaStorageError: storage failed; the directory is offline.
            ThrottledError: the process has no file descriptor left.
        """
        self._check_online()
        try:
            found = self._segments.find_timestamp(timestamp_ms, self._log_start_offset, limit_offset)
            return None if found is None else (found.offset, found.timestamp)
        except CorruptMessageError as error:
            raise self._damaged(error) from error
        except OSError as error:
            self._fail_read(error)

    # -- truncation --------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drop the records from ``offset`` on; the next append starts exactly there.

        The file is cut at the start of the batch that holds ``offset``. At or beyond the log end only leader epochs
        without records go. When the durable recovery point lies higher, it is lowered durably before this returns.

        Raises:
            DamagedLogError: the place to cut at cannot be found, or what is left reaches beyond it; the log may be cut
                partly and has to be rebuilt.
            KafkaStorageError: storage failed; the directory is offline.
        """
        self._check_online()
        if offset >= self._log_end_offset:
            self.epochs.truncate_from_end(self._log_end_offset)
            return
        try:
            if self._segments.bases[0] > offset:
                self._reset_at(offset)
            else:
                self._cut_at(offset)
            self._after_truncation(offset)
            if self._physical_end > offset:
                raise CorruptMessageError(f"the last batch below {offset} ends at {self._physical_end}")
        except CorruptMessageError as error:
            raise self._damaged(error) from error
        except OSError as error:
            self._fail(error)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all records and continue, empty, at ``offset``.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        self._check_online()
        try:
            self._reset_at(offset)
            self._after_truncation(offset)
        except OSError as error:
            self._fail(error)

    def _cut_at(self, offset: int) -> None:
        self._durability.generation += 1
        self._truncation_count += 1
        self._segments.remove_above(offset)
        active = self._segments.active
        active.activate()
        if active.truncate_to(offset) and offset <= self._durability.recovery_point:
            # Durable bytes that came back after a loss of power, in front of what follows now, would be a log that
            # never was, and its epochs would not tell. Nor would a clean stop flush where there is nothing to flush.
            self._files.sync(active.log_path)
        truncate_rows(self._files, active.txn_index_path, offset)
        self.epochs.truncate_from_end(offset)
        self.snapshots.remove_above(offset)
        self._log_end_offset = offset
        self._physical_end = active.end_offset() if active.size else active.base_offset
        self.reload_producers(offset)

    def _reset_at(self, offset: int) -> None:
        self._durability.generation += 1
        self._truncation_count += 1
        self._segments.remove_all()
        self.snapshots.remove_above(-1)
        self.epochs.clear()
        self.producers.clear()
        segment = self.new_segment(offset)
        segment.start_new()
        self._segments.add(segment)
        self._durability.names_dirty = True
        self._log_start_offset = self._log_end_offset = self._physical_end = offset

    def _after_truncation(self, offset: int) -> None:
        self._log_start_offset = min(self._log_start_offset, offset)
        self._high_watermark = max(self._log_start_offset, min(self._high_watermark, offset))
        self._durability.recovery_point = min(self._durability.recovery_point, offset)
        if self.first_dirty_offset is not None:
            self.first_dirty_offset = min(self.first_dirty_offset, offset)
        if self.checkpointed_recovery_point is not None and self.checkpointed_recovery_point > offset:
            self._directory.checkpoint_recovery_points()

    def reload_producers(self, limit: int, snapshot_offsets: list[int] | None = None) -> None:
        """Rebuild the producer state below ``limit`` from the newest snapshot and the batches behind it.

        A snapshot is followed by every batch behind it or is not used: what a producer sent last may be deleted, and
        an older sequence taken for its last would have it refused for ever. So the segment that holds the log start
        is taken from its beginning, deleted batches too, and no snapshot from below it.
        ``snapshot_offsets`` are the snapshots there are, where the caller knows.

        Raises:
            OSError: storage failed.
            CorruptMessageError: a batch or marker cannot be read.
        """
        lowest = self._segments.since(self._log_start_offset)[0].base_offset
        covered = self.snapshots.load_newest(self.producers, lowest, limit, snapshot_offsets)
        for segment in self._segments.since(covered):
            if segment.size == 0 or segment.base_offset >= limit:
                continue
            found = segment.locate(covered) if covered > segment.base_offset else None
            if covered > segment.base_offset and found is None:
                continue
            for position, header in segment.headers(found.position if found is not None else 0):
                if header.producer_id >= 0 and header.last_offset < limit and header.base_offset >= covered:
                    batch = self._files.read_at(segment.log_path, position, header.size) if header.is_control else b""
                    self.take_in_producer(segment, header, batch, 0, index_aborts=False)

    # -- flushing and closing ----------------------------------------------------------------------------------

    def flush_needed(self, now_ms: int | None = None) -> bool:
        """Whether a flush is due: a segment was rolled, or ``flush.messages`` or ``flush.ms`` is reached."""
        return self._durability.is_due(self._log_end_offset, self.config, now_ms)

    def begin_flush(self) -> FlushTask | None:
        """Start a flush up to the present log end; ``None`` when nothing is to be done or one is running.

        The owner calls this and `finish_flush`; `FlushTask.run` between them may run on another thread.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        self._check_online()
        try:
            return self._durability.begin(self._log_end_offset, self._segments)
        except OSError as error:
            self._fail(error)

    def finish_flush(self, task: FlushTask, now_ms: int | None = None) -> None:
        """Advance the recovery point after `FlushTask.run` came back without an error."""
        self._durability.finish(task, now_ms)

    def flush(self, now_ms: int | None = None) -> None:
        """Make everything durable and advance the recovery point to the log end.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        task = self.begin_flush()
        if task is not None:
            task.run()
            self.finish_flush(task, now_ms)

    def close(self) -> None:
        """Finish the files as for a clean stop, durably: indexes, producer snapshot, epochs. The log ends here.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
        """
        if self._retired:
            return
        self._check_online()
        try:
            self._files.make_directory(self._path)
            # With records there may be nothing left to flush, and the next process takes the id for durable.
            self._write_topic_id(durable=self.size_bytes > 0)
            self._seal_for_good()
            self.snapshots.write(self._log_end_offset, self.producers)
            if not self.size_bytes:
                # Epochs of a log without records are dropped by the next load: not worth an fsync per empty log.
                self.epochs.flush(durable=False)
        except OSError as error:
            self._fail(error)
        if self.size_bytes:
            self.flush()
        self.retire()

    def _seal_for_good(self) -> None:
        active = self._segments.active
        try:
            active.seal()
        except CorruptMessageError:
            # Who reads what is damaged is told; the other logs are to be stopped cleanly all the same.
            active.write_indexes()

    def retire(self) -> None:
        """Refuse everything from now on: the directory is being renamed for deletion."""
        self._retired = self._durability.is_over = True

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers idle for longer than ``expiration_ms``; return how many. ``now_ms`` is wall clock."""
        return self.producers.remove_expired(now_ms, expiration_ms)

    # -- loading -----------------------------------------------------------------------------------------------

    def begin_with(self, segments: list[Segment], log_start_offset: int, recovery_point: int) -> None:
        """Take over loaded segments, ascending and activated; used by the loader only.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the last segment's tail is no batch.
        """
        if not segments:
            segments = [self.new_segment(log_start_offset)]
            segments[0].start_new()
        for segment in segments:
            self._segments.add(segment)
        self._physical_end = segments[-1].end_offset()
        self._log_end_offset = max(self._physical_end, log_start_offset)
        self._log_start_offset = max(log_start_offset, self._segments.bases[0])
        self._high_watermark = self._log_start_offset
        self._durability.recovery_point = min(recovery_point, self._log_end_offset)
        # A log without records was stopped without an fsync, even cleanly.
        self._durability.topic_id_unsynced = self._topic_id_written and not self.size_bytes

    def came_back_from_a_crash(self) -> None:
        """What the last process wrote and removed may be so in the page cache alone; used by the loader only."""
        self._durability.topic_id_unsynced = self.topic_id is not None
        self.removals_may_be_undone()

    def removals_may_be_undone(self) -> None:
        """The last process did not know whether what it removed is gone for good; used by the loader only."""
        self._durability.removals_unsynced = True

    # -- helpers -----------------------------------------------------------------------------------------------

    def _flush_if_due(self) -> None:
        if self._log_end_offset - self._durability.recovery_point < self.config.flush_messages:
            return
        if not self._durability.is_flushing:
            self.flush()
            return
        try:
            self._durability.sync_meanwhile(self._segments)
        except OSError as error:
            self._fail(error)

    def _check_online(self) -> None:
        if self._directory.failure is not None:
            self._directory.check_online()
        if self._retired:
            raise UnknownTopicOrPartitionError(f"the log of {self.topic_partition} is closed")

    def _fail(self, error: OSError) -> NoReturn:
        self._directory.fail(error)
        raise KafkaStorageError(f"{self.topic_partition}: {error}") from error

    def _fail_read(self, error: OSError) -> NoReturn:
        """Raise the error of a read: a process without descriptors says nothing about its storage."""
        if error.errno in NO_DESCRIPTOR:
            raise ThrottledError(f"{self.topic_partition}: {error}") from error
        self._fail(error)

    def _damaged(self, error: CorruptMessageError) -> DamagedLogError:
        return DamagedLogError(f"the log of {self.topic_partition} is damaged: {error}")

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"{self.topic_partition} holds {self._log_start_offset} to {self._log_end_offset}, not {offset}",
            self._log_start_offset,
            self._log_end_offset,
        )
