"""Record a run for the console: state changes, samples of each partition, acknowledgements, faults and the verdict.

The recorder only reads: it draws no random number and schedules no callback, so a recorded run has the digest of the
same run without a recorder. It samples after the first callback that is due; a sample has the time of that callback.
"""

from typing import TYPE_CHECKING, Any

from paceline.broker.control.request_reports import request_reports
from paceline.console.recording import (
    ACKNOWLEDGED,
    EVENT,
    FAULT,
    READ,
    SAMPLE,
    SAMPLE_MS,
    VERDICT,
    Entry,
    RecordingWriter,
)
from paceline.model.client_io import ProduceResult, RequiredAcks
from paceline.model.control import ControlRequest, ControlResponse
from paceline.model.identifiers import INTERNAL_TOPICS, TopicPartition
from paceline.model.state_change import StateChange, StateChangeKind, state_change_fields
from tests.simulation.history import Outcome, Poll, Reading, Send
from tests.simulation.partition_record import PartitionRecord
from tests.simulation.verdicts import INVARIANTS
from tests.simulation.world import MILLISECOND

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import BrokerLife

_FAULTS = (
    "crashes",
    "starts",
    "stops",
    "has stopped",
    "is told to stop",
    "loses",
    "dies",
    "has a flipped",
    "has foreign",
    "continues",
    "all is put right",
)


class Recorder:
    """Writes the recording of one run."""

    def __init__(self, cluster: "SimulatedCluster", writer: RecordingWriter) -> None:
        self._cluster = cluster
        self._writer = writer
        self._next_sample_us = 0
        self._seen = 0
        self._open: list[Send] = []
        self._read: dict[tuple[str, int], int] = {}
        self._early: list[Send] = []
        self._sampled_ms = -1

    # What the cluster reports

    def changed(self, change: StateChange) -> None:
        """Record a state change."""
        self._add(EVENT, state_change_fields(change))
        if change.kind is not StateChangeKind.TRANSITION:
            self._next_sample_us = 0  # show the moment of the change, not only the next half second

    def controlled(self, target: "BrokerLife", request: ControlRequest, response: ControlResponse) -> None:
        """Record a request of a controller for each of its partitions, with the broker's answer."""
        hosted, confirmed = target.node.replica_manager.hosted, target.node._highest_controller_epoch()
        watched = [state.topic_partition for state in request.partitions]
        for change in request_reports(request, response, watched, hosted, confirmed):
            self._add(EVENT, state_change_fields(change))

    def noted(self, who: str, what: str) -> None:
        """Record a line of the timeline when it tells of a fault or of an operator's work."""
        if who == "operator" or what.startswith(_FAULTS):
            self.fault(who, what)

    def fault(self, who: str, what: str) -> None:
        """Record a fault."""
        self._add(FAULT, {"who": who, "what": what})

    def produced(self, send: Send, result: ProduceResult) -> None:
        """Note an acknowledgement of a record above the high watermark: the moment of its arrival will be sampled."""
        hosted = self._leader_of(send.topic_id, send.topic_partition)
        if send.acks is not RequiredAcks.ALL or result.failure is not None or hosted is None:
            return
        if result.base_offset + send.count > hosted.log.high_watermark:
            self._early.append(send)

    def polled(self, reading: Reading, poll: Poll) -> None:
        """Record that a reader has received a batch, and sample the moment if the batch is not committed."""
        topic, partition = reading.topic_partition
        if poll.end > self._read.get((reading.topic_id, partition), 0):
            self._read[reading.topic_id, partition] = poll.end
            value = {"topic": topic, "partition": partition, "end": poll.end, "topic_id": reading.topic_id}
            self._add(READ, value)
            hosted = self._leader_of(reading.topic_id, reading.topic_partition)
            if hosted is not None and poll.end > hosted.log.high_watermark:
                self._next_sample_us = 0

    def _leader_of(self, topic_id: str, topic_partition: TopicPartition) -> Any:
        record = self._cluster.checks.records.get(topic_id, topic_partition)
        hosted = None if record.zk is None else self._hosted(record.zk.leader, record)
        return hosted if hosted is not None and hosted.is_leader and hosted.log is not None else None

    # Samples

    def tick(self) -> None:
        """Take the samples that are due. Called after every callback."""
        now_us = self._cluster.world.now_us
        arrived = [send for send in self._early if send.outcome is not Outcome.OPEN]
        if now_us < self._next_sample_us and not arrived:
            return
        self._early = [send for send in self._early if send.outcome is Outcome.OPEN]
        self._next_sample_us = now_us - now_us % (SAMPLE_MS * MILLISECOND) + SAMPLE_MS * MILLISECOND
        self._acknowledgements()
        self._sampled_ms = now_us // MILLISECOND
        for record in self._cluster.checks.records.living():
            if record.topic_partition.topic not in INTERNAL_TOPICS and record.zk is not None:
                self._add(SAMPLE, self._sample(record))

    def end(self) -> None:
        """Record the verdict, and mark the recording as whole."""
        self._acknowledgements()
        verdicts = self._cluster.checks.verdicts
        self._add(
            VERDICT,
            {
                "violated": [
                    {"invariant": name, "meaning": INVARIANTS[name], "evidence": verdicts.all[name].evidence[:3]}
                    for name in verdicts.violated
                ]
            },
        )
        self._writer.end()

    def _acknowledgements(self) -> None:
        sends = self._cluster.checks.history.sends
        self._open += sends[self._seen :]
        self._seen = len(sends)
        still_open = []
        for send in self._open:
            if send.outcome is Outcome.OPEN:
                still_open.append(send)
            elif send.outcome is Outcome.OK and send.offset is not None and send.completed_us is not None:
                topic, partition = send.topic_partition
                acks = "all" if send.acks is RequiredAcks.ALL else "leader"
                value = {"topic": topic, "partition": partition, "end": send.offset + send.count, "acks": acks}
                self._writer.add(
                    Entry(
                        # An acknowledgement after a sample of the same millisecond must not seem to be before it.
                        max(send.completed_us // MILLISECOND, self._sampled_ms + 1),
                        ACKNOWLEDGED,
                        {**value, "client": send.client, "topic_id": send.topic_id, "leader_epoch": send.leader_epoch},
                    )
                )
        self._open = still_open

    def _sample(self, record: PartitionRecord) -> dict[str, Any]:
        cluster, zk = self._cluster, record.zk
        assert zk is not None
        active = cluster.active_controller()
        leader = self._hosted(zk.leader, record)
        maximal = leader.maximal_isr if leader is not None and leader.is_leader else ()
        return {
            "topic": record.topic_partition.topic,
            "partition": record.topic_partition.partition,
            "topic_id": record.topic_id,
            "leader": zk.leader if zk.has_leader else None,
            "leader_epoch": zk.leader_epoch,
            "isr": list(zk.isr),
            "zk_version": zk.zk_version,
            "maximal_isr": list(maximal),
            "min_insync_replicas": cluster.checks.records.min_insync_replicas(record.topic_partition.topic),
            "unclean_election": record.unclean_allowed,
            "controller": None if active is None else active.controller_id,
            "controller_epoch": cluster.checks.zookeeper.controller_epoch,
            "replicas": [self._replica(broker_id, record, leader) for broker_id in record.assignment.replicas],
        }

    def _replica(self, broker_id: int, record: PartitionRecord, leader: Any) -> dict[str, Any]:
        life = self._cluster.brokers[broker_id].life
        found: dict[str, Any] = {"broker_id": broker_id, "alive": life is not None}
        if life is None:
            return found
        found["registered"] = broker_id in self._cluster.checks.zookeeper.registered
        found["paused"] = life.scheduler.paused
        found["controller_epoch"] = life.node._highest_controller_epoch()
        hosted = self._hosted(broker_id, record)
        log = None if hosted is None else hosted.log
        if hosted is not None:
            found["role"] = "leader" if hosted.is_leader else "follower"
            found["applied"] = {"leader": hosted.leader_id, "leader_epoch": hosted.leader_epoch}
            found["applied"]["isr"] = list(hosted.isr)
        if log is not None:
            found["log_start_offset"] = log.log_start_offset
            found["high_watermark"] = log.high_watermark
            found["log_end_offset"] = log.log_end_offset
            found["leader_epochs"] = [[entry.epoch, entry.start_offset] for entry in log.epochs.entries]
        progress = leader.followers.get(broker_id) if leader is not None and leader.is_leader else None
        if progress is not None and progress.fetched_in_epoch:
            found["last_fetch_ago_ms"] = max(self._cluster.world.now_ms - progress.last_seen_ms(), 0)
        return found

    def _hosted(self, broker_id: int, record: PartitionRecord) -> Any:
        machine = self._cluster.brokers.get(broker_id)
        if machine is None or machine.life is None:
            return None
        hosted = machine.life.node.replica_manager.hosted.online.get(record.topic_partition)
        return hosted if hosted is not None and hosted.topic_id in (None, record.topic_id) else None

    def _add(self, kind: str, value: dict[str, Any]) -> None:
        self._writer.add(Entry(self._cluster.world.now_ms, kind, value))
