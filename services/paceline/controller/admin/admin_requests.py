"""Administrative requests as events."""

from dataclasses import dataclass

from paceline.controller.admin.admin_values import (
    AlterConfigsResult,
    ConfigAlteration,
    ConfigResource,
    DescribeConfigsResult,
    ElectionType,
    OngoingReassignment,
    RequestedReassignment,
)
from paceline.controller.events import Request
from paceline.model.admin import (
    ElectionResult,
    NewPartitions,
    NewPartitionsResult,
    NewTopic,
    ReassignmentResult,
    TopicResult,
)
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class CreateTopics(Request[list[TopicResult]]):
    """A client creates topics."""

    topics: tuple[NewTopic, ...]
    timeout_ms: int
    validate_only: bool
    internal: bool = False
    """Whether the request is from a broker, which may create internal topics."""


@dataclass(frozen=True, slots=True)
class DeleteTopics(Request[list[TopicResult]]):
    """A client deletes topics."""

    topics: tuple[str, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignments(Request[list[ReassignmentResult]]):
    """A client starts, replaces or cancels reassignments."""

    requested: tuple[RequestedReassignment, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class CreatePartitions(Request[list[NewPartitionsResult]]):
    """A client adds partitions to topics."""

    topics: tuple[NewPartitions, ...]
    timeout_ms: int
    validate_only: bool


@dataclass(frozen=True, slots=True)
class ListPartitionReassignments(Request[list[OngoingReassignment]]):
    """A client lists running reassignments; None means all partitions."""

    topic_partitions: tuple[TopicPartition, ...] | None
    is_certain = True


@dataclass(frozen=True, slots=True)
class ElectLeaders(Request[list[ElectionResult]]):
    """A client requests elections; None means all partitions that need an election."""

    election: ElectionType
    topic_partitions: tuple[TopicPartition, ...] | None
    timeout_ms: int
    validate_only: bool


@dataclass(frozen=True, slots=True)
class DescribeConfigs(Request[list[DescribeConfigsResult]]):
    """A client reads configurations, each with the requested keys; no keys means all."""

    resources: tuple[tuple[ConfigResource, tuple[str, ...]], ...]
    is_certain = True


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigs(Request[list[AlterConfigsResult]]):
    """A client changes configurations."""

    alterations: tuple[ConfigAlteration, ...]
    validate_only: bool
