"""Requests and results of AdminService for topics, partitions, leaders and configuration, as plain values.

Source: KIP-195, KIP-339, KIP-455, KIP-460.
"""

from dataclasses import dataclass
from enum import Enum, auto

from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition

# partitions


@dataclass(frozen=True, slots=True)
class RequestedReassignment:
    """Requested replicas of a partition; the ``target`` None cancels the running reassignment."""

    topic_partition: TopicPartition
    target: tuple[int, ...] | None


class AwaitedReason(Enum):
    """Why a replica of a reassignment's target is not in sync."""

    NOT_CAUGHT_UP = auto()
    BROKER_DEAD = auto()
    BROKER_SHUTTING_DOWN = auto()
    LOG_DIR_FAILED = auto()
    NO_LEADER = auto()


@dataclass(frozen=True, slots=True)
class AwaitedReplica:
    """A replica that a reassignment waits for."""

    broker_id: int
    reason: AwaitedReason
    message: str


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """A partition with a running reassignment."""

    topic_partition: TopicPartition
    assignment: ReplicaAssignment
    leader: int | None
    isr: tuple[int, ...]
    """Present ISR in ZooKeeper."""
    waiting_for: tuple[AwaitedReplica, ...]


# leaders


class ElectionType(Enum):
    """Replicas from which a requested election may choose."""

    PREFERRED = auto()
    """The first assigned replica, if it is online and in sync."""
    UNCLEAN = auto()
    """Any online replica, in-sync replicas first: records may be lost."""


# configuration


class ResourceType(Enum):
    """Kind of object that a configuration applies to."""

    TOPIC = auto()
    BROKER = auto()
    """A broker, or all brokers: dynamic settings."""


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """Object that a configuration applies to; ``kind`` is None if this version does not know it."""

    kind: ResourceType | None
    name: str
    """For a broker its id, empty for all brokers."""


class ConfigSource(Enum):
    """Level at which a value is set."""

    TOPIC = auto()
    BROKER = auto()
    BROKER_DEFAULT = auto()
    BUILT_IN_DEFAULT = auto()


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key with its effective value."""

    key: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribeConfigsResult:
    """The configuration of one resource, or the error."""

    resource: ConfigResource
    error: PacelineError | None = None
    entries: tuple[ConfigEntry, ...] = ()


class ConfigOperation(Enum):
    """Operation on a key."""

    SET = auto()
    DELETE = auto()
    APPEND = auto()
    """Add members to a list."""
    SUBTRACT = auto()
    """Remove members from a list."""


@dataclass(frozen=True, slots=True)
class ConfigKeyChange:
    """Change of one key; ``operation`` is None if this version does not know it."""

    key: str
    operation: ConfigOperation | None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class AlterConfigsResult:
    """Result of the changes to one resource: either all changes were made or none."""

    resource: ConfigResource
    error: PacelineError | None = None


@dataclass(frozen=True, slots=True)
class ConfigAlteration:
    """Changes to one resource."""

    resource: ConfigResource
    changes: tuple[ConfigKeyChange, ...]
