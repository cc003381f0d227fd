"""Move replicas between the log directories of this broker (KIP-113): copy, catch up, swap.

For each target directory with a move there is one `AlterLogDirsFetcher`; it moves one partition at a time, in the order
of their names. It reads the current log directly, as Kafka's fetcher with replica id -3 does: whole segments in the
background, the batches of the last one in slices between which the broker serves requests. Role changes do not
interrupt a move: the current log repeats its truncations on the copy.
Source: docs/protocol/replication.md#moves-between-log-directories.
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from paceline.broker.interfaces import BackgroundWork
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.storage.log_flusher import LogFlusher
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.damage import DamagedLogError
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.segment_copy import SegmentCopy
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition

LOG: Final = logging.getLogger(__name__)
_SLICE_BYTES: Final = 1 << 18
_SLICES_OF_A_SEGMENT: Final = 64
"""Slices that one piece of background work copies, and then flushes, if the throttle allows as many in 125 ms."""
_PAUSE_MS: Final = 1
"""Pause between two slices, so that requests do not wait for several slices."""
_QUOTA_CHECK_MS: Final = 250
_FLUSH_CHECK_MS: Final = 10


class AlterLogDirsManager:
    """The moves of one broker, ``num.replica.alter.log.dirs.threads`` at a time."""

    def __init__(
        self,
        logs: LogManager,
        hosted: HostedPartitions,
        storage: ReplicaStorage,
        flusher: LogFlusher,
        background: BackgroundWork,
    ) -> None:
        self.logs = logs
        self.hosted = hosted
        self.storage = storage
        self.flusher = flusher
        self.background = background
        self._moves: dict[TopicPartition, Partition] = {}
        self._delayed: set[TopicPartition] = set()
        """Partitions whose last attempt failed, until the back-off ends."""
        self._fetchers: dict[str, AlterLogDirsFetcher] = {}
        self.bytes_copied = 0
        self.moved_count = 0
        """Moves that this process has completed."""

    @property
    def moves(self) -> tuple[TopicPartition, ...]:
        """Partitions that are being moved or wait for their turn."""
        return tuple(self._moves)

    def move(self, partition: Partition, log_dir: str) -> None:
        """Move a hosted replica to a directory that is online; its present directory cancels a move.

        Raises:
            PacelineError: an error of `LogManager.begin_move`; an earlier move to another directory has ended.
        """
        tp, log, future = partition.topic_partition, partition.log, self.logs.futures.get(partition.topic_partition)
        assert log is not None
        if future is not None and future.directory.path == log_dir:
            return
        self.stop((tp,))
        self.logs.futures.discard(tp)
        if log.directory.path != log_dir:
            self.logs.begin_move(tp, log_dir)
            self.start((partition,))
        if future is not None:
            self.storage.purge_later(future)

    def start(self, partitions: Iterable[Partition]) -> None:
        """Continue the moves of hosted partitions, as LeaderAndIsr does for moves that the last process began."""
        for partition in partitions:
            if partition.log is not None and partition.log.future is not None:
                self._moves[partition.topic_partition] = partition
        self._begin_next()

    def stop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop copying; the future logs stay."""
        for tp in topic_partitions:
            self._moves.pop(tp, None)
        for log_dir, fetcher in list(self._fetchers.items()):
            if fetcher.partition.topic_partition not in self._moves:
                self._close(log_dir)
        self._begin_next()

    def close(self) -> None:
        """Stop all moves; the next process continues them."""
        self._moves = {}
        for log_dir in list(self._fetchers):
            self._close(log_dir)

    def _close(self, log_dir: str) -> None:
        self._fetchers.pop(log_dir).close()

    def _begin_next(self) -> None:
        for tp in sorted(self._moves.keys() - self._delayed):
            if len(self._fetchers) >= self.hosted.config.num_replica_alter_log_dirs_threads:
                return
            future = self.logs.futures.get(tp)
            if future is None:
                del self._moves[tp]
            elif future.directory.path not in self._fetchers:
                fetcher = AlterLogDirsFetcher(self._moves[tp], future, self)
                self._fetchers[future.directory.path] = fetcher
                self.hosted.scheduler.call_soon(fetcher.run)

    # For the fetchers

    def completed(self, topic_partition: TopicPartition) -> None:
        """Continue with the next partition."""
        self.moved_count += 1
        self.stop((topic_partition,))

    def failed(self, topic_partition: TopicPartition) -> None:
        """Retry a move after the back-off, and meanwhile continue with the next partition."""
        partition = self._moves.get(topic_partition)
        self._delayed.add(topic_partition)
        self.stop((topic_partition,))
        if partition is not None:
            self._moves[topic_partition] = partition
        self.hosted.scheduler.call_later(
            self.hosted.config.replica_fetch_backoff_ms, partial(self._end_delay, topic_partition)
        )

    def _end_delay(self, topic_partition: TopicPartition) -> None:
        self._delayed.discard(topic_partition)
        if not self.hosted.stopped:
            self._begin_next()


class AlterLogDirsFetcher:
    """Copies one current log into its future log, and then swaps them."""

    def __init__(
        self,
        partition: Partition,
        future: PartitionLog,
        manager: AlterLogDirsManager,
    ) -> None:
        assert partition.log is not None
        self.partition = partition
        self._current = partition.log
        self._future = future
        self._logs = manager.logs
        self._hosted = manager.hosted
        self._storage = manager.storage
        self._manager = manager
        self._slice_bytes = min(_SLICE_BYTES, manager.hosted.config.replica_fetch_max_bytes)
        self._copy: SegmentCopy | None = None
        """The segment that is being copied in the background."""
        self._flush_to: int | None = None
        """Offset where the future log first reached the end of the current log."""
        self._is_closed = False

    def close(self) -> None:
        """Stop copying; work that runs in the background ends soon."""
        self._is_closed = True
        if self._copy is not None:
            self._copy.is_void = True

    def run(self, background_error: Exception | None = None) -> None:
        """Copy a slice, and schedule the next one; ``background_error`` is that of the last background work."""
        topic_partition = self.partition.topic_partition
        if self._is_closed or self._hosted.stopped:
            return
        if self.partition.log is not self._current or self._logs.futures.get(topic_partition) is not self._future:
            # The replica was deleted or set aside, or a directory has failed.
            self._manager.stop((topic_partition,))
            return
        try:
            if background_error is not None:
                raise background_error
            if self._current.future is None:  # the future log could not repeat a truncation, for want of room
                self._logs.futures.add(self._future)
            pause_ms = self._advance(topic_partition)
        except DamagedLogError as error:
            self._storage.log_damaged(topic_partition, error)
            self._manager.failed(topic_partition)
        except PacelineError as error:
            if self._current.directory.is_offline or self._future.directory.is_offline:
                self._manager.stop((topic_partition,))
                self._storage.storage_failed()
                return
            if self._logs.futures.get(topic_partition) is None:
                self._storage.purge_later(self._future)
                LOG.warning("move ended, start it again: partition=%s error=%s", topic_partition, error)
            else:
                LOG.warning("move failed, trying again: partition=%s error=%s", topic_partition, error)
            self._manager.failed(topic_partition)
        except Exception:  # an error of one log must not end the moves of all logs
            LOG.exception("move failed, trying again: partition=%s", topic_partition)
            self._manager.failed(topic_partition)
        else:
            if pause_ms is not None:
                self._hosted.scheduler.call_later(pause_ms, self.run)

    def _advance(self, topic_partition: TopicPartition) -> int | None:
        """Copy a slice, and swap the logs when both are equal; return the pause before the next slice.

        Return None after the swap, and while the background copies: it calls `run`.
        """
        quota, now_ms, futures = self._hosted.quotas.alter_log_dirs, self._hosted.now_ms(), self._logs.futures
        if self._copy is not None:
            copied = self._copy.take_copied_bytes()
            self._future.directory.note_append(copied)
            self._note_copied(copied)
            if self._copy.is_void or self._copy.is_finished:
                copy, self._copy = self._copy, None
                if not futures.adopt(topic_partition, copy):
                    self._manager.background.run(copy.remove, self.run)
                    return None
        if quota.is_exceeded(now_ms):
            return _QUOTA_CHECK_MS
        self._copy = self._copy or futures.begin_segment(topic_partition)
        if self._copy is not None:
            slice_bytes = min(_SLICES_OF_A_SEGMENT * self._slice_bytes, max(self._slice_bytes, quota.limit // 8))
            self._manager.background.run(partial(self._copy.run, slice_bytes), self.run)
            return None
        self._note_copied(futures.copy(topic_partition, self._slice_bytes))
        if futures.is_complete(topic_partition, self._flush_to):
            self._swap(topic_partition)
            return None
        if self._future.log_end_offset < self._current.log_end_offset:
            return _PAUSE_MS
        if self._flush_to is None:
            self._flush_to = self._future.log_end_offset
        self._manager.flusher.request(self._future)
        return _FLUSH_CHECK_MS

    def _note_copied(self, size: int) -> None:
        self._manager.bytes_copied += size
        self._hosted.quotas.alter_log_dirs.record(size, self._hosted.now_ms())

    def _swap(self, topic_partition: TopicPartition) -> None:
        """Let the future log serve the partition. No append or read is in progress: all run on this scheduler."""
        old = self._current
        moved = self._logs.futures.swap(topic_partition)
        self.partition.replace_log(moved)
        self._storage.purge_later(old)
        if old.directory.is_offline:
            self._storage.storage_failed()
        LOG.info("replica moved: partition=%s from=%s to=%s", topic_partition, old.directory.path, moved.directory.path)
        self._manager.completed(topic_partition)
