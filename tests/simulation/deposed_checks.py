"""Limit the time for which a deposed leader answers as leader, and excuse its answers from other invariants."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline.broker.partition.isr_proposal import IsrProposal
from paceline.broker.partition.isr_updates import IsrUpdates
from paceline.broker.partition.partition import Partition
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.replication.leadership_proof import LeadershipProof
from tests.simulation.partition_record import PartitionRecord, PartitionRecords
from tests.simulation.verdicts import Verdicts

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster
    from tests.simulation.machines import BrokerLife

Asked = int
"""Time in microseconds at which a request reached a broker without contact to ZooKeeper or the controller."""


class DeposedChecks:
    """C12, and the excuse from C9 to C11 for answers that a leader gives before it can know that it was deposed.

    A successor is elected in ZooKeeper before a request reaches either leader. The times count from the moment when the
    successor leads: a controller may die between its write and its requests, and until then every ISR member still
    fetches from the old leader, which has the same records.

    A leader without contact answers a read only if no successor led when the read arrived, so that its answer needs no
    excuse. A leader with contact may be replaced without its knowledge for up to a lease; until then a client that
    trusts the latest answer may receive older offsets than before.
    """

    def __init__(self, cluster: "SimulatedCluster", verdicts: Verdicts, records: PartitionRecords) -> None:
        self._cluster = cluster
        self._verdicts = verdicts
        self._records = records
        self._read_deposed: dict[tuple[int, int], Partition] = {}
        """Partitions whose leader has read in ZooKeeper that it no longer leads, by identity and leader epoch."""
        self._renewed_us: dict[LeadershipProof, int] = {}
        """When a broker regained contact to the controller after its lease may have expired."""

    @contextmanager
    def probes(self) -> Iterator[None]:
        """Record, while open, when leaders read that they were deposed, and when leases are renewed late."""
        conflict, controller_answered = IsrUpdates.conflict, LeadershipProof.controller_answered

        def probed_conflict(
            updates: IsrUpdates, partition: Partition, proposal: IsrProposal, state: LeaderAndIsr | None
        ) -> None:
            if partition.proposal is proposal and (state is None or state.leader != updates._host.broker_id):
                self._read_deposed[id(partition), partition.leader_epoch] = partition
                self._cluster.checks.places.reach("a leader reads that it was deposed", updates._host.broker_id)
            conflict(updates, partition, proposal, state)

        def probed_answered(proof: LeadershipProof, asked_ms: int, now_ms: int) -> None:
            was_over = proof.lease_may_be_over(now_ms)
            controller_answered(proof, asked_ms, now_ms)
            if was_over and not proof.lease_may_be_over(now_ms):
                self._renewed_us[proof] = self._cluster.world.now_us
                self._cluster.checks.places.reach("a lease is renewed late")

        IsrUpdates.conflict = probed_conflict  # type: ignore[method-assign]
        LeadershipProof.controller_answered = probed_answered  # type: ignore[method-assign]
        try:
            yield
        finally:
            IsrUpdates.conflict = conflict  # type: ignore[method-assign]
            LeadershipProof.controller_answered = controller_answered  # type: ignore[method-assign]

    def asked(self, life: "BrokerLife") -> Asked | None:
        """Return the present time if a request reaches a broker without contact, None with contact."""
        return None if life.node.replica_manager.hosted.in_contact() else self._cluster.world.now_us

    def answered(
        self, life: "BrokerLife", topic_partition: TopicPartition, topic_id: str, asked_us: Asked | None = None
    ) -> bool:
        """Check an answer of a leader; return whether the answer is excused because the leader was deposed.

        ``asked_us`` is given for reads, and for errors that a caller does not retry.
        """
        hosted = life.node.replica_manager.hosted.online.get(topic_partition)
        if hosted is None or not hosted.is_leader:
            return False
        record = self._records.get(topic_id, topic_partition)
        if (id(hosted), hosted.leader_epoch) in self._read_deposed:
            self._verdicts.fail("C12", f"{record}: {life.name} answers as leader after it has read that it was deposed")
        elected_us = record.succeeded_us(life.broker_id, hosted.leader_epoch)
        if elected_us is None:
            return False
        led_us = record.led_by_successor_us(life.broker_id, hosted.leader_epoch)
        if led_us is not None and led_us < self._contact_us(life):
            self._verdicts.exercise("C12")
            if record.has_clean_successor(life.broker_id, hosted.leader_epoch):
                # The successor was an ISR member and fetches no more: nothing proves the leadership in a new session
                # or lease.
                self._fail(life, record, hosted.leader_epoch, "in a session or lease that began")
        if asked_us is not None and not record.unclean_starts:
            self._verdicts.exercise("C12")
            if led_us is not None and led_us < asked_us and not record.harmed:
                self._fail(life, record, hosted.leader_epoch, f"a request that arrived {(asked_us - led_us) / 1000} ms")
            return False
        if led_us is None:
            return True
        self._verdicts.exercise("C12")
        is_clean = record.has_clean_successor(life.broker_id, hosted.leader_epoch)
        # The only ISR member cannot prove that no unclean election took place while its process was paused.
        since_us = led_us if is_clean else max(led_us, life.scheduler.resumed_us)
        age_ms = (self._cluster.world.now_us - since_us) / 1_000
        profile = self._cluster.profile
        if not profile.lease_ms and life.node.replica_manager.hosted.in_contact():
            # Without leases only a request deposes a leader that has a session, and a cut link can delay the request.
            return True
        if age_ms > profile.deposed_bound_ms and not record.harmed:
            allowed = f"{profile.deposed_bound_ms} are allowed"
            self._fail(life, record, hosted.leader_epoch, f"{age_ms:.0f} ms ({allowed})")
        return True

    def _contact_us(self, life: "BrokerLife") -> int:
        """Return when the broker's session began, or its lease was renewed late, if the renewal restored contact."""
        renewed_us = self._renewed_us.get(life.node._contact.proof, 0)
        is_in_contact = renewed_us > 0 and life.node.replica_manager.hosted.in_contact()
        return max(life.session_us, renewed_us if is_in_contact else 0)

    def _fail(self, life: "BrokerLife", record: PartitionRecord, leader_epoch: int, what: str) -> None:
        self._verdicts.fail(
            "C12",
            f"{record}: {life.name} answers as leader of epoch {leader_epoch} {what} after a successor began to lead",
        )
