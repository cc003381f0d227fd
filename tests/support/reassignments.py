"""Start and read reassignments of a controller core in tests."""

from collections.abc import Callable, Mapping
from typing import Any

from paceline.controller.admin.admin_requests import AlterPartitionReassignments
from paceline.controller.admin.admin_values import RequestedReassignment
from paceline.controller.node import ControllerNode
from paceline.model.assignment import ReplicaAssignment
from paceline.model.identifiers import TopicPartition


def start_reassignments(
    node: ControllerNode, targets: Mapping[TopicPartition, tuple[int, ...] | None], reply: Callable[[Any], None]
) -> None:
    """Start or replace reassignments; None cancels."""
    requested = [RequestedReassignment(topic_partition, target) for topic_partition, target in targets.items()]
    node.ask(AlterPartitionReassignments(tuple(requested), False, reply=reply))


def running_reassignments(node: ControllerNode) -> dict[TopicPartition, ReplicaAssignment]:
    """Return the assignments with a running reassignment, without an event."""
    assert node.is_active
    context = node._components.context
    return {tp: context.assignment(tp) for tp in context.partitions() if context.assignment(tp).is_being_reassigned}
