"""Flush logs in the background: rolled segments, ``flush.ms``, leader epochs, the offset checkpoints.

The fsyncs of several logs run as one piece of `BackgroundWork`, while the event loop continues to append. Idle
producers are also removed here.
Source: docs/protocol/log-format.md#durability, #offset-checkpoints and #producer-state.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from paceline.broker.interfaces import BackgroundWork
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.log.durability import FlushTask
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.model.errors import LogDirFullError, PacelineError
from paceline.model.scheduler import Periodic

LOG: Final = logging.getLogger(__name__)
_FLUSHES_AT_ONCE: Final = 64
_PRODUCER_CHECK_MS: Final = 600_000
"""Interval of the check for idle producers."""


class LogFlusher:
    """Checks the logs periodically and flushes those that need it."""

    def __init__(self, logs: LogManager, hosted: HostedPartitions, background: BackgroundWork) -> None:
        config = hosted.config
        self._logs = logs
        self._scheduler = hosted.scheduler
        self._background = background
        self._producer_expiration_ms = config.transactional_id_expiration_ms
        self._queue: dict[PartitionLog, None] = {}
        self._busy = False
        self._on_idle: Callable[[], None] | None = None
        self._timers = (
            Periodic(self._scheduler, config.replica_high_watermark_checkpoint_interval_ms, self._check_flushes),
            Periodic(self._scheduler, config.log_flush_offset_checkpoint_interval_ms, self._checkpoint),
            Periodic(self._scheduler, _PRODUCER_CHECK_MS, self._forget_producers),
        )
        self._stopped = False

    def start(self) -> None:
        """Start the periodic checks; each check first runs after its interval."""
        for timer in self._timers:
            timer.start()

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Start no further flush; ``on_idle`` is called when none is running, now or later.

        Closing the logs flushes the remaining data.
        """
        self._stopped = True
        for timer in self._timers:
            timer.stop()
        self._queue = {}
        if self._busy:
            self._on_idle = on_idle
        else:
            on_idle()

    def request(self, log: PartitionLog) -> None:
        """Flush a log soon; does nothing while it waits for its flush."""
        self._queue[log] = None
        self._next()

    def _check_flushes(self) -> None:
        now_ms = self._scheduler.now_ms()
        for log in (*self._logs.all_logs(), *self._logs.futures.all()):
            if log.flush_needed(now_ms):
                self._queue[log] = None
        self._next()

    def _checkpoint(self) -> None:
        """Write the offset checkpoints now, and queue logs whose leader epochs are only in memory."""
        for log in (*self._logs.all_logs(), *self._logs.futures.all()):
            if log.epochs.dirty:
                self._queue[log] = None
        self._logs.checkpoint_recovery_points()
        self._logs.checkpoint_log_start_offsets()
        self._next()

    def _forget_producers(self) -> None:
        """Remove producers that were idle for a long time: every producer has a new id, so states accumulate."""
        wall_ms = self._scheduler.wall_ms()
        for log in self._logs.all_logs():
            log.remove_expired_producers(wall_ms, self._producer_expiration_ms)

    def _next(self) -> None:
        if self._busy or self._stopped:
            return
        flushes = _Flushes()
        while self._queue and len(flushes.begun) < _FLUSHES_AT_ONCE:
            log = next(iter(self._queue))
            del self._queue[log]
            try:
                task = log.begin_flush()
            except PacelineError:
                # The log was deleted, or its directory is offline; both were handled when they happened.
                continue
            if task is not None:
                flushes.begun.append((log, task))
        if flushes.begun:
            self._busy = True
            self._background.run(flushes.run, partial(self._flushed, flushes))

    def _flushed(self, flushes: "_Flushes", _error: Exception | None) -> None:
        self._busy = False
        now_ms = self._scheduler.now_ms()
        for log, task in flushes.done:
            log.finish_flush(task, now_ms)
        for log, task in flushes.without_room:
            log.abandon_flush(task)
        on_idle, self._on_idle = self._on_idle, None
        if on_idle is not None:
            on_idle()
        self._next()


class _Flushes:
    """Flushes that run in sequence as one piece of background work.

    A broker that becomes leader of ten thousand partitions has as many leader epoch files to write; scheduling each
    separately would cost the event loop more than writing the files.
    """

    def __init__(self) -> None:
        self.begun: list[tuple[PartitionLog, FlushTask]] = []
        self.done: list[tuple[PartitionLog, FlushTask]] = []
        self.without_room: list[tuple[PartitionLog, FlushTask]] = []

    def run(self) -> None:
        """Run all flushes; after a failure the log's directory is offline, and the log does not count as flushed."""
        for log, task in self.begun:
            try:
                task.run()
            except LogDirFullError:
                self.without_room.append((log, task))
                continue
            except PacelineError:
                continue
            except Exception:
                LOG.exception("flush failed, its log directory is offline: partition=%s", log.topic_partition)
                continue
            self.done.append((log, task))
