"""Requests and results of AdminService for partitions, leaders and configuration, as plain values.

Source: KIP-195, KIP-339, KIP-455, KIP-460.
"""

from dataclasses import dataclass
from enum import Enum, auto

from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition

# partitions


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """How many partitions a topic is to have."""

    name: str
    count: int
    """Afterwards, the present ones included."""
    assignments: tuple[tuple[int, ...], ...] = ()
    """Broker ids per new partition, lowest number first; empty lets the controller place replicas."""


@dataclass(frozen=True, slots=True)
class CreatePartitionsResult:
    """What became of one topic."""

    name: str
    error: PacelineError | None = None
    first_partition: int = 0
    assignments: tuple[tuple[int, ...], ...] = ()
    """Where the new partitions are, lowest number first."""


@dataclass(frozen=True, slots=True)
class ReassignmentWish:
    """Where the replicas of a partition shall be; None cancels the running move."""

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
    """One partition on its way to other brokers."""

    topic_partition: TopicPartition
    assignment: ReplicaAssignment
    leader: int | None
    isr: tuple[int, ...]
    """As ZooKeeper has it now."""
    waiting_for: tuple[AwaitedReplica, ...]


# leaders


class ElectionType(Enum):
    """Which replicas a requested election may choose from."""

    PREFERRED = auto()
    """The first assigned replica, if it is online and in sync."""
    UNCLEAN = auto()
    """Any replica that is online, those in sync first: records may be lost."""


@dataclass(frozen=True, slots=True)
class ElectLeaderResult:
    """What became of one partition."""

    topic_partition: TopicPartition
    error: PacelineError | None = None
    leader: int | None = None
    leader_epoch: int | None = None
    """None when nothing was elected, also for a forecast."""
    unclean: bool = False
    """Whether the leader comes from outside the ISR."""


# configuration


class ResourceType(Enum):
    """What a configuration belongs to."""

    TOPIC = auto()
    BROKER = auto()
    """A broker, or all of them; what may be set while they run."""


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """What a configuration belongs to; a kind this version does not know is None."""

    kind: ResourceType | None
    name: str
    """Of a broker its id, empty for all of them."""


class ConfigSource(Enum):
    """Where a value comes from."""

    TOPIC = auto()
    BROKER = auto()
    BROKER_DEFAULT = auto()
    BUILT_IN_DEFAULT = auto()


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key with the value in effect."""

    key: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribeConfigsResult:
    """The configuration of one resource, or why it could not be described."""

    resource: ConfigResource
    error: PacelineError | None = None
    entries: tuple[ConfigEntry, ...] = ()


class ConfigOperation(Enum):
    """What to do with a key."""

    SET = auto()
    DELETE = auto()
    APPEND = auto()
    """Add members to a list."""
    SUBTRACT = auto()
    """Take members out of a list."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Change of one key; an operation this version does not know is None."""

    key: str
    operation: ConfigOperation | None
    value: str | None = None


@dataclass(frozen=True, slots=True)
class AlterConfigsResult:
    """What became of the changes to one resource: all were made, or none."""

    resource: ConfigResource
    error: PacelineError | None = None


@dataclass(frozen=True, slots=True)
class ConfigAlteration:
    """Changes to one resource."""

    resource: ConfigResource
    changes: tuple[ConfigChange, ...]
