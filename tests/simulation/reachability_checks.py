"""Check that other in-sync replicas lead when followers cannot reach a broker, and that acks=all works again."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from paceline.controller.brokers.unreached_leaders import UnreachedLeaders
from paceline.controller.context import ControllerContext
from paceline.controller.state.leader_election import Election
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state_change_log import Cause
from paceline.model.client_io import RequiredAcks
from paceline.model.control import BrokerHeartbeatRequest
from paceline.model.identifiers import TopicPartition
from tests.simulation.history import History
from tests.simulation.partition_record import PartitionRecord, PartitionRecords
from tests.simulation.verdicts import Verdicts
from tests.simulation.world import MILLISECOND

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster

_REST_MS: Final = 30_000
"""Time for which no leader returns to a broker that it left, defined here independently of the code under test."""
_SEND_MS: Final = 3_000
"""Time for a new send after a request to the earlier leader has timed out."""


@dataclass(slots=True)
class _Reports:
    """The knowledge of one controller process."""

    context: ControllerContext
    heartbeats: dict[int, BrokerHeartbeatRequest] = field(default_factory=dict)
    unreached: set[int] = field(default_factory=set)
    """Brokers that no follower reaches, according to the heartbeats of all live brokers."""
    left_us: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    """Time when a leader left an unreached broker."""


class ReachabilityChecks:
    """K17 and C16."""

    def __init__(
        self, cluster: "SimulatedCluster", verdicts: Verdicts, records: PartitionRecords, history: History
    ) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._records = records
        self._history = history
        self._reports: dict[int, _Reports] = {}
        self.moved = 0
        """Number of elections because a leader was unreached."""

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Check, while open, each heartbeat and each choice of a leader."""
        heard, forget, chose = (
            UnreachedLeaders.heartbeat_received,
            UnreachedLeaders.forget,
            PartitionStateMachine._strategy,
        )

        def probed_heard(one: UnreachedLeaders, heartbeat: BrokerHeartbeatRequest, now_ms: int) -> None:
            before = set(one._context.unreached)
            enough = self._heard(self._of(one._context), heartbeat)
            heard(one, heartbeat, now_ms)
            for broker_id in set(one._context.unreached) - before:
                self._verdicts.check(
                    "K17", broker_id in enough, f"broker {broker_id} counts as unreached without enough reports"
                )

        def probed_forget(one: UnreachedLeaders, broker_ids: Iterable[int]) -> None:
            gone, reports = set(broker_ids), self._of(one._context)
            forget(one, gone)
            for broker_id in gone:
                reports.heartbeats.pop(broker_id, None)
                reports.unreached.discard(broker_id)
            reports.left_us = {key: at_us for key, at_us in reports.left_us.items() if key[1] not in gone}

        def probed_choice(
            machine: PartitionStateMachine, topic_partition: TopicPartition, *more: Any, **named: Any
        ) -> Election:
            election = chose(machine, topic_partition, *more, **named)
            if election.leader_and_isr is not None and not election.unclean:
                self._chosen(machine, topic_partition, election)
            return election

        UnreachedLeaders.heartbeat_received = probed_heard  # type: ignore[method-assign]
        UnreachedLeaders.forget = probed_forget  # type: ignore[method-assign]
        PartitionStateMachine._strategy = probed_choice  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            UnreachedLeaders.heartbeat_received = heard  # type: ignore[method-assign]
            UnreachedLeaders.forget = forget  # type: ignore[method-assign]
            PartitionStateMachine._strategy = chose  # type: ignore[method-assign]

    def _of(self, context: ControllerContext) -> _Reports:
        found = self._reports.get(id(context))
        if found is None:
            found = self._reports[id(context)] = _Reports(
                context
            )  # It keeps the context, so that its id is not reused.
        return found

    def _heard(self, reports: _Reports, heartbeat: BrokerHeartbeatRequest) -> set[int]:
        """Return the brokers that more followers fail to reach than reach; store those that no follower reaches."""
        reports.heartbeats[heartbeat.broker_id] = heartbeat
        live = reports.context.live_broker_ids()
        known = [reports.heartbeats[one] for one in live if one in reports.heartbeats]
        reports.unreached = set()
        enough = set()
        for broker_id in live if len(known) == len(live) else ():
            failing = [
                one for one in known if broker_id in one.unreachable_leaders
                and (one.reached_leaders or len(one.unreachable_leaders) == 1)
            ]  # fmt: skip
            reaching = [one for one in known if broker_id in one.reached_leaders]
            if len(failing) > len(reaching):
                enough.add(broker_id)
            if failing and not reaching:
                reports.unreached.add(broker_id)
        return enough

    def _chosen(self, machine: PartitionStateMachine, topic_partition: TopicPartition, election: Election) -> None:
        context, state = machine._context, election.leader_and_isr
        assert state is not None
        reports, now_us = self._of(context), self._cluster.world.now_us
        before = context.leadership[topic_partition].leader
        better = [
            one for one in election.recipients
            if one in state.isr and one not in context.unreached and one not in reports.unreached
            and context.is_replica_online(one, topic_partition)
        ]  # fmt: skip
        if reports.unreached or reports.left_us:
            self._verdicts.check(
                "K17",
                not (better and state.leader in reports.unreached),
                f"{topic_partition}: broker {state.leader} is elected, its followers do not reach it but {better}",
            )
            left_us = reports.left_us.get((topic_partition, state.leader))
            rested = left_us is None or now_us - left_us >= _REST_MS * MILLISECOND
            self._verdicts.check(
                "K17", rested or not better, f"{topic_partition} returns to broker {state.leader} within 30 s"
            )
        if machine._log.cause_of_election is Cause.UNREACHABLE and state.leader != before:
            self.moved += 1
            reports.left_us[topic_partition, before] = now_us

    # acks=all

    def hidden(self, broker_id: int, bound_ms: int) -> None:
        """Check after a time that no partition waits for this broker, whose REPLICATION listener is unreachable now."""
        waiting = [
            record
            for record in self._records.living()
            if record.zk is not None and record.zk.leader == broker_id and len(record.zk.isr) > 2
        ]
        world = self._cluster.world
        for record in waiting:
            world.after(bound_ms * MILLISECOND, lambda record=record: self._has_moved(record, broker_id))  # type: ignore[misc]

    def _has_moved(self, record: PartitionRecord, broker_id: int) -> None:
        zk, world, profile = record.zk, self._cluster.world, self._cluster.profile
        if record.deleted or zk is None or not self._cluster.network.is_hidden(f"broker-{broker_id}"):
            return
        fine = zk.leader != broker_id and len(zk.isr) >= record.min_insync_replicas
        self._verdicts.check("C16", fine, f"{record}: broker {zk.leader} leads with ISR {zk.isr}")
        asked_us = world.now_us

        def acknowledged() -> None:
            sends = [
                send
                for send in self._history.sends
                if send.topic_id == record.topic_id and send.topic_partition == record.topic_partition
                if send.acks is RequiredAcks.ALL and send.invoked_us > asked_us
            ]
            done = not sends or any(send.offset is not None for send in sends)
            self._verdicts.check("C16", done, f"{record}: none of {len(sends)} new sends is acknowledged")

        world.after((profile.request_timeout_ms + _SEND_MS) * MILLISECOND, acknowledged)
