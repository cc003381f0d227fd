"""`HighWatermarkCheckpoint`: write high watermarks to ``replication-offset-checkpoint`` periodically."""

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.log_manager import LogManager
from paceline.model.scheduler import Periodic


class HighWatermarkCheckpoint(Periodic):
    """Writes the high watermarks of all logs, one file per log directory, at each interval.

    Start it after the first LeaderAndIsr, so that no partition is missing in the first file.
    """

    def __init__(self, logs: LogManager, hosted: HostedPartitions, storage: ReplicaStorage) -> None:
        super().__init__(hosted.scheduler, hosted.config.replica_high_watermark_checkpoint_interval_ms, self._write)
        self._logs = logs
        self._hosted = hosted
        self._storage = storage

    def _write(self) -> None:
        if not self._hosted.stopped:
            self._logs.checkpoint_high_watermarks()
            self._storage.take_failed_dirs_offline()
