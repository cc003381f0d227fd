"""Administrative requests as events, with the replies when the controller cannot serve them, or resigns."""

from collections.abc import Callable
from dataclasses import dataclass

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
)
from paceline.controller.events import ControllerState, Event
from paceline.model.errors import NotControllerError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class AdminRequest(Event):
    """Base of the administrative requests."""


@dataclass(frozen=True, slots=True)
class CreatePartitions(AdminRequest):
    """A client adds partitions to topics."""

    topics: tuple[NewPartitions, ...]
    timeout_ms: int
    validate_only: bool
    reply: Callable[[list[CreatePartitionsResult] | Exception], None]
    state = ControllerState.TOPIC_CHANGE

    def preempt(self) -> None:
        """Redirect the client to the next controller."""
        self.reply(_elsewhere())

    def abort(self) -> None:
        """Reply that the result is unknown."""
        self.reply(_in_doubt())


@dataclass(frozen=True, slots=True)
class ListPartitionReassignments(AdminRequest):
    """A client lists running reassignments; None means all partitions."""

    topic_partitions: tuple[TopicPartition, ...] | None
    reply: Callable[[list[OngoingReassignment] | Exception], None]
    state = ControllerState.LIST_PARTITION_REASSIGNMENT

    def preempt(self) -> None:
        """Redirect the client to the next controller."""
        self.reply(_elsewhere())


@dataclass(frozen=True, slots=True)
class ElectLeaders(AdminRequest):
    """A client requests elections; None means all partitions that need an election."""

    election: ElectionType
    topic_partitions: tuple[TopicPartition, ...] | None
    timeout_ms: int
    validate_only: bool
    reply: Callable[[list[ElectLeaderResult] | Exception], None]
    state = ControllerState.MANUAL_LEADER_BALANCE

    def preempt(self) -> None:
        """Redirect the client to the next controller."""
        self.reply(_elsewhere())

    def abort(self) -> None:
        """Reply that the result is unknown."""
        self.reply(_in_doubt())


@dataclass(frozen=True, slots=True)
class DescribeConfigs(AdminRequest):
    """A client reads configurations, each with the requested keys; no keys means all."""

    resources: tuple[tuple[ConfigResource, tuple[str, ...]], ...]
    reply: Callable[[list[DescribeConfigsResult] | Exception], None]
    state = ControllerState.TOPIC_CHANGE

    def preempt(self) -> None:
        """Redirect the client to the next controller."""
        self.reply(_elsewhere())


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigs(AdminRequest):
    """A client changes configurations."""

    alterations: tuple[ConfigAlteration, ...]
    validate_only: bool
    reply: Callable[[list[AlterConfigsResult] | Exception], None]
    state = ControllerState.TOPIC_CHANGE

    def preempt(self) -> None:
        """Redirect the client to the next controller."""
        self.reply(_elsewhere())

    def abort(self) -> None:
        """Reply that the result is unknown."""
        self.reply(_in_doubt())


def _elsewhere() -> NotControllerError:
    return NotControllerError("the controller is resigning")


def _in_doubt() -> RequestTimedOutError:
    return RequestTimedOutError("the controller resigned during the request; it is unknown whether the change was made")
