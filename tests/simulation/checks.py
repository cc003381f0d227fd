"""`Checks`: receives every event of a run from the cluster, passes it to the checks, and holds the verdicts."""

import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.broker.control.request_fence import ControlRequestDeferredError
from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.interface import Request
from paceline.log.compaction.cleaner import CleanedSegment
from paceline.log.retention import SegmentExtent
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    EpochAnswer,
    FetchResult,
    OffsetAnswer,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.control import ControlRequest, ControlResponse, LiveBroker
from paceline.model.errors import ErrorCode, PacelineError
from paceline.model.state_change import StateChange, StateChangeKind
from tests.simulation.client_checks import ClientChecks
from tests.simulation.compaction_checks import CompactionChecks
from tests.simulation.control_checks import ControlChecks
from tests.simulation.deletion_checks import DeletionChecks
from tests.simulation.deposed_checks import Asked, DeposedChecks
from tests.simulation.group_checks import GroupChecks
from tests.simulation.history import History, Poll, Reading, Send
from tests.simulation.observed_log import Mirror, ObservedLog
from tests.simulation.partition_record import PartitionRecord, PartitionRecords
from tests.simulation.places import Places
from tests.simulation.reachability_checks import ReachabilityChecks
from tests.simulation.replica_checks import ReplicaChecks
from tests.simulation.suspicion_checks import SuspicionChecks
from tests.simulation.truncation_checks import TruncationChecks
from tests.simulation.verdicts import Verdicts
from tests.simulation.zookeeper_checks import ZooKeeperChecks
from tests.support.zookeeper.client import AppliedWrite

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import BrokerLife, BrokerMachine, ControllerLife, Life


class BrokerLogWatcher:
    """Passes events of the logs of one broker process to the checks."""

    def __init__(
        self,
        checks: ReplicaChecks,
        truncations: TruncationChecks,
        compaction: CompactionChecks,
        groups: GroupChecks,
        life: "BrokerLife",
    ) -> None:
        self._checks = checks
        self._truncations = truncations
        self._compaction = compaction
        self._groups = groups
        self._life = life

    def originals(self, log: ObservedLog) -> Mirror | None:
        return self._checks.originals(log)

    def written(self, log: ObservedLog, data: bytes) -> None:
        if log.topic_partition.topic == OFFSETS_TOPIC:
            self._compaction.written(data)
            self._groups.written(data)

    def replaces(self, log: ObservedLog, cleaned: CleanedSegment) -> None:
        self._compaction.replaces(self._life, log, cleaned)

    def replaced(self, log: ObservedLog) -> None:
        self._checks.compacted(self._life, log)

    def appended(self, log: ObservedLog, first: int, as_leader: bool) -> None:
        self._checks.appended(self._life, log, first, as_leader)

    def truncated(self, log: ObservedLog, end_before: int, removed: Mirror) -> None:
        self._checks.truncated(self._life, log, end_before, removed)
        self._truncations.truncated(self._life, log, removed)

    def high_watermark_moved(self, log: ObservedLog, before: int) -> None:
        self._checks.high_watermark_moved(self._life, log, before)

    def log_start_moved(self, log: ObservedLog, before: int, high_watermark_before: int) -> None:
        self._checks.log_start_moved(self._life, log, before, high_watermark_before)

    def retained(self, log: ObservedLog, offset: int, goes: list[SegmentExtent], wall_ms: int) -> None:
        self._checks.retained(self._life, log, offset, goes, wall_ms)

    def set_aside(self, log: ObservedLog) -> None:
        self._checks.set_aside(self._life, log)

    def deleted(self, log: ObservedLog) -> None:
        self._checks.deleted(self._life, log)

    def moved(self, old: ObservedLog, log: ObservedLog) -> None:
        self._checks.moved(self._life, old, log)


class Checks:
    """Entry point of all checks."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self._cluster = cluster
        self.verdicts = Verdicts()
        self.places = Places()
        self.history = History()
        self.records = PartitionRecords(cluster.profile.min_insync_replicas)
        self.compaction = CompactionChecks(self.verdicts, self.records)
        self.replicas = ReplicaChecks(cluster, self.verdicts, self.records, self.compaction)
        self.groups = GroupChecks(cluster, self.verdicts, self.records, self.compaction)
        self.zookeeper = ZooKeeperChecks(cluster, self.verdicts, self.records)
        self.control = ControlChecks(cluster, self.verdicts, self.records)
        self.suspicion = SuspicionChecks(cluster, self.verdicts)
        self.reachability = ReachabilityChecks(cluster, self.verdicts, self.records, self.history)
        self.clients = ClientChecks(self.verdicts, self.records, self.history)
        self.deposed = DeposedChecks(cluster, self.verdicts, self.records)
        self.truncations = TruncationChecks(cluster, self.verdicts, self.records, self.history)
        self.deletions = DeletionChecks(self.verdicts, self.records)
        self.dead_topic_ids: dict[str, None] = {}
        """Ids of topics whose deletion was requested; clients ignore metadata with these ids."""

    # Operators

    def topic_doomed(self, topic: str) -> None:
        """Record that the deletion of a topic was requested."""
        topic_id = self.records.topic_ids.get(topic)
        if topic_id is not None:
            self.dead_topic_ids[topic_id] = None

    def topic_harmed(self, topic: str) -> None:
        """Record that invalid data was written to a topic's nodes."""
        topic_id = self.records.topic_ids.get(topic)
        for record in self.records.by_id.values():
            if record.topic_id == topic_id:
                record.harmed = True
                record.voided = record.voided or "foreign data"

    def unclean_allowed(self, record: PartitionRecord) -> None:
        """Record that an unclean election of a partition was allowed."""
        record.unclean_allowed = True

    # ZooKeeper

    def session_opened(self, life: "Life", session_id: int) -> None:
        self.zookeeper.session_opened(life, session_id)

    def zookeeper_asked(self, life: "Life", requests: Sequence[Request]) -> None:
        self.zookeeper.asked(life, requests)

    def zookeeper_written(self, write: AppliedWrite) -> None:
        try:
            self.zookeeper.written(write)
        except MalformedZnodeError as error:
            if write.session_id in self.zookeeper.operators:
                return
            self.verdicts.fail("R11", f"a state node was written with invalid data: {error}")

    # Controllers and brokers

    def control_sent(self, life: "ControllerLife", broker: LiveBroker, request: ControlRequest) -> None:
        self.control.sent(life, broker, request)

    def deliver_control(
        self, sender: "ControllerLife", target: "BrokerLife", request: ControlRequest
    ) -> ControlResponse:
        recorder = self._cluster.recorder
        if recorder is None:
            return self.control.deliver(sender, target, request)
        try:
            response = self.control.deliver(sender, target, request)
        except PacelineError as error:
            recorder.controlled(target, request, ControlResponse(error.code))
            raise
        recorder.controlled(target, request, response)
        return response

    def event_handled(self, life: "ControllerLife", name: str) -> None:
        self.control.event_handled(life, name)

    def controller_changed(self, life: "ControllerLife", change: StateChange) -> None:
        if self._cluster.recorder is not None:
            self._cluster.recorder.changed(change)
        if change.kind is not StateChangeKind.TRANSITION:
            self._tell(life, change)

    def broker_changed(self, life: "BrokerLife", change: StateChange) -> None:
        if self._cluster.recorder is not None:
            self._cluster.recorder.changed(change)
        self._tell(life, change)
        self.replicas.broker_changed(life, change)

    def _tell(self, life: "Life", change: StateChange) -> None:
        where = f" {change.topic_partition}" if change.topic_partition is not None else ""
        offsets = " ".join(f"{one.broker_id}:{one.log_end_offset}/{one.high_watermark}" for one in change.replicas)
        self._cluster.note(
            life.name,
            f"{change.kind.value}{where} leader {change.leader} epoch {change.leader_epoch} isr {change.isr} "
            f"v{change.zk_version} [{offsets}] {change.cause or ''}",
        )

    def log_watcher(self, life: "BrokerLife") -> BrokerLogWatcher:
        return BrokerLogWatcher(self.replicas, self.truncations, self.compaction, self.groups, life)

    def broker_started(self, life: "BrokerLife") -> None:
        self.replicas.started(life)

    def power_lost(self, machine: "BrokerMachine") -> None:
        self.replicas.power_lost(machine)

    # Failures

    def expected_error(self, name: str, error: Exception) -> Exception:
        """Return ``error`` if it is an expected answer to a call; an error of another class fails the run."""
        if not isinstance(error, PacelineError):
            self.unexpected(name, error)
        elif isinstance(error, ControlRequestDeferredError):
            self._cluster.note(name, str(error))
        return error

    def unexpected(self, name: str, error: BaseException) -> None:
        """Record an exception raised by a callback, which fails the run."""
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames[-4:]))
        self._cluster.note(name, f"fails: {error!r}")
        self.verdicts.fail("X1", f"{name}: {error!r} at {where}")

    # Clients

    def sent(self, send: Send) -> None:
        self.history.add(send)
        self.replicas.batch_topics[send.crc] = send.topic_id

    def produce_answered(
        self, life: "BrokerLife", send: Send, result: ProduceResult, asked: Asked | None = None
    ) -> None:
        self.clients.produce_answered(life, send, result)
        if self._cluster.recorder is not None:
            self._cluster.recorder.produced(send, result)
        # An acknowledgement with acks=all needs no proof of leadership; most errors are not answers of a leader.
        is_terminal = result.failure is not None and result.failure.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if is_terminal or (result.failure is None and send.acks is not RequiredAcks.ALL):
            # A record acknowledged with acks=1 may be lost by any change of leader, so this answer waits for no proof.
            asked = asked if is_terminal else None
            send.told_by_deposed = self.deposed.answered(life, send.topic_partition, send.topic_id, asked)

    def fetch_answered(
        self,
        life: "BrokerLife",
        reading: Reading,
        position: int,
        result: FetchResult,
        asked: Asked | None = None,
    ) -> None:
        self.clients.fetch_answered(life, reading, position, result)
        if result.failure is None or result.failure.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            reading.told_by_deposed = self.deposed.answered(life, reading.topic_partition, reading.topic_id, asked)

    def end_answered(
        self, life: "BrokerLife", reading: Reading, answer: OffsetAnswer, asked: Asked | None = None
    ) -> None:
        if answer.failure is None:
            reading.end_by_deposed = self.deposed.answered(life, reading.topic_partition, reading.topic_id, asked)
            log = life.logs.get(reading.topic_partition)
            if isinstance(log, ObservedLog):
                self.truncations.look_up(life, log, log.high_watermark)

    def epoch_end_answered(
        self,
        life: "BrokerLife",
        reading: Reading,
        position: int,
        epoch: int,
        answer: EpochAnswer,
        asked: Asked | None = None,
    ) -> None:
        hosted = life.node.replica_manager.hosted.online.get(reading.topic_partition)
        if answer.failure is None and hosted is not None and hosted.topic_id == reading.topic_id:
            self.places.reach("a client asks where a leader epoch ended")
            if not self.deposed.answered(life, reading.topic_partition, reading.topic_id, asked):
                self.clients.epoch_end_told(reading, position, epoch, answer.end)

    def deletion_asked(self, life: "BrokerLife", query: DeleteRecordsQuery) -> int | None:
        return self.deletions.asked(life, query)

    def deletion_taken(self, life: "BrokerLife", query: DeleteRecordsQuery, offset: int | None) -> None:
        self.deletions.taken(life, query, offset)

    def deletion_answered(
        self, life: "BrokerLife", query: DeleteRecordsQuery, offset: int | None, result: DeleteRecordsResult
    ) -> None:
        self.deletions.answered(life, query, offset, result)

    def read_below_start(self, life: "BrokerLife", topic_id: str, position: int, result: FetchResult) -> None:
        self.deletions.read(life, topic_id, position, result)

    def polled(self, reading: Reading, position: int, poll: Poll) -> None:
        self.clients.polled(reading, position, poll)
        if self._cluster.recorder is not None:
            self._cluster.recorder.polled(reading, poll)

    def out_of_range(self, reading: Reading, position: int, message: str) -> None:
        self.clients.out_of_range(reading, position, message)

    def end_told(self, reading: Reading, offset: int, by_deposed: bool) -> None:
        # ListOffsets names no topic id: after a deletion the answer may be about the next topic of that name.
        topic = reading.topic_partition.topic
        if self.records.topic_ids.get(topic) == reading.topic_id and topic not in self.records.spoiled_configs:
            self.clients.end_told(reading, offset, by_deposed)

    def out_of_order(self, send: Send, message: str) -> None:
        self.clients.out_of_order(send, message)
