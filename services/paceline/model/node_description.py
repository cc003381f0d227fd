"""A broker or controller as it sees itself: what DescribeNode returns; metrics, command line and console read it.

Ages are milliseconds at the time of the description; other times are milliseconds since the epoch.
"""

from dataclasses import dataclass

from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class NodeListener:
    """One listener with the address that other processes are told."""

    name: str
    advertised: str
    tls: bool = False


@dataclass(frozen=True, slots=True)
class NodeCertificate:
    """A certificate file in use, and the end of its validity."""

    path: str
    not_after_ms: int


@dataclass(frozen=True, slots=True)
class NodeDirectory:
    """A log directory and the space of its disk; see `log_dirs.LogDirSpace`. None means not measured."""

    path: str
    failed: bool = False
    free_bytes: int | None = None
    total_bytes: int | None = None
    min_free_bytes: int | None = None
    reserve_bytes: int | None = None
    room: int = 0


@dataclass(frozen=True, slots=True)
class NodePeer:
    """A process that this process calls."""

    kind: str
    """``leader`` is fetched from, ``controller`` gets heartbeats, ``broker`` gets control requests."""
    node_id: int
    address: str
    unanswered_ms: int = 0
    """Age of the oldest request without an answer, 0 without one."""
    answered_ago_ms: int | None = None
    """Since its latest answer; None before the first, and for leaders."""
    error: str = ""
    """Error of the latest call, empty after an answer."""


@dataclass(frozen=True, slots=True)
class NodeBroker:
    """A registered broker as the active controller sees it."""

    broker_id: int
    silent_ms: int | None = None
    """Since its latest heartbeat."""
    lease_expired: bool = False
    shutting_down: bool = False
    suspected: str = ""
    """Why its process is suspected to be dead."""
    unreached: bool = False
    """Whether most of its followers cannot fetch from it."""


@dataclass(frozen=True, slots=True)
class NodeUndecidedPartition:
    """A partition without a leader that waits for a decision: its ISR may lack acknowledged records."""

    topic_partition: TopicPartition
    unclean_members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeStuckMove:
    """A reassignment that does not continue without help."""

    topic_partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class NodeRemoval:
    """A broker that is being removed, or has been removed, from the cluster."""

    broker_id: int
    state: str
    """``removing`` or ``removed``."""


@dataclass(frozen=True, slots=True)
class NodeActiveController:
    """Facts that only the active controller knows."""

    queue_size: int = 0
    brokers: tuple[NodeBroker, ...] = ()
    undecided: tuple[NodeUndecidedPartition, ...] = ()
    stuck_moves: tuple[NodeStuckMove, ...] = ()
    removals: tuple[NodeRemoval, ...] = ()
    standbys: tuple[int, ...] = ()
    """Ids of the controllers that follow its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDescription:
    """One process."""

    node_id: int
    role: str
    """``broker`` or ``controller``."""
    server_version: str = ""
    cluster_id: str = ""
    state: str = "serving"
    """``starting``, ``serving``, ``not-serving`` or ``removed``."""
    clock_ms: int = 0
    up_ms: int = 0
    """Age of the process."""
    zookeeper_state: str = "connected"
    """``connected``, ``disconnected``, ``in_doubt`` or ``expired``."""
    zookeeper_state_ms: int = 0
    """Time for which the session has been in that state."""
    listeners: tuple[NodeListener, ...] = ()
    certificates: tuple[NodeCertificate, ...] = ()
    directories: tuple[NodeDirectory, ...] = ()
    peers: tuple[NodePeer, ...] = ()
    controller_epoch: int = 0
    """Highest controller epoch that the process knows."""
    active_controller: NodeActiveController | None = None
    """None unless the process is the active controller."""

    @property
    def name(self) -> str:
        """The process in a sentence, such as ``broker 2``."""
        return f"{self.role} {self.node_id}"
