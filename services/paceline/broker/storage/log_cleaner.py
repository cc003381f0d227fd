"""Compact the logs of topics with ``cleanup.policy=compact``, on leaders and followers, the dirtiest log first.

A cleaning runs in slices. Each slice runs as background work; between two slices the node's scheduler swaps in written
segments and waits as long as ``log.cleaner.io.max.bytes.per.second`` requires.

Source: docs/protocol/log-format.md#compaction; Kafka 2.8 LogCleanerManager.grabFilthiestCompactedLog.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from paceline.broker.interfaces import BackgroundWork
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.compaction.cleanable import Cleanable
from paceline.log.compaction.cleaning_task import CleaningTask
from paceline.log.damage import DamagedLogError
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.model.errors import (
    CorruptMessageError,
    KafkaStorageError,
    LogDirFullError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Cancellable

LOG: Final = logging.getLogger(__name__)
_SLICE_BYTES: Final = 1 << 20


class _Cleaning:
    """A log that is being compacted."""

    def __init__(self, log: PartitionLog, task: CleaningTask) -> None:
        self.log = log
        self.task = task


class LogCleaner:
    """Selects logs and compacts them, ``log.cleaner.threads`` at a time."""

    def __init__(
        self, logs: LogManager, hosted: HostedPartitions, storage: ReplicaStorage, background: BackgroundWork
    ) -> None:
        self._logs = logs
        self._hosted = hosted
        self._storage = storage
        self._scheduler = hosted.scheduler
        self._background = background
        self._config = hosted.config
        self._cleanings: dict[TopicPartition, _Cleaning] = {}
        self.uncleanable: dict[TopicPartition, PartitionLog] = {}
        """Logs whose compaction has failed and would fail again."""
        self.run_count = 0
        self.bytes_processed = 0
        self.bytes_removed = 0
        self.max_dirty_percent = 0.0
        """Dirtiness of the dirtiest log at the last check."""
        self._timer: Cancellable | None = None
        self._in_background = 0
        self._throttled_until_ms = 0.0
        self._on_idle: Callable[[], None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Start; logs are first checked after ``log.cleaner.backoff.ms``."""
        if self._config.log_cleaner_enable:
            self._look_later()

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Stop compacting; call ``on_idle`` when no slice is running, now or later."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._in_background:
            self._on_idle = on_idle
        else:
            on_idle()

    # -- choosing ----------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._scheduler.call_later(self._config.log_cleaner_backoff_ms, self._check_logs)

    def _check_logs(self) -> None:
        """Start to clean the dirtiest logs, as many as there are threads."""
        if self._stopped:
            return
        self._look_later()
        if len(self._cleanings) >= self._config.log_cleaner_threads:
            return
        self._forget_replaced_logs()
        wall_ms = self._scheduler.wall_ms()
        due: list[tuple[Cleanable, PartitionLog]] = []
        dirtiest = 0.0
        for topic_partition, partition in list(self._hosted.online.items()):
            log = partition.log
            if log is None or not self._may_clean(topic_partition, log):
                continue
            found = self._cleanable(log, wall_ms)
            if found is not None:
                dirtiest = max(dirtiest, found.dirty_ratio)
                if found.is_due(log.config):
                    due.append((found, log))
        self.max_dirty_percent = 100 * dirtiest
        due.sort(key=lambda one: one[0].dirty_ratio, reverse=True)
        for found, log in due[: self._config.log_cleaner_threads - len(self._cleanings)]:
            self._begin(found, log, wall_ms)

    def _forget_replaced_logs(self) -> None:
        """Remove logs that were deleted, or rebuilt from their leader, from the logs whose compaction failed."""
        partitions = self._hosted.online
        for topic_partition, log in list(self.uncleanable.items()):
            if topic_partition not in partitions or partitions[topic_partition].log is not log:
                del self.uncleanable[topic_partition]

    def _may_clean(self, topic_partition: TopicPartition, log: PartitionLog) -> bool:
        return (
            log.config.compacts
            and log.future is None
            and not log.directory.is_offline
            and topic_partition not in self._cleanings
            and self.uncleanable.get(topic_partition) is not log
            and self._hosted.topic_configs.deletion_is_known(topic_partition.topic)
        )

    def _cleanable(self, log: PartitionLog, wall_ms: int) -> Cleanable | None:
        try:
            log.compaction.roll_idle_segment(wall_ms)
            return log.compaction.find_cleanable(wall_ms)
        except Exception as error:  # an error of one log must not end the compaction of all logs
            self._failed(log, error)
            return None

    # -- cleaning ----------------------------------------------------------------------------------------------

    def _begin(self, found: Cleanable, log: PartitionLog, wall_ms: int) -> None:
        buffer_bytes = self._config.log_cleaner_dedupe_buffer_size // self._config.log_cleaner_threads
        task = log.compaction.begin(found, wall_ms, buffer_bytes, self._config.log_cleaner_io_buffer_load_factor)
        cleaning = self._cleanings[log.topic_partition] = _Cleaning(log, task)
        self._run(cleaning)

    def _run(self, cleaning: _Cleaning) -> None:
        """Run the next slice, after the pause that the I/O limit requires."""
        if self._stopped:
            return
        wait_ms = self._throttled_until_ms - self._scheduler.now_ms()
        if wait_ms > 0:
            self._scheduler.call_later(wait_ms, lambda: self._run(cleaning))
            return
        self._in_background += 1
        self._background.run(lambda: cleaning.task.run(_SLICE_BYTES), partial(self._slice_done, cleaning))

    def _slice_done(self, cleaning: _Cleaning, error: Exception | None) -> None:
        self._in_background -= 1
        task, log = cleaning.task, cleaning.log
        self.bytes_processed += task.bytes_processed
        limit = self._config.log_cleaner_io_max_bytes_per_second
        now_ms = self._scheduler.now_ms()
        self._throttled_until_ms = max(self._throttled_until_ms, now_ms) + 1_000 * task.bytes_processed / limit
        if self._stopped:
            self._maybe_notify_idle()
            return
        try:
            if error is not None:
                raise error
            # The topic may have another policy by now, or its settings may have become unreadable.
            if self._is_void(log):
                self._end(log)
                return
            if task.cleaned is not None:
                self._put_in_place(cleaning)
            if task.is_finished:
                self._finish(cleaning)
                return
        except Exception as failure:
            self._failed(log, failure)
            self._end(log)
            return
        self._run(cleaning)

    def _is_void(self, log: PartitionLog) -> bool:
        topic_partition = log.topic_partition
        partition = self._hosted.online.get(topic_partition)
        is_hosted = partition is not None and partition.log is log
        return (
            not is_hosted
            # A move copies the log: removed tombstones would bring back values that it has already copied.
            or log.future is not None
            or not log.config.compacts
            or not self._hosted.topic_configs.deletion_is_known(topic_partition.topic)
        )

    def _put_in_place(self, cleaning: _Cleaning) -> None:
        cleaned, log = cleaning.task.cleaned, cleaning.log
        assert cleaned is not None
        removed = log.compaction.replace_segments(cleaning.task, cleaned)
        if removed:
            self.bytes_removed += max(0, cleaned.bytes_before - cleaned.segment.size)
            self._scheduler.call_later(
                log.config.file_delete_delay_ms, lambda: None if self._stopped else log.remove_files(removed)
            )

    def _finish(self, cleaning: _Cleaning) -> None:
        log = cleaning.log
        log.compaction.finish(cleaning.task)
        self._logs.checkpoint_cleaner_offsets()
        self.run_count += 1
        LOG.info("compacted log: partition=%s end_offset=%d", log.topic_partition, cleaning.task.end_offset)
        self._end(log)

    def _end(self, log: PartitionLog) -> None:
        del self._cleanings[log.topic_partition]
        self._scheduler.call_soon(self._check_logs)

    def _maybe_notify_idle(self) -> None:
        if not self._in_background and self._on_idle is not None:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    def _failed(self, log: PartitionLog, error: Exception) -> None:
        """Exclude the log from compaction, unless its directory has failed, its disk is full, or the log is closed."""
        topic_partition = log.topic_partition
        if isinstance(error, KafkaStorageError) and log.directory.is_offline:
            self._storage.storage_failed()
            return
        if isinstance(error, UnknownTopicOrPartitionError | LogDirFullError):
            return
        self.uncleanable[topic_partition] = log
        LOG.error("compaction failed, log is not compacted any more: partition=%s error=%s", topic_partition, error)
        if isinstance(error, CorruptMessageError):
            damage = error if isinstance(error, DamagedLogError) else DamagedLogError(str(error))
            self._storage.log_damaged(topic_partition, damage)
