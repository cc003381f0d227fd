"""The active controller's part of DescribeNode: leases, suspicions, decisions that wait, stuck moves, removals."""

from typing import Final

from paceline.controller.components import ControllerComponents
from paceline.controller.context import ControllerContext
from paceline.controller.reassignment.list_reassignments import stuck_moves
from paceline.model.identifiers import TopicPartition
from paceline.model.node_description import NodeActiveController, NodeBroker, NodeRemoval, NodeUndecidedPartition

MOST_LISTED: Final = 100
"""Most partitions in each list."""


def describe_active(components: ControllerComponents, queue_size: int) -> NodeActiveController:
    """Return what only the active controller knows."""
    context, leases = components.context, components.liveness.leases
    suspicions = components.liveness.suspicions
    return NodeActiveController(
        queue_size,
        tuple(
            NodeBroker(
                broker_id,
                leases.silent_ms(broker_id),
                leases.has_expired(broker_id),
                broker_id in context.shutting_down,
                suspicions.evidence_against(broker_id),
                broker_id in context.unreached,
            )
            for broker_id in context.registered_broker_ids()
        ),
        _undecided(context),
        stuck_moves(context, MOST_LISTED),
        tuple(NodeRemoval(broker_id, state) for broker_id, state in sorted(context.removals.items())),
        components.publisher.standby_ids,
    )


def undecided_count(context: ControllerContext) -> int:
    """Return how many partitions wait for a decision of an operator."""
    return sum(bool(_unclean_members(context, topic_partition)) for topic_partition in context.state_extras)


def _undecided(context: ControllerContext) -> tuple[NodeUndecidedPartition, ...]:
    found = ((one, _unclean_members(context, one)) for one in sorted(context.state_extras))
    return tuple(NodeUndecidedPartition(one, members) for one, members in found if members)[:MOST_LISTED]


def _unclean_members(context: ControllerContext, topic_partition: TopicPartition) -> tuple[int, ...]:
    """Return the members that may lack records of a partition without a leader, else ()."""
    known = context.leadership.get(topic_partition)
    return () if known is None or known.has_leader else context.isr_history(topic_partition).unclean
