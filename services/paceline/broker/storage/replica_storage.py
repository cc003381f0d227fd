"""`ReplicaStorage`: react to damaged logs, failed log directories and log starts that have moved."""

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.storage.damaged_logs import DamagedLogs
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.model.identifiers import TopicPartition


class ReplicaStorage:
    """The logs of the hosted partitions, apart from appends and reads."""

    def __init__(self, logs: LogManager, hosted: HostedPartitions) -> None:
        self._logs = logs
        self._hosted = hosted
        self._scheduler = hosted.scheduler
        self.damaged_logs = DamagedLogs(logs, hosted, hosted.listener.replicas_changed)
        self.log_damaged = self.damaged_logs.found
        self._failed_dirs: dict[str, None] = {}

    def storage_failed(self) -> None:
        """Take all partitions of a failed directory offline soon, after a log operation failed.

        Not immediately, because the caller is handling a request.
        """
        self._scheduler.call_soon(self.take_failed_dirs_offline)

    def take_failed_dirs_offline(self) -> None:
        """Set exactly the partitions on failed log directories Offline, once per directory."""
        lost = [one for one in self._hosted.online.values() if one.log is not None and one.log.directory.is_offline]
        for partition in lost:
            self._hosted.set_offline(partition.topic_partition)
        self._logs.futures.forget_failed()
        self._hosted.end_topic_roles(partition.topic_partition.topic for partition in lost)
        for log_dir in self._logs.log_dirs:
            if log_dir not in self._logs.live_log_dirs and log_dir not in self._failed_dirs:
                self._failed_dirs[log_dir] = None
                self._hosted.listener.log_dir_failed(log_dir)
        self._hosted.deliver_changes()

    def directory_returned(self, log_dir: str) -> None:
        """Host the partitions of a directory again that was offline."""
        self._failed_dirs.pop(log_dir, None)
        self.damaged_logs.found_by_load()
        self.readmit()

    def readmit(self) -> None:
        """Let Offline partitions be hosted again if their log can be used or created; the controller gives roles."""
        found = [
            one for one in self._hosted.offline if self.is_reachable(one) and not self.damaged_logs.is_offline(one)
        ]
        for topic_partition in found:
            self._hosted.end_offline(topic_partition)
        if found:
            self._hosted.listener.replicas_changed()

    def is_reachable(self, topic_partition: TopicPartition) -> bool:
        """Whether the log of a partition is in an online directory, or certainly does not exist."""
        log, logs = self._logs.get(topic_partition), self._logs
        return len(logs.live_log_dirs) == len(logs.log_dirs) if log is None else not log.directory.is_offline

    def make_log_starts_durable(self) -> None:
        """Persist changed log start offsets before a response reports deleted records."""
        if not self._hosted.log_starts_moved:
            return
        self._hosted.log_starts_moved = not self._logs.checkpoint_log_start_offsets()
        if len(self._logs.live_log_dirs) < len(self._logs.log_dirs):
            self.storage_failed()

    def purge_later(self, log: PartitionLog) -> None:
        """Delete the files of a deleted log after its delay."""
        self.purge_after(log.config.file_delete_delay_ms)

    def purge_after(self, delay_ms: int) -> None:
        """Delete the files of deleted logs after a delay."""
        self._scheduler.call_later(delay_ms, self._purge)

    def _purge(self) -> None:
        if not self._hosted.stopped:
            self._logs.purge_deleted()
