"""`IsrUpdates`: ISR changes of a partition's leader.

1. `maybe_expand`, after a follower's fetch, or `maybe_shrink`, in the periodic check, creates a proposal. From then on
   the high watermark waits for the maximal ISR: the committed and the proposed members.
2. `IsrWriter` writes it to ZooKeeper, on condition of the version on which the proposal is based.
3. The result is reported once: `written`, `refused` or `conflict`. After `unknown` the writer asks ZooKeeper again.

A result counts only for the present proposal: a newer LeaderAndIsr invalidates it.
Source: docs/protocol/replication.md#joining-the-isr, #leaving-the-isr, #writing-the-isr, #isr-conflict and
#leadership-proof.
"""

from typing import TYPE_CHECKING

from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind
from paceline.replication.fetch_session import PartitionChange
from paceline.replication.follower_progress import FollowerProgress
from paceline.replication.isr import JoinRefusal, out_of_sync_replicas, why_not_eligible, why_not_join
from paceline.replication.leadership_proof import NEVER

if TYPE_CHECKING:
    from paceline.broker.partition.partition import Partition
    from paceline.broker.partition.replica_manager import ReplicaManager


class IsrProposal:
    """An ISR that a leader proposes, and the state on which the proposal is based."""

    __slots__ = ("decided_ms", "isr", "joiners", "leader_epoch", "old_isr", "zk_version")

    def __init__(
        self,
        old_isr: tuple[int, ...],
        isr: tuple[int, ...],
        leader_epoch: int,
        zk_version: int,
        joiners: tuple[tuple[int, int], ...] = (),
        decided_ms: int = NEVER,
    ) -> None:
        self.old_isr = old_isr
        self.isr = isr
        self.leader_epoch = leader_epoch
        self.zk_version = zk_version
        self.joiners = joiners
        """Broker id and broker epoch of the joining replicas; the write checks their registration (KIP-903)."""
        self.decided_ms = decided_ms
        """Time of the proposal; a successful write is later."""


class IsrUpdates:
    """Proposes ISR changes of a partition and applies the results; at most one proposal is pending."""

    __slots__ = ("_host", "_partition")

    def __init__(self, partition: "Partition", host: "ReplicaManager") -> None:
        self._partition = partition
        self._host = host

    def why_not_join(self, follower: FollowerProgress) -> JoinRefusal | None:
        """Return why a follower may not join the ISR now, None if it may."""
        partition = self._partition
        if partition.log is None or partition.leader_epoch_start_offset is None:
            return JoinRefusal.NOT_FETCHED_IN_EPOCH
        if follower.log_start_offset is not None and follower.log_start_offset < partition.log.log_start_offset:
            # As leader it would serve deleted records again, possibly records that were never committed. The response
            # to this fetch has the log start; the follower's next fetch confirms that it starts there, too.
            return JoinRefusal.BELOW_LOG_START
        return why_not_join(
            follower,
            partition.log.high_watermark,
            partition.leader_epoch_start_offset,
            self._host.registered_broker_epoch(follower.broker_id),
            self._host.is_offline_replica(partition.topic_partition, follower.broker_id),
        )

    def may_join(self, follower: FollowerProgress) -> bool:
        """Return whether a follower may join as soon as it has caught up."""
        partition, host = self._partition, self._host
        refusal = why_not_eligible(
            follower,
            host.registered_broker_epoch(follower.broker_id),
            host.is_offline_replica(partition.topic_partition, follower.broker_id),
        )
        return refusal is None and follower.broker_id in partition.replicas

    def maybe_expand(self, follower: FollowerProgress) -> None:
        """Propose to add ``follower``, which has just fetched, if it is assigned and may join."""
        partition = self._partition
        broker_id = follower.broker_id
        if partition.proposal is not None or broker_id in partition.isr or broker_id not in partition.replicas:
            return
        if self.why_not_join(follower) is not None:
            return
        broker_epoch = follower.broker_epoch
        assert broker_epoch is not None
        self._propose((*partition.isr, broker_id), ((broker_id, broker_epoch),))

    def maybe_shrink(self) -> None:
        """Propose to remove the members that are out of sync, or write the ISR unchanged to prove the leadership."""
        partition = self._partition
        log = partition.log
        if not partition.is_leader or log is None or partition.proposal is not None:
            return
        late = out_of_sync_replicas(
            partition.isr,
            self._host.broker_id,
            log.log_end_offset,
            partition.followers,
            self._host.now_ms(),
            self._host.config.replica_lag_time_max_ms,
        )
        if late:
            self._propose(tuple(broker_id for broker_id in partition.isr if broker_id not in late), ())
        elif self._host.in_contact() and not partition.is_leadership_proved:
            # A member cut off only from this leader does not fetch, and stays in the ISR while it lacks no record.
            # The unchanged ISR is written: the write succeeds only if ZooKeeper still has this leadership.
            self._propose(partition.isr, (), "to prove the leadership")

    def _propose(self, isr: tuple[int, ...], joiners: tuple[tuple[int, int], ...], cause: str | None = None) -> None:
        partition = self._partition
        partition.proposal = IsrProposal(
            partition.isr, isr, partition.leader_epoch, partition.zk_version, joiners, self._host.now_ms()
        )
        self._host.emit(StateChangeKind.ISR_PROPOSED, partition, partition.isr, cause)
        self._host.write_isr(partition, partition.proposal)

    def written(self, proposal: IsrProposal, zk_version: int) -> None:
        """Commit the proposal after it was written to ZooKeeper with this version."""
        partition = self._partition
        if partition.proposal is not proposal:
            return
        old_isr = partition.isr
        self._adopt(proposal, proposal.isr, zk_version)
        if partition.isr != old_isr:
            kind = StateChangeKind.ISR_EXPANDED if proposal.joiners else StateChangeKind.ISR_SHRUNK
            self._host.emit(kind, partition, old_isr)
        self._host.isr_committed(partition, old_isr)
        self._settled()

    def refused(self, proposal: IsrProposal, reason: str) -> None:
        """Drop the proposal: it was not applied, and the state in ZooKeeper is unchanged."""
        partition = self._partition
        if partition.proposal is not proposal:
            return
        partition.proposal = None
        self._host.emit(StateChangeKind.ISR_REFUSED, partition, partition.isr, reason)
        self._settled()

    def unknown(self, proposal: IsrProposal, reason: str) -> None:
        """Record that the result is unknown; the proposal stays in the maximal ISR until the writer knows it."""
        partition = self._partition
        if partition.proposal is proposal:
            self._host.emit(StateChangeKind.ISR_UNKNOWN, partition, partition.isr, reason)

    def conflict(self, proposal: IsrProposal, state: LeaderAndIsr | None) -> None:
        """Apply the state written by another process, None if the node was deleted.

        If this broker still leads in the same epoch, it continues with ``state``. Otherwise a newer LeaderAndIsr will
        follow; until then the leader proposes no change and keeps waiting for the maximal ISR.
        """
        partition = self._partition
        if partition.proposal is not proposal:
            return
        self._host.emit(StateChangeKind.ISR_REFUSED, partition, partition.isr, "written by another process")
        if state is None or state.leader != self._host.broker_id or state.leader_epoch != partition.leader_epoch:
            partition.is_deposed = state is None or state.leader != self._host.broker_id
            return
        self._adopt(proposal, state.isr, state.zk_version)
        self._settled()
        self.maybe_shrink()
        for broker_id, _ in proposal.joiners:
            follower = partition.followers.get(broker_id)
            if follower is not None:
                self.maybe_expand(follower)

    def _adopt(self, proposal: IsrProposal, isr: tuple[int, ...], zk_version: int) -> None:
        partition = self._partition
        partition.proposal = None
        partition.isr = isr
        partition.zk_version = zk_version
        # ZooKeeper had this leader after the proposal was made, so no successor had been elected by then.
        partition.confirmed_ms = max(partition.confirmed_ms, proposal.decided_ms)

    def _settled(self) -> None:
        self._partition.advance_high_watermark()
        self._host.record_change(self._partition, PartitionChange.ROLE)
