"""Serve ListPartitionReassignments: running reassignments with the replicas that each waits for.

Source: docs/protocol/controller.md#reassignment-steps; KIP-455.
"""

from collections.abc import Sequence

from paceline.controller.admin.admin_values import AwaitedReason, AwaitedReplica, OngoingReassignment
from paceline.controller.context import ControllerContext
from paceline.controller.zk_store import ZkStore
from paceline.coordination.flow import Flow
from paceline.model.identifiers import TopicPartition
from paceline.model.node_description import NodeStuckMove


def list_reassignments(
    context: ControllerContext, store: ZkStore, wanted: Sequence[TopicPartition] | None
) -> Flow[list[OngoingReassignment]]:
    """Return running reassignments by topic and partition, with the ISR read from ZooKeeper; None means all."""
    moving = sorted(tp for tp in context.being_reassigned if context.assignment(tp).is_being_reassigned)
    if wanted is not None:
        chosen = set(wanted)
        moving = [tp for tp in moving if tp in chosen]
    states = yield from store.partition_states(moving)
    found = []
    for topic_partition in moving:
        assignment = context.assignment(topic_partition)
        state = states.get(topic_partition)
        isr = () if state is None else state.isr
        leader = state.leader if state is not None and state.has_leader else None
        missing = [broker_id for broker_id in assignment.target if broker_id not in isr]
        awaited = tuple(_awaited(context, topic_partition, broker_id, leader) for broker_id in missing)
        found.append(OngoingReassignment(topic_partition, assignment, leader, isr, awaited))
    return found


def stuck_moves(context: ControllerContext, limit: int) -> tuple[NodeStuckMove, ...]:
    """Return the first ``limit`` reassignments that wait for more than a copy, judged by the cached states."""
    found: list[NodeStuckMove] = []
    for topic_partition in sorted(context.being_reassigned):
        if len(found) >= limit:
            break
        known, target = context.leadership.get(topic_partition), context.assignment(topic_partition).target
        leader = known.leader if known is not None and known.has_leader else None
        missing = [broker_id for broker_id in target if known is None or broker_id not in known.isr]
        awaited = [_awaited(context, topic_partition, broker_id, leader) for broker_id in missing]
        reasons = [one.message for one in awaited if one.reason is not AwaitedReason.NOT_CAUGHT_UP]
        if topic_partition in context.halted_moves:
            reasons.append("its last step could not be written to ZooKeeper")
        if reasons:
            found.append(NodeStuckMove(topic_partition, "; ".join(reasons)))
    return tuple(found)


def _awaited(
    context: ControllerContext, topic_partition: TopicPartition, broker_id: int, leader: int | None
) -> AwaitedReplica:
    if broker_id not in context.brokers:
        return AwaitedReplica(
            broker_id, AwaitedReason.BROKER_DEAD, f"broker {broker_id} is not registered: start it, or cancel the move"
        )
    if broker_id in context.shutting_down:
        return AwaitedReplica(broker_id, AwaitedReason.BROKER_SHUTTING_DOWN, f"broker {broker_id} is shutting down")
    if topic_partition in context.on_offline_dirs.get(broker_id, ()):
        return AwaitedReplica(
            broker_id, AwaitedReason.LOG_DIR_FAILED, f"the log directory on broker {broker_id} has failed"
        )
    if leader is None:
        return AwaitedReplica(
            broker_id, AwaitedReason.NO_LEADER, f"the partition has no leader from which broker {broker_id} could copy"
        )
    return AwaitedReplica(
        broker_id, AwaitedReason.NOT_CAUGHT_UP, f"broker {broker_id} has not caught up with leader {leader} yet"
    )
