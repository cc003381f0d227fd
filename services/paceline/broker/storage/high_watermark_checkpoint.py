"""`HighWatermarkCheckpoint`: write high watermarks to ``replication-offset-checkpoint`` periodically."""

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.log_manager import LogManager
from paceline.model.scheduler import Cancellable


class HighWatermarkCheckpoint:
    """Writes the high watermarks of all logs, one file per log directory, at each interval."""

    def __init__(self, logs: LogManager, hosted: HostedPartitions, storage: ReplicaStorage) -> None:
        self._logs = logs
        self._hosted = hosted
        self._storage = storage
        self._timer: Cancellable | None = None

    def start(self) -> None:
        """Start to write, if not started; after the first LeaderAndIsr, so that no partition is missing."""
        if self._timer is None and not self._hosted.stopped:
            interval_ms = self._hosted.config.replica_high_watermark_checkpoint_interval_ms
            self._timer = self._hosted.scheduler.call_later(interval_ms, self._write)

    def stop(self) -> None:
        """Write no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _write(self) -> None:
        if not self._hosted.stopped:
            self._timer = None
            self.start()
            self._logs.checkpoint_high_watermarks()
            self._storage.take_failed_dirs_offline()
