"""The steps of one partition's reassignment.

Every call starts at step 1, so that this controller or its successor can resume a reassignment at any time: the topic's
node is the only durable record of the replicas being added and removed, and it is written last at completion.

Source: docs/protocol/controller.md#reassignment-steps; KIP-455; Kafka 2.8
KafkaController.onPartitionReassignment.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, PartitionState, Replica, ReplicaState
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.events import Event, PartitionReassignmentIsrChange
from paceline.controller.reassignment.reassignment_node import ReassignmentNode
from paceline.controller.state.leader_election import ElectionStrategy
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.replica_state_machine import ReplicaStateMachine
from paceline.controller.state.state_writer import StateWrite, StateWriter
from paceline.controller.state_change_log import StateChangeLog
from paceline.controller.zk_store import ZkStore
from paceline.coordination.flow import Flow
from paceline.coordination.interface import ZkCode
from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import InvalidReplicaAssignmentError
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.scheduler import Scheduler
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)

RETRY_MS = 10_000
"""Pause before another attempt to complete a reassignment, until it succeeds or the controller resigns."""


@dataclass(frozen=True, slots=True)
class ReassignmentSteps:
    """Starts the reassignment of a partition, and completes it once its target is in sync."""

    context: ControllerContext
    store: ZkStore
    writer: StateWriter
    log: StateChangeLog
    batch: RequestBatch
    partitions: PartitionStateMachine
    replicas: ReplicaStateMachine
    node: ReassignmentNode
    scheduler: Scheduler
    enqueue: Callable[[Event], None]

    def reassign(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> Flow[None]:
        """Perform the steps that are possible now; the partition's events repeat the call."""
        before = self.context.leadership.get(topic_partition)
        raised = yield from self._update_assignment(topic_partition, assignment)
        if _never_led(self.context, topic_partition):
            # The partition has no data yet, and a target replica may be the first that can lead it.
            yield from self._begin_replicas(topic_partition, assignment)
            yield from self.partitions.handle_state_changes(
                [topic_partition], PartitionState.ONLINE, ElectionStrategy.OFFLINE
            )
        complete = yield from self.check_complete(topic_partition, assignment)
        if complete:
            yield from self._finish(topic_partition, assignment, raised)
        else:
            yield from self._start(topic_partition, assignment, raised)
            if before is not None and before.has_leader:
                yield from self._elect_if_leaderless(topic_partition)  # A replaced target may have had the leader.

    def _update_assignment(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> Flow[bool]:
        """Write the topic's node, then update memory; stop and delete replicas of a replaced target at once.

        Returns whether the leader epoch was raised for this.

        Source: docs/protocol/controller.md#topic-node-before-memory.
        """
        context = self.context
        raised = False
        current = context.assignment(topic_partition)
        if current != assignment:
            unneeded = [broker_id for broker_id in current.replicas if broker_id not in assignment.replicas]
            if unneeded and topic_partition in context.leadership:
                # The leader may be adding such a replica to the ISR now; the ISR would then have a deleted replica. The
                # new epoch makes the leader's ISR writes fail until the leader receives it with the new list of
                # replicas.
                state = yield from self._raise_leader_epoch(topic_partition)
                raised = True
                if not set(state.isr) & set(assignment.replicas):
                    # The leader has removed ISR members since the check. After the epoch change it cannot do so again.
                    yield from self._bump_leader_epoch(topic_partition, current, raised)
                    raise deletes_all_in_sync(state)
            try:
                yield from self.store.write_assignment(topic_partition, assignment)
            except UnexpectedResponseError:
                if raised:
                    # Without the new zk_version the leader could not write the ISR.
                    yield from self._bump_leader_epoch(topic_partition, current, raised)
                raise
            context.set_assignment(topic_partition, assignment)
            moving = f"{list(assignment.origin)} to {list(assignment.target)}"
            self.log.note(
                StateChangeKind.REASSIGNMENT,
                cause=moving,
                topic_partition=topic_partition,
                origin_replicas=tuple(assignment.origin),
                target_replicas=tuple(assignment.target),
            )
            yield from self._stop_replicas(topic_partition, unneeded)
        context.being_reassigned.add(topic_partition)
        return raised

    def check_complete(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> Flow[bool]:
        """Return whether the whole target is in the ISR in ZooKeeper; set the watch on the state node."""
        found = yield from self.store.partition_states([topic_partition], watch=True)
        if not assignment.is_being_reassigned:
            return True
        state = found.get(topic_partition)
        known = self.context.leadership.get(topic_partition)
        if state != known:
            # The leader has written the state since this event read it; an election without a candidate must read it
            # again.
            self.context.seen_in_event.discard(topic_partition)
            if state is not None and known is not None and known.controller_epoch > self.context.epoch:
                self.context.remember(topic_partition, state)  # The cached state is out of date.
        return state is not None and set(assignment.target) <= set(state.isr)

    def _start(self, topic_partition: TopicPartition, assignment: ReplicaAssignment, raised: bool) -> Flow[None]:
        """Send a new leader epoch to all replicas unless the partition never had a leader; start the added replicas."""
        if not _never_led(self.context, topic_partition):
            yield from self._bump_leader_epoch(topic_partition, assignment, raised)
        yield from self._begin_replicas(topic_partition, assignment)

    def _begin_replicas(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> Flow[None]:
        """Move added replicas that do not exist yet to NewReplica."""
        for replica in [Replica(topic_partition, broker_id) for broker_id in assignment.adding]:
            if self.context.replica_state(replica) is ReplicaState.NON_EXISTENT:
                yield from self.replicas.handle_state_changes([replica], ReplicaState.NEW)

    def _finish(self, topic_partition: TopicPartition, assignment: ReplicaAssignment, raised: bool) -> Flow[None]:
        """Move leadership into the target, remove the other replicas, and write the topic's node last."""
        context = self.context
        added = [Replica(topic_partition, broker_id) for broker_id in assignment.adding]
        yield from self.replicas.handle_state_changes(added, ReplicaState.ONLINE)
        completed = ReplicaAssignment(assignment.target)
        context.set_assignment(topic_partition, completed)
        try:
            yield from self._move_leader(topic_partition, completed, raised and not assignment.removing)
            left = yield from self._wait_if_target_left_isr(topic_partition, assignment)
            if left:
                context.set_assignment(topic_partition, assignment)
                return  # The watch set by the check fires on the next change.
            yield from self._stop_replicas(topic_partition, assignment.removing)
            yield from self._elect_if_leaderless(topic_partition)
            yield from self.store.write_assignment(topic_partition, completed)
        except Exception:
            # The topic's node still has the reassignment, so memory must too: the replicas to remove must be stopped
            # later.
            context.set_assignment(topic_partition, assignment)
            self._try_again_later(topic_partition)
            raise
        context.being_reassigned.discard(topic_partition)
        done = f"done, {list(completed.replicas)}"
        self.log.note(
            StateChangeKind.REASSIGNMENT,
            cause=done,
            topic_partition=topic_partition,
            target_replicas=tuple(completed.replicas),
        )
        yield from self.node.remove(lambda tp, target: tp == topic_partition and target == completed.replicas)
        self.batch.send_update_metadata(context.brokers, [topic_partition])

    def _wait_if_target_left_isr(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> Flow[bool]:
        """Return True after sending a new leader epoch, if the old leader has removed all target replicas from the ISR.

        No replica may be removed then. The old leader stayed leader because no target replica could be elected; its
        later ISR writes fail.
        """
        known = self.context.leadership.get(topic_partition)
        if known is None or not known.has_leader or known.leader in assignment.target:
            return False
        state = yield from self._raise_leader_epoch(topic_partition)
        if set(state.isr) & set(assignment.target):
            return False
        LOG.warning("reassignment waits, its target left the ISR: partition=%s state=%s", topic_partition, state)
        yield from self._bump_leader_epoch(topic_partition, assignment, raised=True)
        return True

    def _try_again_later(self, topic_partition: TopicPartition) -> None:
        """Retry the completion after a pause.

        An immediate retry would loop, because the attempt's writes fire its watch.
        """

        def again() -> None:
            self.context.halted_moves.discard(topic_partition)
            self.enqueue(PartitionReassignmentIsrChange(topic_partition))

        if topic_partition not in self.context.halted_moves:
            self.context.halted_moves.add(topic_partition)
            self.scheduler.call_later(RETRY_MS, again)

    def _move_leader(self, topic_partition: TopicPartition, assignment: ReplicaAssignment, raised: bool) -> Flow[None]:
        known = self.context.leadership.get(topic_partition)
        stays = (
            known is not None
            and known.leader in assignment.replicas
            and self.context.is_replica_online(known.leader, topic_partition)
        )
        if stays:
            yield from self._bump_leader_epoch(topic_partition, assignment, raised)
        else:
            yield from self.partitions.handle_state_changes(
                [topic_partition], PartitionState.ONLINE, ElectionStrategy.REASSIGN
            )

    def _elect_if_leaderless(self, topic_partition: TopicPartition) -> Flow[None]:
        """Elect a leader if no replica could lead when the old leader was removed; the partition counts as offline."""
        known = self.context.leadership.get(topic_partition)
        if known is None or known.has_leader:
            return
        yield from self.partitions.handle_state_changes([topic_partition], PartitionState.OFFLINE)
        yield from self.partitions.handle_state_changes(
            [topic_partition], PartitionState.ONLINE, ElectionStrategy.OFFLINE
        )

    def _bump_leader_epoch(
        self, topic_partition: TopicPartition, assignment: ReplicaAssignment, raised: bool
    ) -> Flow[None]:
        """Raise the leader epoch without other changes and send it to every replica; added replicas are marked new.

        If this reassignment has already ``raised`` the epoch, for all of its replicas, the epoch is sent unchanged.

        Source: docs/protocol/controller.md#new-replica-flag.
        """
        known = self.context.leadership.get(topic_partition)
        state = known if raised and known is not None else (yield from self._raise_leader_epoch(topic_partition))
        self.batch.new_batch()
        self.batch.add_leader_and_isr(assignment.origin, topic_partition, state, assignment, is_new=False)
        self.batch.add_leader_and_isr(assignment.adding, topic_partition, state, assignment, is_new=True)
        self.batch.send()

    def _raise_leader_epoch(self, topic_partition: TopicPartition) -> Flow[LeaderAndIsr]:
        """Write the state with the next leader epoch, and return it."""
        context = self.context

        def raised(_: TopicPartition) -> StateWrite:
            known = context.leadership[topic_partition]
            return StateWrite(topic_partition, known.with_leader(known.leader, known.isr, context.epoch))

        known = [topic_partition] if topic_partition in context.leadership else []
        if not (yield from self.writer.rewrite(known, raised)):
            state = context.leadership.get(topic_partition)
            raise UnexpectedResponseError(ZkCode.NO_NODE, f"raise the leader epoch of {topic_partition} from {state}")
        return context.leadership[topic_partition]

    def _stop_replicas(self, topic_partition: TopicPartition, broker_ids: Sequence[int]) -> Flow[None]:
        """Remove replicas from the ISR, stop and delete them, and forget them, without waiting for the brokers."""
        replicas = [Replica(topic_partition, broker_id) for broker_id in broker_ids]
        replicas = [one for one in replicas if self.context.replica_state(one) is not ReplicaState.NON_EXISTENT]
        for target in (
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
            ReplicaState.NON_EXISTENT,
        ):
            yield from self.replicas.handle_state_changes(replicas, target)


def _never_led(context: ControllerContext, topic_partition: TopicPartition) -> bool:
    is_new = context.partition_state(topic_partition) is PartitionState.NEW
    return is_new and topic_partition not in context.leadership


def deletes_all_in_sync(state: LeaderAndIsr) -> InvalidReplicaAssignmentError:
    return InvalidReplicaAssignmentError(f"this would delete all in-sync replicas {list(state.isr)}")
