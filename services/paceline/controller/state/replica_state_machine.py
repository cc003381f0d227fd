"""Move replicas between states, from New to NonExistent, and remove offline replicas from the ISR.

Source: docs/protocol/controller.md#replica-states; Kafka 2.8 ReplicaStateMachine.scala.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, PartitionState, Replica, ReplicaState
from paceline.controller.errors import ControllerMovedError, IllegalStateError
from paceline.controller.state.state_writer import StateWrite, StateWriter
from paceline.controller.state_change_log import StateChangeLog
from paceline.coordination.flow import Flow
from paceline.model.identifiers import NO_LEADER, TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr

LOG = logging.getLogger(__name__)

VALID_PREVIOUS_STATES: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.ONLINE: frozenset(
        {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
    ),
    ReplicaState.OFFLINE: frozenset(
        {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
    ),
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
    ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
    ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}),
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
}


class ReplicaStateMachine:
    """Moves replicas between states, broker by broker, in one batch of requests."""

    def __init__(
        self, context: ControllerContext, writer: StateWriter, batch: RequestBatch, log: StateChangeLog
    ) -> None:
        self._context = context
        self._writer = writer
        self._batch = batch
        self._log = log

    def start(self) -> Flow[None]:
        """Set the state of every replica after a failover, and send every broker LeaderAndIsr for its replicas.

        The state change log records only the transition of offline replicas.
        """
        # Iterate over partitions, so that all replicas of a partition share one value in the requests.
        context, batch = self._context, self._batch
        states, leadership = context.replica_states, context.leadership
        offline = []
        batch.new_batch()
        has_requests = False
        for topic, assignments in context.topics.items():
            for partition, assignment in assignments.items():
                topic_partition = TopicPartition(topic, partition)
                online = context.online_replicas(topic_partition, assignment.replicas)
                for broker_id in assignment.replicas:
                    replica = Replica(topic_partition, broker_id)
                    if broker_id in online:
                        states[replica] = ReplicaState.ONLINE
                    else:
                        # Ineligible, so that a pending topic deletion waits until this replica is online.
                        states[replica] = ReplicaState.DELETION_INELIGIBLE
                        offline.append(replica)
                known = leadership.get(topic_partition)
                if known is not None and online:
                    has_requests = True
                    batch.add_leader_and_isr(online, topic_partition, known, assignment, is_new=False)
        if has_requests:
            batch.mark_initial()
            batch.send()
        yield from self.handle_state_changes(offline, ReplicaState.OFFLINE)

    def handle_state_changes(
        self, replicas: Sequence[Replica], target: ReplicaState, fence: bool = False
    ) -> Flow[None]:
        """Move replicas to ``target`` and send the resulting requests.

        With ``fence``, the leader epoch of each partition rises even if the replica that becomes Offline is not in the
        ISR. An unexpected error is logged; replicas that were not moved keep their state.

        Raises:
            ControllerMovedError: the fence failed.
            IllegalStateError: an earlier step left requests unsent.
        """
        if not replicas:
            return
        by_broker: dict[int, list[Replica]] = {}
        for replica in dict.fromkeys(replicas):
            by_broker.setdefault(replica.broker_id, []).append(replica)
        try:
            self._batch.new_batch()
            for broker_id in sorted(by_broker):
                yield from self._apply(broker_id, self._valid(by_broker[broker_id], target), target, fence)
            self._batch.send()
        except (ControllerMovedError, IllegalStateError):
            raise
        except Exception:
            LOG.exception("state change failed: replicas=%d target=%s", len(replicas), target.value)

    def _valid(self, replicas: Iterable[Replica], target: ReplicaState) -> list[Replica]:
        valid = []
        for replica in replicas:
            state = self._context.replica_states.setdefault(replica, ReplicaState.NON_EXISTENT)
            if state in VALID_PREVIOUS_STATES[target]:
                valid.append(replica)
            else:
                LOG.error(
                    "invalid state change: replica=%d partition=%s from=%s to=%s",
                    replica.broker_id, replica.topic_partition, state.value, target.value,
                )  # fmt: skip
        return valid

    def _apply(self, broker_id: int, replicas: list[Replica], target: ReplicaState, fence: bool) -> Flow[None]:
        if target is ReplicaState.NEW:
            self._become_new(replicas)
        elif target is ReplicaState.ONLINE:
            self._become_online(replicas)
        elif target is ReplicaState.OFFLINE:
            yield from self._become_offline(broker_id, replicas, fence)
        else:
            for replica in replicas:
                if target is ReplicaState.DELETION_STARTED:
                    self._batch.add_stop_replica((broker_id,), replica.topic_partition, delete=True)
                elif target is ReplicaState.NON_EXISTENT:
                    self._unassign(replica)
                self._set(replica, target)

    def _become_new(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            known = self._context.leadership.get(replica.topic_partition)
            if known is not None and known.leader == replica.broker_id:
                LOG.error(
                    "invalid state change, a leader cannot become NewReplica: replica=%d partition=%s",
                    replica.broker_id,
                    replica.topic_partition,
                )
                continue
            if known is not None:
                assignment = self._context.assignment(replica.topic_partition)
                self._batch.add_leader_and_isr(
                    (replica.broker_id,), replica.topic_partition, known, assignment, is_new=True
                )
            self._set(replica, ReplicaState.NEW)

    def _become_online(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            topic_partition = replica.topic_partition
            assignment = self._context.assignment(topic_partition)
            if self._context.replica_state(replica) is ReplicaState.NEW:
                if replica.broker_id not in assignment.replicas:
                    LOG.error(
                        "new replica is not assigned: replica=%d partition=%s", replica.broker_id, topic_partition
                    )
                    grown = replace(assignment, replicas=(*assignment.replicas, replica.broker_id))
                    self._context.set_assignment(topic_partition, grown)
            elif topic_partition in self._context.leadership:
                known = self._context.leadership[topic_partition]
                self._batch.add_leader_and_isr((replica.broker_id,), topic_partition, known, assignment, is_new=False)
            self._set(replica, ReplicaState.ONLINE)

    def _become_offline(self, broker_id: int, replicas: Sequence[Replica], fence: bool) -> Flow[None]:
        context = self._context
        for replica in replicas:
            self._batch.add_stop_replica((broker_id,), replica.topic_partition, delete=False)
        led = [replica.topic_partition for replica in replicas if replica.topic_partition in context.leadership]
        removed = yield from self._remove_from_isr(broker_id, led, fence)
        for topic_partition, state in removed.items():
            if not context.is_queued_for_deletion(topic_partition.topic):
                assignment = context.assignment(topic_partition)
                others = [other for other in assignment.replicas if other != broker_id]
                self._batch.add_leader_and_isr(others, topic_partition, state, assignment, is_new=False)
            self._set(Replica(topic_partition, broker_id), ReplicaState.OFFLINE)
        for replica in replicas:
            if replica.topic_partition not in context.leadership:
                self._batch.add_update_metadata(context.brokers, (replica.topic_partition,))
                self._set(replica, ReplicaState.OFFLINE)

    def _unassign(self, replica: Replica) -> None:
        assignment = self._context.assignment(replica.topic_partition)
        if not self._context.knows(replica.topic_partition):
            return

        def without(replicas: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(other for other in replicas if other != replica.broker_id)

        self._context.set_assignment(
            replica.topic_partition,
            replace(
                assignment,
                replicas=without(assignment.replicas),
                adding=without(assignment.adding),
                removing=without(assignment.removing),
            ),
        )

    def _set(self, replica: Replica, state: ReplicaState) -> None:
        before = self._context.replica_state(replica)
        if state is ReplicaState.NON_EXISTENT:
            self._context.replica_states.pop(replica, None)
        else:
            self._context.replica_states[replica] = state
        if before is not state:
            self._log.record(replica.topic_partition, before, state, replica.broker_id)

    # removal from the ISR

    def remove_from_isr(self, broker_id: int, remaining: Mapping[TopicPartition, int]) -> Flow[None]:
        """Remove a registered follower from ISRs, and send the new leadership to every replica.

        The request also goes to the removed broker: if it is alive, it must fetch in the new leader epoch.

        Args:
            broker_id: the follower.
            remaining: how many members must stay in each partition's ISR; an ISR with no more members keeps the broker.
        """
        context = self._context

        def may_leave(topic_partition: TopicPartition) -> bool:
            known = context.leadership.get(topic_partition)
            return known is not None and broker_id in known.isr and len(known.isr) > remaining[topic_partition]

        # The leader's notification of a larger ISR takes from a few seconds to a minute: read the ISR before deciding
        # that the broker must stay in it.
        yield from self._writer.refresh(
            topic_partition
            for topic_partition in remaining
            if not may_leave(topic_partition)
            and len(context.leadership[topic_partition].isr) < len(context.assignment(topic_partition).replicas)
        )
        members = [topic_partition for topic_partition in remaining if may_leave(topic_partition)]
        if not members:
            return
        self._batch.new_batch()
        removed = yield from self._remove_from_isr(broker_id, members, fence=False, remaining=remaining)
        for topic_partition, state in removed.items():
            assignment = self._context.assignment(topic_partition)
            self._batch.add_leader_and_isr(assignment.replicas, topic_partition, state, assignment, is_new=False)
        self._batch.send()

    def _remove_from_isr(
        self,
        broker_id: int,
        topic_partitions: Sequence[TopicPartition],
        fence: bool,
        remaining: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> Flow[dict[TopicPartition, LeaderAndIsr]]:
        """Remove the broker from each ISR unless it is the only member; return the resulting leadership by partition.

        An ISR that does not contain the broker is written only to raise the leader epoch. The result lacks partitions
        whose state node was deleted, or was written by a newer controller.
        """
        context = self._context
        removed: dict[TopicPartition, LeaderAndIsr] = {}
        pending = list(topic_partitions)
        failed = {tp for tp in topic_partitions if not self._has_new_epoch(tp)} if fence else ()
        limit = self._writer.chunk_limit
        while pending:
            # The leader may have added the broker since the ISR was cached.
            yield from self._writer.refresh(tp for tp in pending if broker_id not in context.leadership[tp].isr)
            writes = []
            for topic_partition in pending:
                known = context.leadership.get(topic_partition)
                if known is None or known.controller_epoch > context.epoch:
                    self._report_failure(broker_id, topic_partition, known)
                elif broker_id in known.isr and len(known.isr) <= remaining.get(topic_partition, 0):
                    continue
                elif (
                    broker_id in known.isr
                    or topic_partition in failed
                    or self._has_lost_former_member(broker_id, topic_partition)
                ):
                    # Raise the epoch even if the failed replica is outside the ISR, unless an election of this event
                    # has raised it: a write of the leader could otherwise add the replica, whose log may now be empty.
                    writes.append(StateWrite(topic_partition, without_member(known, broker_id, context.epoch)))
                else:
                    # The ISR does not contain the replica; only set this controller's epoch in the cached state.
                    decided = known.controller_epoch == context.epoch
                    removed[topic_partition] = known if decided else replace(known, controller_epoch=context.epoch)
                    context.remember(topic_partition, removed[topic_partition])
            outcome = yield from self._writer.commit(writes, limit)
            for topic_partition, state in outcome.written.items():
                context.remember(topic_partition, state)
                removed[topic_partition] = state
            for topic_partition in outcome.refused:
                self._report_failure(broker_id, topic_partition, context.leadership.get(topic_partition))
            pending = []
            for topic_partition, found in outcome.conflicted.items():
                if found is None:
                    context.forget_leadership(topic_partition)
                    self._report_failure(broker_id, topic_partition, None)
                else:
                    context.remember(topic_partition, found)
                    pending.append(topic_partition)
            limit = max(1, limit // 2)
        return {tp: removed[tp] for tp in topic_partitions if tp in removed}

    def _has_new_epoch(self, topic_partition: TopicPartition) -> bool:
        """Whether the running event has elected a leader, or has found no leader that could write the ISR."""
        context = self._context
        if topic_partition not in context.seen_in_event:
            return False
        # A broker that shuts down or has no lease stays leader when no other replica can be elected.
        is_offline = context.partition_state(topic_partition) is PartitionState.OFFLINE
        return not (is_offline and context.leadership[topic_partition].has_leader)

    def _has_lost_former_member(self, broker_id: int, topic_partition: TopicPartition) -> bool:
        """Whether a former ISR member with all committed records has a failed directory, which may return empty."""
        failed = topic_partition in self._context.on_offline_dirs.get(broker_id, ())
        return failed and broker_id in self._context.isr_history(topic_partition).former

    def _report_failure(self, broker_id: int, topic_partition: TopicPartition, known: LeaderAndIsr | None) -> None:
        if known is None and self._context.is_queued_for_deletion(topic_partition.topic):
            return
        LOG.error(
            "replica not removed from the ISR: replica=%d partition=%s state=%s", broker_id, topic_partition, known
        )


def without_member(state: LeaderAndIsr, broker_id: int, controller_epoch: int) -> LeaderAndIsr:
    """Return the state after removing a replica; the last member stays, because without it no leader could be elected.

    Source: docs/protocol/zookeeper.md#never-an-empty-isr.
    """
    leader = NO_LEADER if state.leader == broker_id else state.leader
    isr = state.isr if state.isr == (broker_id,) else tuple(m for m in state.isr if m != broker_id)
    return state.with_leader(leader, isr, controller_epoch)
