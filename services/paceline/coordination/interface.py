"""ZooKeeper as used by the cores: requests, responses, watches and session states.

Rules for every implementation (the kazoo client and the in-memory server):

* Callbacks run on the owning node's scheduler, one at a time. Responses of one client arrive in the order of its
  requests; a watch event arrives before any response that shows the change it announces.
* A request belongs to the session under which it was submitted. When that session ends it is answered
  ``SESSION_EXPIRED``; it is never carried over to the next session
  (docs/protocol/zookeeper.md#requests-end-with-their-session).
* ``CONNECTION_LOSS`` means that the connection broke before the answer: the request may have been applied.
* Watches are one-shot. Every ``CONNECTED`` event, of the same session or of a new session, means that *all* watches
  are lost and must be set again by reading (docs/protocol/zookeeper.md#watches-end-with-the-connection).
* Errors are returned as codes, also inside a multi; `submit` never raises for an answer of the server
  (docs/protocol/zookeeper.md#results-of-a-multi).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

ANY_VERSION = -1
"""Version that matches every version."""


class ZkCode(Enum):
    """Result of a request."""

    OK = auto()
    NO_NODE = auto()
    NODE_EXISTS = auto()
    BAD_VERSION = auto()
    NOT_EMPTY = auto()
    NO_CHILDREN_FOR_EPHEMERALS = auto()
    BAD_ARGUMENTS = auto()
    ROLLED_BACK = auto()
    """An operation of a multi that was not applied because another operation failed."""
    CONNECTION_LOSS = auto()
    SESSION_EXPIRED = auto()
    UNIMPLEMENTED = auto()
    """The server is older than the request."""
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Stat:
    """ZooKeeper's metadata of a node."""

    czxid: int
    """Transaction that created the node; the broker epoch of a broker's node."""
    version: int
    """Number of data changes since creation."""
    mzxid: int = 0
    cversion: int = 0
    ephemeral_owner: int = 0
    """Session id for an ephemeral node, otherwise 0."""
    num_children: int = 0


@dataclass(frozen=True, slots=True)
class GetData:
    """Read data and stat; with ``watch`` a later change or deletion fires once."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class GetMany:
    """Read the data, without stat, of several nodes in one request; UNIMPLEMENTED before ZooKeeper 3.6.

    The request is OK when the server has answered it; each result has a code of its own.
    """

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    """Read the stat; NO_NODE when absent. With ``watch`` a creation, change or deletion fires once."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class GetChildren:
    """List child names, sorted; with ``watch`` a change of the list, or deletion of the node, fires once."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; NODE_EXISTS when it exists, NO_NODE when its parent does not."""

    path: str
    data: bytes | None = b""
    """None stores null, as Kafka does in nodes that only have children."""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace data if the version matches."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a leaf if the version matches."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Inside a multi: the node must exist and have this version."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


@dataclass(frozen=True, slots=True)
class Multi:
    """Apply all operations or none, in one transaction."""

    operations: tuple[Operation, ...]


Request = GetData | GetMany | Exists | GetChildren | Create | SetData | Delete | Multi


@dataclass(frozen=True, slots=True)
class Response:
    """Response to a request, or to an operation of a multi."""

    code: ZkCode
    data: bytes | None = None
    """Data of GetData; None also for a node whose data is null."""
    stat: Stat | None = None
    """Stat of GetData, Exists, GetChildren and SetData."""
    children: tuple[str, ...] = ()
    path: str | None = None
    """Path of a created node, with its sequence number."""
    results: tuple["Response", ...] = ()
    """Results of a multi's operations, whose own code is OK only if all are; or of the nodes of GetMany."""
    in_doubt_before: bool = False
    """Whether an earlier attempt of this request ended in connection loss, so that it may have been applied before."""

    @property
    def ok(self) -> bool:
        """Whether the request was applied."""
        return self.code is ZkCode.OK


class WatchType(Enum):
    """Kind of change of a watched node."""

    CREATED = auto()
    DELETED = auto()
    DATA_CHANGED = auto()
    CHILDREN_CHANGED = auto()


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A one-shot watch has fired. It reports a change, not the present state: read again."""

    type: WatchType
    path: str


class SessionState(Enum):
    """State of a session, as its client knows it."""

    CONNECTED = auto()
    """Connected; all watches are lost, even when the session is the same as before."""
    DISCONNECTED = auto()
    """Connection lost; the session may still exist."""
    IN_DOUBT = auto()
    """Disconnected for longer than the session timeout by the client's monotonic clock: the server may have ended the
    session. A process that may act only within its session must stop acting now."""
    EXPIRED = auto()
    """The server has ended the session and removed its ephemeral nodes. A ``CONNECTED`` of a new session follows."""
    CLOSED = auto()
    """Closed by its owner; no event follows."""


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A change of the session state."""

    state: SessionState
    session_id: int
    """Session id of the event; 0 before the first connection."""


class ZooKeeper(Protocol):
    """A client with at most one session at a time."""

    @property
    def session_id(self) -> int:
        """Id of the current session, 0 before the first connection."""

    @property
    def connected(self) -> bool:
        """Whether requests submitted now would be sent at once."""

    @property
    def session_may_be_over(self) -> bool:
        """Whether the server may have ended the session by now, by the client's monotonic clock.

        Unlike `SessionState.IN_DOUBT`, which arrives as a callback, this is correct immediately after the process was
        paused.
        """

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect, and reconnect after every connection loss until `close`."""

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        """Send requests, pipelined, and call back once with all responses in the order of the requests.

        The requests of one call are independent: each may succeed or fail alone. While disconnected they wait for the
        connection; when the session ends they are answered SESSION_EXPIRED.
        """

    def close(self) -> None:
        """End the session and remove its ephemeral nodes. Requests in flight are answered SESSION_EXPIRED."""
