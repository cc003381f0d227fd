"""`IsrUpdates`: ISR changes of the partitions that this broker leads.

1. `maybe_expand`, after a follower's fetch, or `maybe_shrink`, in the periodic check, creates a proposal. From then on
   the high watermark waits for the maximal ISR: the committed and the proposed members.
2. `IsrWriter` writes it to ZooKeeper, on condition of the version on which the proposal is based.
3. The result is reported once: `written`, `refused` or `conflict`. After `unknown` the writer asks ZooKeeper again.

A result counts only for the present proposal: a newer LeaderAndIsr invalidates it.
Source: docs/protocol/replication.md#joining-the-isr, #leaving-the-isr, #writing-the-isr, #isr-conflict and
#leadership-proof.
"""

import random
from collections.abc import Callable

from paceline.broker.partition.host import PartitionHost
from paceline.broker.partition.isr_proposal import IsrProposal
from paceline.broker.partition.isr_writer import IsrWriter
from paceline.broker.partition.partition import Partition
from paceline.coordination.interface import ZooKeeper
from paceline.coordination.isr_write import Conflict, IsrWriteResult, JoinerEpochStale, Written
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.scheduler import Scheduler
from paceline.model.state_change import StateChangeKind
from paceline.replication.fetch_session import PartitionChange
from paceline.replication.follower_progress import FollowerProgress
from paceline.replication.isr import JoinRefusal, out_of_sync_replicas, why_not_join
from paceline.replication.isr_propagation import IsrPropagation


class IsrUpdates:
    """Proposes ISR changes and applies the results; each partition has at most one pending proposal."""

    def __init__(
        self,
        host: PartitionHost[Partition],
        zookeeper: ZooKeeper,
        scheduler: Scheduler,
        rng: random.Random,
        deliver_changes: Callable[[], None],
    ) -> None:
        """``deliver_changes`` is called after the results."""
        self._host = host
        config = host.config
        self.propagation = IsrPropagation(config.isr_propagation_quiet_ms, config.isr_propagation_max_wait_ms)
        """The partitions with a new ISR, of which the controller must be notified."""
        self.writer = IsrWriter(host.broker_id, zookeeper, scheduler, rng, self._result, deliver_changes)
        self.shrink_count = 0
        self.expand_count = 0
        self.failed_count = 0

    def why_not_join(self, partition: Partition, follower: FollowerProgress) -> JoinRefusal | None:
        """Return why a follower may not join the ISR now, None if it may."""
        if partition.log is None or partition.leader_epoch_start_offset is None:
            return JoinRefusal.NOT_FETCHED_IN_EPOCH
        if follower.log_start_offset is not None and follower.log_start_offset < partition.log.log_start_offset:
            # As leader it would serve deleted records again, possibly records that were never committed. The response
            # to this fetch has the log start; the follower's next fetch confirms that it starts there, too.
            return JoinRefusal.BELOW_LOG_START
        snapshot = self._host.metadata.snapshot
        return why_not_join(
            follower,
            partition.log.high_watermark,
            partition.leader_epoch_start_offset,
            snapshot.registered_broker_epoch(follower.broker_id),
            snapshot.is_offline_replica(partition.topic_partition, follower.broker_id),
        )

    def maybe_expand(self, partition: Partition, follower: FollowerProgress) -> None:
        """Propose to add ``follower``, which has just fetched, if it is assigned and may join."""
        broker_id = follower.broker_id
        if partition.proposal is not None or broker_id in partition.isr or broker_id not in partition.replicas:
            return
        if self.why_not_join(partition, follower) is not None:
            return
        broker_epoch = follower.broker_epoch
        assert broker_epoch is not None
        self._propose(partition, (*partition.isr, broker_id), ((broker_id, broker_epoch),))

    def maybe_shrink(self, partition: Partition) -> None:
        """Propose to remove the members that are out of sync, or write the ISR unchanged to prove the leadership."""
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
            self._propose(partition, tuple(broker_id for broker_id in partition.isr if broker_id not in late), ())
        elif self._host.in_contact() and not partition.is_leadership_proved:
            # A member cut off only from this leader does not fetch, and stays in the ISR while it lacks no record.
            # The unchanged ISR is written: the write succeeds only if ZooKeeper still has this leadership.
            self._propose(partition, partition.isr, (), "to prove the leadership")

    def _propose(
        self,
        partition: Partition,
        isr: tuple[int, ...],
        joiners: tuple[tuple[int, int], ...],
        cause: str | None = None,
    ) -> None:
        partition.proposal = IsrProposal(
            partition.isr, isr, partition.leader_epoch, partition.zk_version, joiners, self._host.now_ms()
        )
        self._host.emit(StateChangeKind.ISR_PROPOSED, partition, partition.isr, cause)
        self.writer.write(partition, partition.proposal)

    def _result(self, partition: Partition, proposal: IsrProposal, result: IsrWriteResult | Exception) -> None:
        if isinstance(result, Written):
            self.written(partition, proposal, result.zk_version)
            return
        self.failed_count += 1
        if isinstance(result, JoinerEpochStale):
            self.refused(partition, proposal, f"broker {result.broker_ids} is not registered as it fetched")
        elif isinstance(result, Conflict):
            self.conflict(partition, proposal, result.current)
        else:
            self.unknown(partition, proposal, str(result))

    def written(self, partition: Partition, proposal: IsrProposal, zk_version: int) -> None:
        """Commit the proposal after it was written to ZooKeeper with this version."""
        if partition.proposal is not proposal:
            return
        old_isr = partition.isr
        self._adopt(partition, proposal, proposal.isr, zk_version)
        if partition.isr != old_isr:
            kind = StateChangeKind.ISR_EXPANDED if proposal.joiners else StateChangeKind.ISR_SHRUNK
            self._host.emit(kind, partition, old_isr)
        self.shrink_count += len(partition.isr) < len(old_isr)
        self.expand_count += len(partition.isr) > len(old_isr)
        self.propagation.record(partition.topic_partition, self._host.now_ms())
        self._settled(partition)

    def refused(self, partition: Partition, proposal: IsrProposal, reason: str) -> None:
        """Drop the proposal: it was not applied, and the state in ZooKeeper is unchanged."""
        if partition.proposal is not proposal:
            return
        partition.proposal = None
        self._host.emit(StateChangeKind.ISR_REFUSED, partition, partition.isr, reason)
        self._settled(partition)

    def unknown(self, partition: Partition, proposal: IsrProposal, reason: str) -> None:
        """Record that the result is unknown; the proposal stays in the maximal ISR until the writer knows it."""
        if partition.proposal is proposal:
            self._host.emit(StateChangeKind.ISR_UNKNOWN, partition, partition.isr, reason)

    def conflict(self, partition: Partition, proposal: IsrProposal, state: LeaderAndIsr | None) -> None:
        """Apply the state written by another process, None if the node was deleted.

        If this broker still leads in the same epoch, it continues with ``state``. Otherwise a newer LeaderAndIsr will
        follow; until then the leader proposes no change and keeps waiting for the maximal ISR.
        """
        if partition.proposal is not proposal:
            return
        self._host.emit(StateChangeKind.ISR_REFUSED, partition, partition.isr, "written by another process")
        if state is None or state.leader != self._host.broker_id or state.leader_epoch != partition.leader_epoch:
            partition.is_deposed = state is None or state.leader != self._host.broker_id
            return
        self._adopt(partition, proposal, state.isr, state.zk_version)
        self._settled(partition)
        self.maybe_shrink(partition)
        for broker_id, _ in proposal.joiners:
            follower = partition.followers.get(broker_id)
            if follower is not None:
                self.maybe_expand(partition, follower)

    def _adopt(self, partition: Partition, proposal: IsrProposal, isr: tuple[int, ...], zk_version: int) -> None:
        partition.proposal = None
        partition.isr = isr
        partition.zk_version = zk_version
        # ZooKeeper had this leader after the proposal was made, so no successor had been elected by then.
        partition.confirmed_ms = max(partition.confirmed_ms, proposal.decided_ms)

    def _settled(self, partition: Partition) -> None:
        partition.advance_high_watermark()
        self._host.record_change(partition, PartitionChange.ROLE)
