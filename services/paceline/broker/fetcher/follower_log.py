"""`FollowerLog`: append the leader's records to a follower's log, and truncate it. A leader never truncates its log.

Source: docs/protocol/log-format.md#append-as-follower, docs/protocol/replication.md#follower-high-watermark.
"""

from dataclasses import dataclass

from paceline.broker.partition.host import PartitionHost
from paceline.broker.partition.partition import Partition
from paceline.log.partition_log import PartitionLog
from paceline.model.errors import LogDirFullError
from paceline.model.state_change import StateChangeKind
from paceline.replication.fetch_session import PartitionChange
from paceline.replication.high_watermark import follower_high_watermark


@dataclass(slots=True, eq=False)
class FollowerLog:
    """Applies fetched data to the log of a partition."""

    _partition: Partition
    _host: PartitionHost[Partition]

    def append(self, batches: bytes, leader_high_watermark: int, leader_log_start_offset: int) -> None:
        """Append the leader's batches, then raise high watermark and log start offset towards the leader's.

        The high watermark stays within the log, and the log start offset stays at or below the high watermark.

        Raises:
            LogDirFullError: the disk has no room for all batches; the two offsets were raised nevertheless.
            PacelineError: an error of `PartitionLog.append_as_follower`.
        """
        log, no_room = self._log(), None
        try:
            if batches:
                log.directory.space.check(uses_reserve=True)
                if leader_log_start_offset >= log.log_end_offset and log.size_bytes:
                    self._drop_deleted_records(log, batches, leader_log_start_offset)
                log.append_as_follower(batches)
        except LogDirFullError as error:
            no_room = error
        self._follow_high_watermark(log, leader_high_watermark)
        start = min(leader_log_start_offset, log.high_watermark)
        if start > log.log_start_offset and log.increment_log_start_offset(start):
            self._host.log_start_moved(log)
        if no_room is not None:
            raise no_room

    def truncate_to(self, offset: int, reason: str) -> None:
        """Remove the records at and above ``offset``, with their leader epochs."""
        log = self._log()
        if offset < log.log_end_offset:
            self._emit(f"to {offset}: {reason}", offset)
        starts_lower = offset < log.log_start_offset
        log.truncate_to(offset)
        if starts_lower:
            # Otherwise a crash would restore the old log start offset, which is above the next records.
            self._host.log_start_moved(log)

    def restart_at(self, offset: int) -> None:
        """Remove all records and restart at the leader's log start offset: the two logs have no offset in common."""
        log = self._log()
        self._emit(f"fully, the leader's log starts at {offset}", offset)
        log.truncate_fully_and_start_at(offset)
        self._host.log_start_moved(log)

    def _log(self) -> PartitionLog:
        log = self._partition.log
        assert log is not None and not self._partition.is_leader
        return log

    def _drop_deleted_records(self, log: PartitionLog, batches: bytes, leader_log_start_offset: int) -> None:
        """Restart the log at the leader's log start offset if the first fetched batch begins below the log's end.

        The leader has deleted all offsets of this log, whose records may be of another history than the batch.
        """
        if int.from_bytes(batches[:8], "big") < log.log_end_offset:
            self.restart_at(leader_log_start_offset)

    def _follow_high_watermark(self, log: PartitionLog, leader_high_watermark: int) -> None:
        high_watermark = follower_high_watermark(
            log.high_watermark, leader_high_watermark, log.log_end_offset, log.log_start_offset
        )
        if high_watermark != log.high_watermark:
            log.update_high_watermark(high_watermark)
            if self._partition.read_by_clients:
                self._host.record_change(self._partition, PartitionChange.HIGH_WATERMARK)

    def _emit(self, cause: str, end_offset: int) -> None:
        self._host.emit(StateChangeKind.TRUNCATED, self._partition, cause=cause, end_offset=end_offset)
