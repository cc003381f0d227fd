"""Write the offset checkpoints: high watermarks, recovery points, log starts, first dirty offsets.

Source: docs/protocol/log-format.md#offset-checkpoints. `checkpoint.py` defines the format of the files.
"""

from collections.abc import Mapping

from paceline.log.checkpoint import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    write_offsets,
)
from paceline.log.files import Files, join
from paceline.log.log_directory import LogDirectory
from paceline.log.partition_log import PartitionLog
from paceline.model.identifiers import TopicPartition


class OffsetCheckpoints:
    """Writes the checkpoints of a directory from the logs that lie in it."""

    def __init__(self, files: Files, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        self._files = files
        self._logs = logs
        self.futures: dict[TopicPartition, PartitionLog] = {}
        """The future logs; each lies in another directory than the current log."""
        self.stale: dict[str, set[TopicPartition]] = {}
        """Partitions per directory that its checkpoints may still list although their log was deleted."""

    def logs_in(self, directory: LogDirectory) -> list[PartitionLog]:
        """Return the current and future logs that lie in a directory."""
        found = [log for log in self._logs.values() if log.directory is directory]
        if self.futures:
            found += [log for log in self.futures.values() if log.directory is directory]
        return found

    def write_high_watermarks(self, directory: LogDirectory) -> None:
        """Write the high watermarks of all logs, including logs of partitions without a role at the moment.

        Raises:
            OSError: storage failed.
        """
        offsets = {log.topic_partition: log.high_watermark for log in self.logs_in(directory)}
        write_offsets(self._files, join(directory.path, HIGH_WATERMARK_CHECKPOINT), offsets)

    def write_recovery_points(self, directory: LogDirectory) -> None:
        """Write every log's recovery point, after its leader epochs.

        Raises:
            OSError: storage failed.
        """
        points = {log.topic_partition: log.recovery_point for log in self.logs_in(directory)}
        write_offsets(self._files, join(directory.path, RECOVERY_POINT_CHECKPOINT), points)
        for log in self.logs_in(directory):
            log.checkpointed_recovery_point = points.get(log.topic_partition)

    def write_log_starts(self, directory: LogDirectory) -> None:
        """Write the log start offset of every log, unless the name of the log's first segment durably contains it.

        See `PartitionLog.names_its_start`.

        Raises:
            OSError: storage failed.
        """
        offsets = {
            log.topic_partition: log.log_start_offset for log in self.logs_in(directory) if not log.names_its_start
        }
        write_offsets(self._files, join(directory.path, LOG_START_CHECKPOINT), offsets)

    def write_cleaner_offsets(self, directory: LogDirectory) -> None:
        """Write the first dirty offset of each compacted log; create the file only when there is an offset to write.

        Raises:
            OSError: storage failed.
        """
        path = join(directory.path, CLEANER_CHECKPOINT)
        offsets = {
            log.topic_partition: log.compaction.first_dirty_offset
            for log in self.logs_in(directory)
            if log.compaction.first_dirty_offset is not None
        }
        if offsets or self._files.exists(path):
            write_offsets(self._files, path, offsets)

    def write_all(self, directory: LogDirectory) -> None:
        """Write all four checkpoints, and thereby remove the entries of deleted logs.

        Raises:
            OSError: storage failed.
        """
        self.write_recovery_points(directory)
        self.write_log_starts(directory)
        self.write_high_watermarks(directory)
        self.write_cleaner_offsets(directory)
        self.stale[directory.path] = set()
