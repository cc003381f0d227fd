"""DeleteRecords: requests, answers, and reads below the deleted offset (R18)."""

from typing import TYPE_CHECKING

from paceline.model.client_io import DeleteRecordsQuery, DeleteRecordsResult, FetchResult
from paceline.model.errors import ErrorCode
from tests.simulation.observed_log import ObservedLog
from tests.simulation.partition_record import PartitionRecord, PartitionRecords
from tests.simulation.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.simulation.machines import BrokerLife


class DeletionChecks:
    """R18 for requests to leaders, their responses and reads; `ReplicaChecks` checks how log starts move."""

    def __init__(self, verdicts: Verdicts, records: PartitionRecords) -> None:
        self._verdicts = verdicts
        self._records = records

    def asked(self, life: "BrokerLife", query: DeleteRecordsQuery) -> int | None:
        """Record a request before a broker handles it; return its offset, None when the offset is unknown."""
        record, log = self._known(life, query)
        offset = query.before_offset
        if offset is None:
            offset = None if log is None else log.high_watermark
        if offset is not None and offset <= record.thw:
            record.asked_start = max(record.asked_start, offset)
        return offset

    def taken(self, life: "BrokerLife", query: DeleteRecordsQuery, offset: int | None) -> None:
        """Record that a leader accepted a deletion: its log always starts at or above the offset from now on."""
        record, log = self._known(life, query)
        if log is None or offset is None or log.directory.is_offline:
            return
        self._verdicts.check(
            "R18",
            log.log_start_offset >= offset,
            f"{record}: {life.name} takes a deletion up to {offset} and starts at {log.log_start_offset}",
        )
        promised = record.promised_starts.get(life.broker_id, 0)
        # Only ``offset`` is promised: a higher log start comes from an earlier leader and may not be durable yet.
        record.promised_starts[life.broker_id] = max(promised, offset)

    def answered(
        self, life: "BrokerLife", query: DeleteRecordsQuery, offset: int | None, result: DeleteRecordsResult
    ) -> None:
        """Check a leader's response: every live replica has deleted the records below the offset."""
        if result.failure is not None or offset is None:
            return
        record, log = self._known(life, query)
        manager = life.node.replica_manager
        hosted = manager.hosted.online.get(query.topic_partition)
        if log is None or hosted is None:
            self._verdicts.check("R18", False, f"{record}: {life.name} acknowledges a deletion without a log")
            return
        starts = {life.broker_id: log.log_start_offset}
        for broker_id, follower in hosted.followers.items():
            machine = life.cluster.brokers.get(broker_id)
            known = None if machine is None or machine.life is None else machine.life.logs.get(query.topic_partition)
            registered = manager.hosted.metadata.snapshot.registered_broker_epoch(broker_id)
            # A restarted process may have loaded an older checkpoint; its next fetch reports it to the leader.
            same_process = (
                machine is not None
                and machine.life is not None
                and machine.life.node.broker_epoch == follower.broker_epoch == registered
            )
            is_asked = not manager.hosted.metadata.snapshot.is_offline_replica(query.topic_partition, broker_id)
            if known is not None and same_process and is_asked and broker_id not in record.flipped:
                starts[broker_id] = known.log_start_offset
        behind = {broker_id: start for broker_id, start in starts.items() if start < offset}
        self._verdicts.check(
            "R18",
            not behind and result.low_watermark >= offset,
            f"{record}: {life.name} acknowledges {offset} with {result.low_watermark}, replicas start at {starts}",
        )

    def read(self, life: "BrokerLife", topic_id: str, position: int, result: FetchResult) -> None:
        """Check a fetch below a leader's log start."""
        log = life.logs.get(result.topic_partition)
        if not isinstance(log, ObservedLog) or log.topic_id != topic_id or position >= log.log_start_offset:
            return
        told = None if result.failure is None else result.failure.code
        if told in (None, ErrorCode.OFFSET_OUT_OF_RANGE):
            self._verdicts.check(
                "R18",
                told is ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{life.name} lets read {position} of {result.topic_partition}, it starts at {log.log_start_offset}",
            )

    def _known(self, life: "BrokerLife", query: DeleteRecordsQuery) -> tuple[PartitionRecord, ObservedLog | None]:
        assert query.topic_id is not None
        record = self._records.get(query.topic_id, query.topic_partition)
        log = life.logs.get(query.topic_partition)
        return record, log if isinstance(log, ObservedLog) and log.topic_id == query.topic_id else None
