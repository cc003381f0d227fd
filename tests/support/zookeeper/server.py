"""A ZooKeeper server in memory, on a scheduler: sessions, requests, watches.

Source: docs/protocol/simulator.md#in-memory-zookeeper.

Only the server ends a session. Requests of a connection are applied in order; replies and watch events leave a
connection in the order in which they were created.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.coordination.interface import (
    Exists,
    GetChildren,
    GetData,
    GetMany,
    Request,
    Response,
    WatchEvent,
    ZkCode,
)
from paceline.model.scheduler import Scheduler
from tests.support.zookeeper.data_tree import Change, DataTree
from tests.support.zookeeper.link import Link, Pipe
from tests.support.zookeeper.watch_table import WatchTable

Item = Response | WatchEvent
"""Messages to the client besides control messages."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Open a session, or reattach to the session with this id."""

    session_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Requests, to be applied in order."""

    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class Ping:
    """A heartbeat of the client."""


@dataclass(frozen=True, slots=True)
class Goodbye:
    """End the session."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """The sender has closed the connection."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The session is open."""

    session_id: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The requested session has ended."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to a ping."""


@dataclass(frozen=True, slots=True)
class Items:
    """Replies and events, in order."""

    items: Sequence[Item]


ToServer = Hello | Submit | Ping | Goodbye | HangUp
ToClient = Welcome | Gone | Pong | Items | HangUp


class ServerConnection:
    """The server's end of a connection."""

    def __init__(self, server: "MemoryZooKeeperServer", link: Link, replies: Pipe[ToClient]) -> None:
        self.link = link
        self.session_id = 0
        self.open = True
        self._server = server
        self._replies = replies
        self._outgoing: list[Item] = []

    def receive(self, message: ToServer) -> None:
        """Take a message from the client."""
        self._server.receive(self, message)

    def queue(self, item: Item) -> None:
        """Add a reply or event to the messages sent at the end of this step."""
        self._outgoing.append(item)

    def flush(self) -> None:
        """Send the queued messages."""
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            self._replies.send(Items(outgoing))

    def send(self, message: ToClient) -> None:
        """Send a control message."""
        self.flush()
        self._replies.send(message)

    def hang_up(self) -> None:
        """Close the connection from the server's side; queued messages are lost."""
        if self.open:
            self.open = False
            self._outgoing.clear()
            self._replies.send(HangUp())


@dataclass(slots=True)
class _Session:
    session_id: int
    timeout_ms: int
    last_heard_ms: int
    connection: ServerConnection | None = None


@dataclass(frozen=True, slots=True)
class AppliedWrite:
    """A change of a node, for an auditor."""

    zxid: int
    session_id: int
    change: Change


@dataclass(slots=True)
class Counters:
    """Counters of requests since the start, for tests."""

    requests: int = 0
    writes: int = 0


class MemoryZooKeeperServer:
    """One server that stands for the ensemble.

    Args:
        scheduler: drives session timeouts and the delivery of requests.
        tick_ms: sessions end at the first tick after their timeout, like ``tickTime``.
        on_write: called for every changed node, before clients are notified; it must not call the server.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        tick_ms: int = 500,
        on_write: Callable[[AppliedWrite], None] | None = None,
    ) -> None:
        self.tree = DataTree()
        self.scheduler = scheduler
        self.zxid = 0
        self.up = True
        self.counters = Counters()
        self._tick_ms = tick_ms
        self._on_write = on_write
        self._incarnation = 0
        self._sessions: dict[int, _Session] = {}
        self._next_session_id = 0x1000_0000_0001
        self._connections: dict[ServerConnection, None] = {}
        self._dirty: dict[ServerConnection, None] = {}
        self._watches: WatchTable[ServerConnection] = WatchTable()

    # Faults for tests and the simulator.

    def stop(self) -> None:
        """Stop: connections break, nodes and sessions remain."""
        self.up = False
        for connection in list(self._connections):
            self._drop(connection)

    def start(self) -> None:
        """Start again; every session gets its full timeout."""
        if self.up:
            return
        self.up = True
        self._incarnation += 1
        for session in self._sessions.values():
            session.last_heard_ms = self.scheduler.now_ms()
            self._watch_over(session)

    def expire(self, session_id: int) -> None:
        """End a session now, as if its client had been silent for the timeout."""
        self._end_session(session_id)

    def session_ids(self) -> list[int]:
        """Return the live sessions, oldest first."""
        return sorted(self._sessions)

    def connect(self, link: Link, replies: Pipe[ToClient]) -> ServerConnection:
        """Return the server's end of a new connection; called by clients."""
        connection = ServerConnection(self, link, replies)
        self._connections[connection] = None
        return connection

    # Messages of clients.

    def receive(self, connection: ServerConnection, message: ToServer) -> None:
        """Handle a message of a client."""
        if not connection.open:
            return
        if not self.up:
            self._drop(connection)
            return
        session = self._sessions.get(connection.session_id)
        if session is not None:
            session.last_heard_ms = self.scheduler.now_ms()
        match message:
            case Hello():
                self._hello(connection, message)
            case Submit():
                self._submit(connection, message.requests)
            case Ping():
                connection.send(Pong())
            case Goodbye():
                self._end_session(connection.session_id)
            case HangUp():
                self._drop(connection)

    def _hello(self, connection: ServerConnection, hello: Hello) -> None:
        session = self._sessions.get(hello.session_id)
        if hello.session_id and session is None:
            connection.send(Gone())
            self._drop(connection)
            return
        if session is None:
            session = self._new_session(hello.timeout_ms)
        elif session.connection is not None:
            # A session has one connection: from here on, requests in flight on the old connection are refused.
            self._drop(session.connection)
        session.connection = connection
        session.last_heard_ms = self.scheduler.now_ms()
        connection.session_id = session.session_id
        if connection.link.loses_handshake():
            self._drop(connection)
            return
        connection.send(Welcome(session.session_id))

    def _new_session(self, timeout_ms: int) -> _Session:
        self.zxid += 1
        session = _Session(self._next_session_id, timeout_ms, self.scheduler.now_ms())
        self._next_session_id += 1
        self._sessions[session.session_id] = session
        self._watch_over(session)
        return session

    def _submit(self, connection: ServerConnection, requests: Sequence[Request]) -> None:
        self._dirty[connection] = None
        lost = False
        for request in requests:
            response = self._execute(connection, request)
            lost = connection.link.loses_reply(request) or lost
            if not lost:
                connection.queue(response)
        self._flush_dirty()
        if lost:
            self._drop(connection)

    def _execute(self, connection: ServerConnection, request: Request) -> Response:
        self.counters.requests += 1
        match request:
            case GetData():
                return self._get_data(connection, request)
            case GetMany():
                found = [self._get_data(connection, GetData(path)) for path in request.paths]
                return Response(ZkCode.OK, results=tuple(replace(one, stat=None) for one in found))
            case Exists():
                node = self.tree.get(request.path)
                if request.watch:
                    self._watches.watch_data(request.path, connection)
                return Response(ZkCode.NO_NODE) if node is None else Response(ZkCode.OK, stat=node.stat())
            case GetChildren():
                return self._get_children(connection, request)
        self.zxid += 1
        response, changes = self.tree.apply(request, connection.session_id, self.zxid)
        self._announce(changes, connection.session_id)
        return response

    def _get_data(self, connection: ServerConnection, request: GetData) -> Response:
        node = self.tree.get(request.path)
        if node is None:
            return Response(ZkCode.NO_NODE)
        if request.path in self.tree.unreadable:
            return Response(ZkCode.OTHER)
        if request.watch:
            self._watches.watch_data(request.path, connection)
        return Response(ZkCode.OK, data=node.data, stat=node.stat())

    def _get_children(self, connection: ServerConnection, request: GetChildren) -> Response:
        node = self.tree.get(request.path)
        children = self.tree.children(request.path)
        if node is None or children is None:
            return Response(ZkCode.NO_NODE)
        if request.path in self.tree.unreadable:
            return Response(ZkCode.OTHER)
        if request.watch:
            self._watches.watch_children(request.path, connection)
        return Response(ZkCode.OK, children=children, stat=node.stat())

    # Consequences.

    def _announce(self, changes: Sequence[Change], session_id: int) -> None:
        self.counters.writes += len(changes)
        for change in changes:
            if self._on_write is not None:
                self._on_write(AppliedWrite(self.zxid, session_id, change))
            for connection, event in self._watches.fire(change):
                connection.queue(event)
                self._dirty[connection] = None

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            if connection.open:
                connection.flush()

    def _drop(self, connection: ServerConnection) -> None:
        connection.hang_up()
        self._connections.pop(connection, None)
        self._watches.forget(connection)
        session = self._sessions.get(connection.session_id)
        if session is not None and session.connection is connection:
            session.connection = None

    def _end_session(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        if session.connection is not None:
            self._drop(session.connection)
        self.zxid += 1
        self._announce(self.tree.remove_ephemerals(session_id), session_id)
        self._flush_dirty()

    def _watch_over(self, session: _Session) -> None:
        incarnation = self._incarnation
        delay_ms = self._deadline_ms(session) - self.scheduler.now_ms()
        self.scheduler.call_later(delay_ms, lambda: self._check(session, incarnation))

    def _check(self, session: _Session, incarnation: int) -> None:
        if not self.up or self._incarnation != incarnation or self._sessions.get(session.session_id) is not session:
            return
        if self.scheduler.now_ms() >= self._deadline_ms(session):
            self._end_session(session.session_id)
        else:
            self._watch_over(session)

    def _deadline_ms(self, session: _Session) -> int:
        return ((session.last_heard_ms + session.timeout_ms) // self._tick_ms + 1) * self._tick_ms
