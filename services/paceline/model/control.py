"""Requests and responses between controller and brokers, as plain values.

The wire form is `paceline.internal.v1`; `paceline.rpc.convert` converts between the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.model.addresses import address_of
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of a process."""

    listener: str
    """CLIENT, EXTERNAL, REPLICATION or CONTROL."""
    host: str
    port: int

    @property
    def address(self) -> str:
        """``host:port``, an IPv6 host in brackets."""
        return address_of(self.host, self.port)


def control_endpoint(endpoints: tuple[Endpoint, ...]) -> Endpoint | None:
    """Return the CONTROL address of a process, None when it has not published this address."""
    return next((endpoint for endpoint in endpoints if endpoint.listener == "CONTROL"), None)


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """One registered broker."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    broker_epoch: int = -1
    """czxid of its registration node."""
    unclean_restart: bool = False
    """Whether the broker reported at its registration that it may have lost records; set only on controllers."""

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the address on a listener, None when the broker does not have that listener."""
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


@dataclass(frozen=True, slots=True)
class ControllerStamp:
    """Sender and epochs of a control request, by which a broker fences a deposed controller."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int | None
    """Broker epoch of the registration that must receive the request; None skips the check."""


@dataclass(frozen=True, slots=True)
class LeaderAndIsrPartition:
    """A decision about one partition (docs/protocol/controller.md#control-requests)."""

    topic_partition: TopicPartition
    topic_id: str | None
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """Make the broker leader or follower of partitions."""

    stamp: ControllerStamp
    live_leaders: tuple[LiveBroker, ...]
    partitions: tuple[LeaderAndIsrPartition, ...]


@dataclass(frozen=True, slots=True)
class StopReplicaPartition:
    """One replica to stop."""

    topic_partition: TopicPartition
    topic_id: str | None
    leader_epoch: int
    """-2 while the topic is being deleted, -1 when not known."""
    delete_partition: bool


@dataclass(frozen=True, slots=True)
class StopReplicaRequest:
    """Stop replicas, and optionally delete their logs."""

    stamp: ControllerStamp
    partitions: tuple[StopReplicaPartition, ...]


@dataclass(frozen=True, slots=True)
class UpdateMetadataPartition:
    """Metadata of one partition for clients."""

    topic_partition: TopicPartition
    topic_id: str | None
    controller_epoch: int
    leader: int
    """-1 for none, -2 when the partition is being deleted."""
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest:
    """Refresh a broker's metadata cache."""

    stamp: ControllerStamp
    live_brokers: tuple[LiveBroker, ...]
    partitions: tuple[UpdateMetadataPartition, ...]
    controller_endpoints: tuple[Endpoint, ...] = ()
    is_initial: bool = False
    """Whether this is the controller's first full metadata: a StopReplica of an earlier controller cannot arrive after
    it."""
    sequence: int = 0
    """Number of the request, which rises within a controller epoch; 0 when requests are not numbered."""


ControlRequest = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """Answer to any control request; UpdateMetadata has no per-partition part."""

    error: ErrorCode = ErrorCode.NONE
    partition_errors: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    """One entry per partition of a LeaderAndIsr or StopReplica request, including `ErrorCode.NONE`."""
    topic_ids: dict[TopicPartition, str] = field(default_factory=dict)
    """Topic ids of logs whose partition a LeaderAndIsr request listed without a topic id."""


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest:
    """A broker asks the controller to move its leaderships to other brokers before it stops."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """An internal topic that a broker asks the controller to create."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    broker_id: int
    """The calling broker."""


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatRequest:
    """A broker renews its lease."""

    broker_id: int
    broker_epoch: int
    broken_leaders: tuple[int, ...] = ()
    """Ids of leaders whose fetch connection from this broker broke and has not worked since."""
    unreachable_leaders: tuple[int, ...] = ()
    reached_leaders: tuple[int, ...] = ()
    """Ids of leaders that have not answered this broker's fetches for long, and of all others it fetches from."""
    shutting_down: bool | None = None
    """Whether the broker is about to stop; None from a broker of an older version, which does not say it."""


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatResponse:
    """Whether the broker's lease was renewed."""

    error: ErrorCode = ErrorCode.NONE
    """STALE_BROKER_EPOCH, or BROKER_NOT_AVAILABLE while the controller has not read the registration."""
    controller_epoch: int = 0
    unanswered_ms: int = 0
    """Age of the oldest request of the controller that may end a leadership and is not answered, 0 without one."""


@dataclass(frozen=True, slots=True)
class ControlledShutdownResponse:
    """Partitions that the broker still leads."""

    error: ErrorCode = ErrorCode.NONE
    remaining: tuple[TopicPartition, ...] = ()
