"""A ZooKeeper client in memory with the hazards of kazoo (docs/protocol/simulator.md#kazoo-hazards).

Z1: watches are dropped at every reconnect. Z3: requests belong to one session. Z4: a client that is cut off sees the
end of its session only when it reconnects; until then its own clock reports IN_DOUBT.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.coordination.interface import Request, Response, SessionEvent, SessionState, WatchEvent, ZkCode
from paceline.coordination.requests import Batch, is_sendable
from paceline.model.scheduler import Cancellable, Scheduler
from tests.support.zookeeper.link import Link, Pipe
from tests.support.zookeeper.server import (
    AppliedWrite,
    Gone,
    Goodbye,
    HangUp,
    Hello,
    Items,
    MemoryZooKeeperServer,
    Ping,
    Pong,
    ServerConnection,
    Submit,
    ToClient,
    ToServer,
    Welcome,
)

__all__ = ["AppliedWrite", "Link", "MemoryZooKeeper", "MemoryZooKeeperServer"]

_DEFAULT_SESSION_TIMEOUT_MS = 18_000
_PINGS_PER_TIMEOUT = 3


@dataclass(slots=True)
class _Pending:
    request: Request
    batch: Batch
    index: int
    sent_ms: int = 0


class _Connection:
    """The client's end of a connection."""

    def __init__(self, client: "MemoryZooKeeper", server: MemoryZooKeeperServer, scheduler: Scheduler, link: Link):
        self.established = False
        self.hello_sent_ms = scheduler.now_ms()
        self.last_sent_ms = self.hello_sent_ms
        self.ping_sent_ms: int | None = None
        self.in_flight: deque[_Pending] = deque()
        self._replies: Pipe[ToClient] = Pipe(
            scheduler,
            link,
            link.reply_delay_ms,
            lambda: link.replies_cut,
            lambda message: client.receive(self, message),
        )
        server_end: ServerConnection = server.connect(link, self._replies)
        self._requests: Pipe[ToServer] = Pipe(
            server.scheduler, link, link.request_delay_ms, lambda: link.requests_cut, server_end.receive
        )

    def send(self, message: ToServer, now_ms: int) -> None:
        self.last_sent_ms = now_ms
        self._requests.send(message)

    def close(self) -> None:
        """Ignore later messages; requests in flight may still reach the server."""
        self._replies.close()
        self._requests.send(HangUp())

    def oldest_unanswered_ms(self) -> int | None:
        if not self.established:
            return self.hello_sent_ms
        sent = self.in_flight[0].sent_ms if self.in_flight else None
        if sent is None or (self.ping_sent_ms is not None and self.ping_sent_ms < sent):
            return self.ping_sent_ms
        return sent


class MemoryZooKeeper:
    """Client of a `MemoryZooKeeperServer`; implements the `ZooKeeper` protocol.

    Args:
        scheduler: of the node this client belongs to; callbacks run on it.
        link: delays, cuts and losses; a quiet one by default.
        reconnect_delay_ms: pause between attempts to connect.
    """

    def __init__(
        self,
        server: MemoryZooKeeperServer,
        scheduler: Scheduler,
        *,
        session_timeout_ms: int = _DEFAULT_SESSION_TIMEOUT_MS,
        link: Link | None = None,
        reconnect_delay_ms: float = 100,
    ) -> None:
        self.link = link if link is not None else Link()
        self._server = server
        self._scheduler = scheduler
        self._timeout_ms = session_timeout_ms
        self._ping_interval_ms = session_timeout_ms / _PINGS_PER_TIMEOUT
        self._reconnect_delay_ms = reconnect_delay_ms
        self._session_id = 0
        self._connection: _Connection | None = None
        self._waiting: deque[_Pending] = deque()
        self._contact_ms = 0
        self._doubt_timer: Cancellable | None = None
        self._started = False
        self._over = False
        self._on_session: Callable[[SessionEvent], None] = lambda event: None
        self._on_watch: Callable[[WatchEvent], None] = lambda event: None

    @property
    def session_id(self) -> int:
        """Id of the current session, 0 before the first connection and between two sessions."""
        return self._session_id

    @property
    def connected(self) -> bool:
        """Whether a request would be sent immediately."""
        return self._connection is not None and self._connection.established

    @property
    def session_may_be_over(self) -> bool:
        """Whether the server may have ended the session by now."""
        return not self._session_id or self._scheduler.now_ms() - self._contact_ms > self._timeout_ms

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect, and reconnect until closed."""
        if self._started:
            raise RuntimeError("the client was already started")
        self._started = True
        self._on_session = on_session
        self._on_watch = on_watch
        self._connect()

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        """Send requests and call back once with all responses."""
        if not requests or self._over:
            responses = [Response(ZkCode.SESSION_EXPIRED)] * len(requests)
            self._scheduler.call_soon(lambda: on_done(responses))
            return
        batch = Batch(len(requests), on_done)
        sendable: list[_Pending] = []
        refused: list[int] = []
        for index, request in enumerate(requests):
            if is_sendable(request):
                sendable.append(_Pending(request, batch, index))
            else:
                refused.append(index)
        if refused:

            def refuse() -> None:
                for index in refused:
                    batch.answer(index, Response(ZkCode.BAD_ARGUMENTS))

            self._scheduler.call_soon(refuse)
        if self._connection is not None and self._connection.established:
            self._send(self._connection, sendable)
        else:
            self._waiting.extend(sendable)

    def close(self) -> None:
        """End the session. Requests in flight are answered SESSION_EXPIRED, then CLOSED follows."""
        if self._over:
            return
        self._over = True
        session_id = self._session_id
        connection, self._connection = self._connection, None
        unanswered = list(self._waiting)
        self._waiting.clear()
        if connection is not None:
            if connection.established:
                connection.send(Goodbye(), self._scheduler.now_ms())
            connection.close()
            unanswered = [*connection.in_flight, *unanswered]
        self._stop_doubting()

        def tell() -> None:
            _answer_pending(unanswered, ZkCode.SESSION_EXPIRED)
            self._on_session(SessionEvent(SessionState.CLOSED, session_id))

        self._scheduler.call_soon(tell)

    # Faults for tests and the simulator.

    def disconnect(self) -> None:
        """Break the connection as a reset does; the client reconnects."""
        if self._connection is not None:
            self._drop(self._connection)

    def crash(self) -> None:
        """End the client with its process: no callback runs any more, and the server ends the session after its
        timeout.
        """
        self._over = True
        self._stop_doubting()
        self._waiting.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.in_flight.clear()
            connection.close()

    # Connection and session.

    def _connect(self) -> None:
        if self._over or self._connection is not None:
            return
        if self.link.requests_cut or self.link.replies_cut:
            # A cut link allows no connection; heal() tries again.
            self.link.hold(self._connect_later)
            return
        connection = _Connection(self, self._server, self._scheduler, self.link)
        self._connection = connection
        connection.send(Hello(self._session_id, self._timeout_ms), self._scheduler.now_ms())
        self._scheduler.call_later(self._ping_interval_ms, lambda: self._tend(connection))

    def _connect_later(self) -> None:
        self._scheduler.call_later(self._reconnect_delay_ms, self._connect)

    def _tend(self, connection: _Connection) -> None:
        """Send pings, and close the connection when no reply arrives."""
        if connection is not self._connection:
            return
        now_ms = self._scheduler.now_ms()
        oldest_ms = connection.oldest_unanswered_ms()
        if oldest_ms is not None and now_ms - oldest_ms >= self._ping_interval_ms:
            self._drop(connection)
            return
        idle_ms = now_ms - connection.last_sent_ms
        if idle_ms >= self._ping_interval_ms:
            connection.ping_sent_ms = now_ms
            connection.send(Ping(), now_ms)
            idle_ms = 0
        self._scheduler.call_later(self._ping_interval_ms - idle_ms, lambda: self._tend(connection))

    def receive(self, connection: _Connection, message: ToClient) -> None:
        """Handle a message from the server; called by the connection."""
        if connection is not self._connection:
            return
        match message:
            case Welcome():
                self._welcome(connection, message.session_id)
            case Items():
                self._items(connection, message)
            case Pong():
                if connection.ping_sent_ms is not None:
                    self._contact_ms = connection.ping_sent_ms
                    connection.ping_sent_ms = None
            case Gone():
                self._expired(connection)
            case HangUp():
                self._drop(connection)

    def _welcome(self, connection: _Connection, session_id: int) -> None:
        connection.established = True
        self._session_id = session_id
        self._contact_ms = connection.hello_sent_ms
        self._stop_doubting()
        waiting = list(self._waiting)
        self._waiting.clear()
        self._send(connection, waiting)
        self._on_session(SessionEvent(SessionState.CONNECTED, session_id))

    def _items(self, connection: _Connection, message: Items) -> None:
        for item in message.items:
            # A callback may have closed this client or broken its connection.
            if connection is not self._connection:
                return
            if isinstance(item, WatchEvent):
                self._on_watch(item)
                continue
            pending = connection.in_flight.popleft()
            self._contact_ms = pending.sent_ms
            pending.batch.answer(pending.index, item)

    def _drop(self, connection: _Connection) -> None:
        was_established = connection.established
        self._connection = None
        connection.close()
        self._connect_later()
        if not was_established:
            return
        session_id = self._session_id
        lost = list(connection.in_flight)
        connection.in_flight.clear()
        self._on_session(SessionEvent(SessionState.DISCONNECTED, session_id))
        self._start_doubting(session_id)
        _answer_pending(lost, ZkCode.CONNECTION_LOSS)

    def _expired(self, connection: _Connection) -> None:
        session_id, self._session_id = self._session_id, 0
        self._connection = None
        connection.close()
        self._stop_doubting()
        waiting = list(self._waiting)
        self._waiting.clear()
        self._connect_later()
        self._on_session(SessionEvent(SessionState.EXPIRED, session_id))
        _answer_pending(waiting, ZkCode.SESSION_EXPIRED)

    def _start_doubting(self, session_id: int) -> None:
        if self._over or self._session_id != session_id:
            return
        remaining_ms = self._contact_ms + self._timeout_ms - self._scheduler.now_ms()

        def doubt() -> None:
            if not self._over and self._session_id == session_id and not self.connected:
                self._on_session(SessionEvent(SessionState.IN_DOUBT, session_id))

        if remaining_ms <= 0:
            doubt()
        else:
            self._doubt_timer = self._scheduler.call_later(remaining_ms, doubt)

    def _stop_doubting(self) -> None:
        if self._doubt_timer is not None:
            self._doubt_timer.cancel()
            self._doubt_timer = None

    def _send(self, connection: _Connection, pending: list[_Pending]) -> None:
        now_ms = self._scheduler.now_ms()
        for entry in pending:
            entry.sent_ms = now_ms
        connection.in_flight.extend(pending)
        step = self.link.requests_per_message
        for first in range(0, len(pending), step):
            connection.send(Submit([entry.request for entry in pending[first : first + step]]), now_ms)


def _answer_pending(pending: Sequence[_Pending], code: ZkCode) -> None:
    response = Response(code)
    for entry in pending:
        entry.batch.answer(entry.index, response)
