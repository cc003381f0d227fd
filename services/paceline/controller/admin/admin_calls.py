"""Administrative requests to a controller, except creating and deleting topics. Every call gets exactly one reply.

A reply is a list with one result per entry of the request, in its order, or an exception for the whole request:
`NotControllerError` when this controller is not active, `RequestTimedOutError` when it resigned during the request.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from paceline.controller.admin import admin_requests as requests
from paceline.controller.admin.admin_values import (
    AlterConfigsResult,
    ConfigAlteration,
    ConfigResource,
    CreatePartitionsResult,
    DescribeConfigsResult,
    ElectionType,
    ElectLeaderResult,
    NewPartitions,
    OngoingReassignment,
    ReassignmentWish,
)
from paceline.controller.components import ControllerComponents
from paceline.controller.election.elect_leaders import elect_leaders
from paceline.controller.events import AlterPartitionReassignments, Event, PartitionReassignmentResult
from paceline.controller.reassignment.list_reassignments import list_reassignments
from paceline.controller.topics.create_partitions import create_partitions
from paceline.controller.topics.topic_configs import TopicConfigAdmin
from paceline.coordination.flow import Flow
from paceline.model.errors import InvalidRequestError
from paceline.model.identifiers import TopicPartition

T = TypeVar("T")
Reply = Callable[[T | Exception], None]


def serve(components: ControllerComponents, event: requests.AdminRequest[Any]) -> Flow[None]:
    """Handle one request; runs inside the controller's event queue."""
    match event:
        case requests.CreatePartitions():
            yield from create_partitions(components, event)
        case requests.ListPartitionReassignments():
            event.reply((yield from list_reassignments(components, event.topic_partitions)))
        case requests.ElectLeaders():
            yield from elect_leaders(components, event)
        case requests.DescribeConfigs():
            yield from TopicConfigAdmin(components).describe(event)
        case requests.IncrementalAlterConfigs():
            yield from TopicConfigAdmin(components).alter(event)
        case _:
            raise AssertionError(f"no handler for {event.name}")


class AdminCalls:
    """Converts calls into events; timeouts are in milliseconds."""

    def __init__(self, ask: Callable[[Event], None]) -> None:
        """``ask`` queues an event, or preempts it when the controller is not active."""
        self._ask = ask

    def create_partitions(
        self,
        topics: Sequence[NewPartitions],
        timeout_ms: int,
        validate_only: bool,
        reply: Reply[list[CreatePartitionsResult]],
    ) -> None:
        """Add partitions; the reply comes when every new leader has acknowledged, or at the deadline."""
        self._ask(requests.CreatePartitions(tuple(topics), timeout_ms, validate_only, reply=once(reply)))

    def alter_partition_reassignments(
        self,
        wishes: Sequence[ReassignmentWish],
        validate_only: bool,
        reply: Reply[list[PartitionReassignmentResult]],
    ) -> None:
        """Start, replace or cancel reassignments; the reply means accepted, not complete."""
        asked = [wish.topic_partition for wish in wishes]
        times = Counter(asked)
        targets = {wish.topic_partition: wish.target for wish in wishes if times[wish.topic_partition] == 1}

        def merge(results: list[PartitionReassignmentResult] | Exception) -> None:
            if isinstance(results, Exception):
                reply(results)
                return
            found = {result.topic_partition: result for result in results}
            reply([found.get(topic_partition) or _listed_twice(topic_partition) for topic_partition in asked])

        self._ask(AlterPartitionReassignments(targets, validate_only, reply=once(merge)))

    def list_partition_reassignments(
        self, topic_partitions: Sequence[TopicPartition] | None, reply: Reply[list[OngoingReassignment]]
    ) -> None:
        """Return running reassignments and their awaited replicas; None means all partitions."""
        wanted = None if topic_partitions is None else tuple(topic_partitions)
        self._ask(requests.ListPartitionReassignments(wanted, reply=once(reply)))

    def elect_leaders(
        self,
        election: ElectionType,
        topic_partitions: Sequence[TopicPartition] | None,
        timeout_ms: int,
        validate_only: bool,
        reply: Reply[list[ElectLeaderResult]],
    ) -> None:
        """Elect leaders; the reply comes when each has acknowledged, or at the deadline.

        None means all that need it.
        """
        wanted = None if topic_partitions is None else tuple(topic_partitions)
        self._ask(requests.ElectLeaders(election, wanted, timeout_ms, validate_only, reply=once(reply)))

    def describe_configs(
        self,
        resources: Sequence[tuple[ConfigResource, tuple[str, ...]]],
        reply: Reply[list[DescribeConfigsResult]],
    ) -> None:
        """Return the effective configuration: per resource the keys in the request, or all keys."""
        self._ask(requests.DescribeConfigs(tuple(resources), reply=once(reply)))

    def alter_configs(
        self,
        alterations: Sequence[ConfigAlteration],
        validate_only: bool,
        reply: Reply[list[AlterConfigsResult]],
    ) -> None:
        """Change single keys; the reply means that the change is stored and announced, brokers apply it right after."""
        self._ask(requests.IncrementalAlterConfigs(tuple(alterations), validate_only, reply=once(reply)))


def once(reply: Callable[[T], None]) -> Callable[[T], None]:
    """Pass on only the first answer: an event may be preempted after it has answered."""
    answered = False

    def answer(value: T) -> None:
        nonlocal answered
        if not answered:
            answered = True
            reply(value)

    return answer


def _listed_twice(topic_partition: TopicPartition) -> PartitionReassignmentResult:
    return PartitionReassignmentResult(
        topic_partition, InvalidRequestError(f"{topic_partition} is listed more than once")
    )
