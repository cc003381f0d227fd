"""The files of one log and their state: segments, leader epochs, producers, and the offsets of its start and end.

`LocalLog` writes, rolls and truncates without validating the request; `PartitionLog` does the validation. Its methods
raise OSError when storage fails and CorruptMessageError when the log contains bytes that are not a batch.

Source: docs/protocol/log-format.md#rolling-a-segment and #truncating-a-log.
"""

from paceline.log.batch_validation import PreparedBatch
from paceline.log.checkpoint import LEADER_EPOCH_CHECKPOINT
from paceline.log.durability import Durability
from paceline.log.files import Files, join
from paceline.log.leader_epoch_cache import LeaderEpochCache
from paceline.log.log_config import LogConfig
from paceline.log.log_directory import LogDirectory
from paceline.log.producer_state import ProducerStateManager
from paceline.log.record_batch import MAX_INT32, BatchHeader, control_record_type
from paceline.log.segment import Segment
from paceline.log.segment_list import SegmentList
from paceline.log.segment_roll import must_roll
from paceline.log.snapshots import SnapshotFiles
from paceline.log.transaction_index import append_row, truncate_rows
from paceline.model.errors import CorruptMessageError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition


class LocalLog:
    """One log on disk. Only its owner changes it; reads may run on other threads."""

    __slots__ = (
        "config",
        "directory",
        "durability",
        "end_offset",
        "epochs",
        "files",
        "high_watermark",
        "loaded_end_offset",
        "path",
        "physical_end",
        "producers",
        "segments",
        "snapshots",
        "start_offset",
        "topic_partition",
        "truncation_count",
    )

    def __init__(
        self, files: Files, directory: LogDirectory, path: str, topic_partition: TopicPartition, config: LogConfig
    ) -> None:
        self.files = files
        self.directory = directory
        self.path = path
        self.topic_partition = topic_partition
        self.config = config
        self.epochs = LeaderEpochCache(files, join(path, LEADER_EPOCH_CHECKPOINT))
        self.producers = ProducerStateManager()
        self.snapshots = SnapshotFiles(files, path)
        self.durability = Durability(files, directory, path, self.epochs, self.snapshots)
        self.segments = SegmentList(files, path)
        self.start_offset = 0
        """First offset that may be read."""
        self.end_offset = 0
        """Offset of the next record."""
        self.loaded_end_offset = 0
        """End offset when this process loaded the log."""
        self.physical_end = 0
        """Offset after the last batch on disk; below `end_offset` after a truncation within a batch."""
        self.high_watermark = 0
        self.truncation_count = 0
        """Incremented when segments are truncated or removed, which cancels a cleaning; not by compaction itself."""

    def new_segment(self, base_offset: int, suffix: str = "") -> Segment:
        """Return a segment object of this log; the caller opens or starts it."""
        return Segment(
            self.files,
            self.path,
            base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
            max_index_bytes=self.config.segment_index_bytes,
            suffix=suffix,
        )

    @property
    def last_stable_offset(self) -> int:
        """LSO: start of the oldest open transaction, at most the high watermark."""
        undecided = self.producers.first_undecided_offset
        return self.high_watermark if undecided is None else min(undecided, self.high_watermark)

    def check_online(self) -> None:
        """Refuse access to a log that is closed, deleted, or in a directory that is offline.

        Raises:
            KafkaStorageError: the directory is offline.
            UnknownTopicOrPartitionError: the log is closed.
        """
        if self.directory.failure is not None:
            self.directory.check_online()
        if self.durability.is_over:
            raise UnknownTopicOrPartitionError(f"the log of {self.topic_partition} is closed")

    # -- appending ---------------------------------------------------------------------------------------------

    def write_leader_batch(self, prepared: PreparedBatch, header: BatchHeader, now_ms: int) -> None:
        """Write one batch and advance the log end offset."""
        segment = self._active_for(header, prepared.size, now_ms)
        segment.append(memoryview(prepared.buffer)[: prepared.size])
        segment.publish_batch(
            prepared.size,
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            header.base_offset + prepared.max_timestamp.offset_delta,
        )
        self.end_offset = self.physical_end = header.last_offset + 1

    def write_follower_batches(self, view: memoryview, headers: list[BatchHeader], now_ms: int | None) -> None:
        """Write batches with one write per segment, rolling segments as needed."""
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
        segment.publish_batch(
            header.size, header.base_offset, header.last_offset, header.max_timestamp, header.last_offset
        )
        # Compaction may have removed the first batches of the epoch, so the epoch may have begun at the log end.
        self.epochs.assign(header.leader_epoch, min(self.end_offset, header.base_offset))
        self.end_offset = self.physical_end = header.last_offset + 1
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
        """Add a batch to the producer state.

        If the batch is an abort marker and ``index_aborts`` is true, also append to the segment's transaction index.

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
                append_row(self.files, segment.txn_index_path, aborted)

    # -- rolling -----------------------------------------------------------------------------------------------

    def _active_for(self, header: BatchHeader, size: int, now_ms: int | None) -> Segment:
        """Return the segment for an append of ``size`` bytes, rolled if necessary."""
        segment = self.segments.active
        first_timestamp = segment.first_max_timestamp
        too_far = header.last_offset - segment.base_offset > MAX_INT32
        if too_far or (
            segment.size and must_roll(self.config, segment, segment.size, first_timestamp, header, size, now_ms)
        ):
            # After a truncation within a batch this base offset may be below the log end, but a segment must not begin
            # above its first batch.
            segment = self._roll(header.base_offset)
        if segment.created_ms is None:
            segment.created_ms = now_ms
        return segment

    def _roll(self, base_offset: int) -> Segment:
        active = self.segments.active
        active.seal()
        self.snapshots.write(base_offset, self.producers)
        segment = self.new_segment(base_offset)
        segment.remove()
        segment.start_new()
        self.segments.add(segment)
        active.release()
        self.durability.rolled = self.durability.names_dirty = True
        return segment

    def roll_durably(self, base_offset: int) -> None:
        """Roll to a new segment and make its file name and the producer snapshot durable.

        After the removal of all earlier segments only this name says at which offset the log continues, and only the
        snapshot has the sequences of the producers.
        """
        self.files.create(self._roll(base_offset).log_path)
        self.snapshots.sync()

    def adopt(self, segment: Segment, end_offset: int) -> None:
        """Put a segment in ``.cleaned`` files in the place of the active segment, which is empty, and begin another.

        The log file gets its name last: without it a load removes the indexes.
        """
        self.segments.remove_active()
        segment.change_suffix("", log_first=False)
        self.snapshots.put_in_place(end_offset)
        self.segments.add(segment)
        following = self.new_segment(end_offset)
        following.remove()
        following.start_new()
        self.segments.add(following)
        self.physical_end = self.end_offset = end_offset
        self.durability.rolled = self.durability.names_dirty = True

    # -- truncation --------------------------------------------------------------------------------------------

    def truncate_at(self, offset: int) -> None:
        """Remove the segments above ``offset`` and truncate the last remaining segment at the batch with ``offset``."""
        self.durability.generation += 1
        self.truncation_count += 1
        self.segments.remove_above(offset)
        active = self.segments.active
        active.activate()
        if active.truncate_to(offset) and offset <= self.durability.recovery_point:
            # Sync the truncation: otherwise a power loss could restore the removed bytes in place of later appends. The
            # leader epochs would not reveal that, and a clean stop skips the flush when no offset is to be flushed.
            self.files.sync(active.log_path)
        truncate_rows(self.files, active.txn_index_path, offset)
        self.epochs.truncate_from_end(offset)
        self.snapshots.remove_above(offset)
        self.end_offset = offset
        self.physical_end = active.end_offset() if active.size else active.base_offset
        self.reload_producers(offset)

    def reset_at(self, offset: int) -> None:
        """Remove all segments; the empty log starts and ends at ``offset``."""
        self.durability.generation += 1
        self.truncation_count += 1
        self.segments.remove_all()
        self.snapshots.remove_above(-1)
        self.epochs.clear()
        self.producers.clear()
        segment = self.new_segment(offset)
        segment.start_new()
        self.segments.add(segment)
        self.durability.names_dirty = True
        self.start_offset = self.end_offset = self.physical_end = offset

    def rebase(self, base_offset: int) -> None:
        """Move an empty log's first segment to ``base_offset``, below the log start offset, which does not change.

        The first batch from the leader may begin below the log start offset that it contains.
        """
        start = self.start_offset
        self.reset_at(base_offset)
        self.start_offset = self.end_offset = self.high_watermark = start

    def reload_producers(self, limit: int, snapshot_offsets: list[int] | None = None) -> None:
        """Rebuild the producer state below ``limit`` from the newest snapshot and the batches after it.

        A snapshot is used only if every batch after it is still on disk: without the last batch of a producer, an older
        sequence would count as its last, and the broker would refuse all its later batches. So snapshots below the
        segment that holds the log start are not used, and without a snapshot reading starts at the beginning of that
        segment, which includes deleted records.

        Args:
            limit: exclusive end offset.
            snapshot_offsets: offsets of the existing snapshots; listed from the directory when ``None``.

        Raises:
            OSError: storage failed.
            CorruptMessageError: a batch or marker cannot be read.
        """
        lowest = self.segments.since(self.start_offset)[0].base_offset
        covered = self.snapshots.load_newest(self.producers, lowest, limit, snapshot_offsets)
        for segment in self.segments.since(covered):
            if segment.size == 0 or segment.base_offset >= limit:
                continue
            found = segment.locate(covered) if covered > segment.base_offset else None
            if covered > segment.base_offset and found is None:
                continue
            for position, header in segment.headers(found.position if found is not None else 0):
                if header.producer_id >= 0 and header.last_offset < limit and header.base_offset >= covered:
                    batch = self.files.read_at(segment.log_path, position, header.size) if header.is_control else b""
                    self.take_in_producer(segment, header, batch, 0, index_aborts=False)

    # -- loading and closing -----------------------------------------------------------------------------------

    def rename_to(self, path: str) -> None:
        """Rename the log's directory; the caller syncs its parent. No flush is in progress.

        Raises:
            OSError: storage failed.
        """
        self.files.rename(self.path, path)
        self.path = path
        self.epochs.moved_to(join(path, LEADER_EPOCH_CHECKPOINT))
        self.durability.moved_to(path)
        self.snapshots.moved_to(path)
        self.segments.moved_to(path)

    def begin_with(self, segments: list[Segment], log_start_offset: int, recovery_point: int) -> None:
        """Use loaded segments, in ascending order, the last one activated; start a new segment if there is none.

        Raises:
            OSError: storage failed.
            CorruptMessageError: the last segment ends in bytes that are not a batch.
        """
        if not segments:
            segments = [self.new_segment(log_start_offset)]
            segments[0].start_new()
        for segment in segments:
            self.segments.add(segment)
        self.physical_end = segments[-1].end_offset()
        self.loaded_end_offset = self.end_offset = max(self.physical_end, log_start_offset)
        self.start_offset = max(log_start_offset, self.segments.bases[0])
        self.high_watermark = self.start_offset
        self.durability.recovery_point = min(recovery_point, self.end_offset)

    def seal(self) -> None:
        """Write the indexes of the active segment for a clean stop.

        Raises:
            OSError: storage failed.
        """
        active = self.segments.active
        try:
            active.seal()
        except CorruptMessageError:
            # Reads of the damaged part report the error; it must not make the stop of the other logs unclean.
            active.write_indexes()
