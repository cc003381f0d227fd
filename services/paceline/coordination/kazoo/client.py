"""Talk to a real ensemble: `KazooZooKeeper`. Only this folder imports kazoo.

kazoo's connection thread puts everything it receives, in order, into one queue, which is drained on the owner's thread.
Three features of kazoo are not used, because each would break a rule of `interface.py`:

* its worker threads: watch events and responses go through different threads, so a response may overtake the event that
  announces it. Callbacks run on the connection thread here and only put something into the queue.
* its queue across sessions: requests submitted without a connection wait here, and are answered SESSION_EXPIRED when
  the session ends (docs/protocol/zookeeper.md#requests-end-with-their-session).
* its chroot: paths are prefixed here, so that the same connection can create the chroot first.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    SASLException,
    SessionClosedRequireSaslError,
)
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from paceline.coordination.credentials import NO_SECURITY, ZooKeeperSecurity
from paceline.coordination.errors import ZooKeeperDataLostError
from paceline.coordination.interface import (
    Request,
    Response,
    SessionEvent,
    SessionState,
    WatchEvent,
    ZkCode,
)
from paceline.coordination.kazoo.codec import AbsoluteCreate, RequestCodec, code_of, watch_type_of
from paceline.coordination.kazoo.handler import ConnectionHandler
from paceline.coordination.kazoo.probe import lost_data
from paceline.coordination.kazoo.wire import Contact
from paceline.coordination.requests import Batch, is_sendable
from paceline.coordination.znodes.paths import parent_paths

LOG = logging.getLogger(__name__)

MAX_IN_FLIGHT = 1_000
"""Requests handed to kazoo at a time; more of them gains nothing, and those that wait are not in doubt."""

_PROBE_PAUSE_S = 1.0
_PROBE_TIMEOUT_S = 2.0
_FINDINGS_NEEDED = 2
"""A server that is just starting may say anything once."""


class _Pending:
    """One request on its way; kazoo calls `set` or `set_exception` once, on its connection thread."""

    __slots__ = ("_answered", "batch", "index", "request")

    def __init__(
        self, request: Request, batch: Batch, index: int, answered: Callable[["_Pending", Any, Exception | None], None]
    ) -> None:
        self.request = request
        self.batch = batch
        self.index = index
        self._answered = answered

    def set(self, value: Any = None) -> None:
        self._answered(self, value, None)

    def set_exception(self, exception: Exception) -> None:
        self._answered(self, None, exception)


class KazooZooKeeper:
    """A client of a real ensemble; implements the `ZooKeeper` protocol.

    All methods are for the owner's thread, and all callbacks run there.

    Args:
        hosts: ``host:port[,host:port][/chroot]``; the chroot is created if need be.
        session_timeout_ms: the server may bound it to 2..20 of its ticks unless configured otherwise; the granted
            timeout applies.
        post: hands a callback to the owner's thread from another one, like ``loop.call_soon_threadsafe``.
        close_timeout_ms: how long `close` waits at most for the server to close the session.
        on_data_lost: called once, on the owner's thread, when the ensemble has lost its data and turns this client away
            (docs/protocol/zookeeper.md#ensemble-that-lost-its-data), within seconds after the session is in doubt.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        post: Callable[[Callable[[], None]], None],
        close_timeout_ms: int = 2_000,
        on_data_lost: Callable[[Exception], None] = lambda error: None,
        security: ZooKeeperSecurity = NO_SECURITY,
    ) -> None:
        servers, slash, chroot = hosts.partition("/")
        self._on_data_lost = on_data_lost
        self._chroot = slash + chroot.strip("/") if chroot.strip("/") else ""
        self._timeout_s = session_timeout_ms / 1000
        self._asked_ms = self._granted_ms = session_timeout_ms
        self._post = post
        self._close_timeout_s = close_timeout_ms / 1000
        self._contact = Contact(self._timeout_s)
        self._client = KazooClient(
            hosts=servers,
            timeout=self._timeout_s,
            handler=ConnectionHandler(self._contact),
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0),
            command_retry=KazooRetry(max_tries=0),
            sasl_options=_sasl_options(security),
            use_ssl=security.tls,
            ca=security.ca_file,
            verify_certs=True,
        )
        self._codec = RequestCodec(self._chroot, security)
        self._warned_of_sasl = False
        self._client.add_listener(self._state_changed)
        self._hear_of_the_grant()
        # State of the owner's thread.
        self._session_id = 0
        self._connected = False
        self._seen_generation = 0
        self._on_session: Callable[[SessionEvent], None] = lambda event: None
        self._on_watch: Callable[[WatchEvent], None] = lambda event: None
        self._started = False
        # State of the connection thread; both threads use it under the lock.
        self._lock = threading.RLock()
        self._wire_session_id = 0
        self._wire_connected = False
        self._generation = 0
        self._closed = False
        self._waiting: deque[_Pending] = deque()
        self._in_flight: dict[_Pending, None] = {}
        self._doubt_timer: threading.Timer | None = None
        self._last_event: Any = None
        # From the connection thread to the owner's.
        self._deliveries: deque[Callable[[], None]] = deque()
        self._drain_posted = False

    @property
    def session_id(self) -> int:
        """Id of the current session, 0 before the first connection and between two sessions."""
        return self._session_id

    @property
    def connected(self) -> bool:
        """Whether requests submitted now would be sent at once."""
        return self._connected

    @property
    def session_may_be_over(self) -> bool:
        """Whether the server may have ended the session by now, or has and the owner's thread has yet to hear of it."""
        with self._lock:
            over = not self._session_id or self._generation != self._seen_generation
            return over or time.monotonic() - self._contact.last_s > self._timeout_s

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect, and keep connecting until closed."""
        if self._started:
            raise RuntimeError("a client is started once")
        self._started = True
        self._on_session = on_session
        self._on_watch = on_watch
        self._client.start_async()

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        """Send requests, pipelined, and call back once with all responses."""
        if not requests:
            self._deliver(partial(on_done, []))
            return
        batch = Batch(len(requests), on_done)
        with self._lock:
            # Their session may have ended already, while its end is still on the way to this thread.
            over = self._closed or self._generation != self._seen_generation
            for index, request in enumerate(requests):
                pending = _Pending(request, batch, index, self._answered)
                if over:
                    self._answer(pending, Response(ZkCode.SESSION_EXPIRED))
                elif not is_sendable(request):
                    self._answer(pending, Response(ZkCode.BAD_ARGUMENTS))
                else:
                    self._waiting.append(pending)
            self._pump()

    def close(self) -> None:
        """End the session. Requests in flight are answered SESSION_EXPIRED, then CLOSED follows."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            unanswered = [*self._in_flight, *self._waiting]
            self._in_flight.clear()
            self._waiting.clear()
            self._stop_doubting()
            for pending in unanswered:
                self._answer(pending, Response(ZkCode.SESSION_EXPIRED))
            self._deliver(partial(self._session_changed, SessionState.CLOSED, self._wire_session_id))
        if self._started:
            # kazoo waits for its connection thread without a limit of its own, so it does that on another thread.
            stopper = threading.Thread(target=self._stop_client, name="zookeeper-close", daemon=True)
            stopper.start()
            stopper.join(self._close_timeout_s)

    def _hear_of_the_grant(self) -> None:
        """Have `_granted` called with each connection's granted session timeout, which kazoo does not expose."""
        connection = self._client._connection
        connect = connection._connect

        def connect_and_tell(*args: Any) -> Any:
            try:
                read_timeout_ms, connect_timeout_ms = connect(*args)
            except (AuthFailedError, SASLException, SessionClosedRequireSaslError) as failure:
                self._sasl_failed(failure)
                raise ConnectionDropped("the SASL exchange failed") from failure
            self._granted(round(read_timeout_ms * 3 / 2))  # kazoo takes two thirds of the session's
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connect_and_tell

    def _sasl_failed(self, failure: Exception) -> None:
        """Say so once. A server that stops in the middle of the exchange looks the same, so connecting continues."""
        if not self._warned_of_sasl:
            self._warned_of_sasl = True
            LOG.warning(
                "ZooKeeper ended the connection during SASL, retrying: check zookeeper.sasl.username and "
                "zookeeper.sasl.password: reason=%s",
                repr(failure),
            )

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception:
            LOG.warning("closing the ZooKeeper client failed", exc_info=True)

    # On the connection thread, or under the lock.

    def _state_changed(self, state: str) -> None:
        with self._lock:
            if self._closed:
                return
            if state == KazooState.CONNECTED:
                self._wire_up()
            elif state == KazooState.SUSPENDED:
                self._wire_down()
            else:
                self._wire_lost()

    def _wire_up(self) -> None:
        self._wire_session_id = self._client.client_id[0]
        self._wire_connected = True
        self._stop_doubting()
        self._deliver(partial(self._session_changed, SessionState.CONNECTED, self._wire_session_id))
        self._waiting.extendleft(reversed(self._chroot_requests()))
        self._pump()

    def _granted(self, timeout_ms: int) -> None:
        """Take the session timeout that the server granted; it decides when the session is in doubt."""
        with self._lock:
            if timeout_ms == self._granted_ms:
                return
            self._granted_ms = timeout_ms
            self._timeout_s = timeout_ms / 1000
            self._contact.allow(self._timeout_s)
        LOG.warning(
            "ZooKeeper keeps a session for %d ms, %d were asked for (zookeeper.session.timeout.ms): "
            "its tickTime, minSessionTimeout and maxSessionTimeout bound it",
            timeout_ms,
            self._asked_ms,
        )

    def _wire_down(self) -> None:
        if not self._wire_connected:
            return
        self._wire_connected = False
        self._deliver(partial(self._session_changed, SessionState.DISCONNECTED, self._wire_session_id))
        remaining_s = max(self._contact.last_s + self._timeout_s - time.monotonic(), 0)
        self._stop_doubting()
        timer = threading.Timer(remaining_s, self._doubt)
        timer.daemon = True
        timer.start()
        self._doubt_timer = timer

    def _doubt(self) -> None:
        """Runs on the timer's thread."""
        with self._lock:
            if self._doubt_timer is not threading.current_thread() or self._closed:
                return
            self._deliver(partial(self._session_changed, SessionState.IN_DOUBT, self._wire_session_id))
        self._look_for_lost_data(threading.current_thread())

    def _look_for_lost_data(self, doubt: threading.Thread) -> None:
        """Ask the servers while they do not take us back; the timer's thread ends with the doubt."""
        servers = [(host, int(port)) for host, port in self._client.hosts]
        findings = 0
        while findings < _FINDINGS_NEEDED:
            with self._lock:
                if self._doubt_timer is not doubt or self._closed:
                    return
            found = lost_data(servers, self._client.last_zxid, _PROBE_TIMEOUT_S)
            findings = findings + 1 if found else 0
            time.sleep(_PROBE_PAUSE_S)
        error = ZooKeeperDataLostError(f"ZooKeeper has lost data: {found}; restore it, or set up a new cluster")
        with self._lock:
            if self._doubt_timer is doubt and not self._closed:
                self._deliver(partial(self._on_data_lost, error))

    def _wire_lost(self) -> None:
        session_id, self._wire_session_id = self._wire_session_id, 0
        self._wire_connected = False
        self._generation += 1
        self._stop_doubting()
        if session_id:
            self._deliver(partial(self._session_changed, SessionState.EXPIRED, session_id))
        self._deliver(partial(setattr, self, "_seen_generation", self._generation))
        waiting = list(self._waiting)
        self._waiting.clear()
        for pending in waiting:
            self._answer(pending, Response(ZkCode.SESSION_EXPIRED))

    def _stop_doubting(self) -> None:
        if self._doubt_timer is not None:
            self._doubt_timer.cancel()
            self._doubt_timer = None

    def _chroot_requests(self) -> list[_Pending]:
        if not self._chroot:
            return []
        paths = [*parent_paths(self._chroot), self._chroot]
        ignored = Batch(len(paths), lambda responses: None)
        return [
            _Pending(AbsoluteCreate(path, None), ignored, index, self._answered) for index, path in enumerate(paths)
        ]

    def _pump(self) -> None:
        while self._wire_connected and self._waiting and len(self._in_flight) < MAX_IN_FLIGHT:
            pending = self._waiting.popleft()
            self._in_flight[pending] = None
            self._client._call(self._codec.encode(pending.request, self._watch_fired), pending)

    def _answered(self, pending: _Pending, value: Any, exception: Exception | None) -> None:
        with self._lock:
            if pending not in self._in_flight:
                return
            del self._in_flight[pending]
            response = Response(code_of(exception)) if exception else self._codec.decode(pending.request, value)
            if response.code is ZkCode.CONNECTION_LOSS:
                # kazoo fails the requests before it says why; owners are to hear it the other way round.
                self._wire_down()
            self._answer(pending, response)
            self._pump()

    def _answer(self, pending: _Pending, response: Response) -> None:
        self._deliver(partial(pending.batch.answer, pending.index, response))

    def _watch_fired(self, event: Any) -> None:
        # A node deleted under both kinds of watch calls twice, with the same event.
        if event is self._last_event:
            return
        self._last_event = event
        watch_type = watch_type_of(event)
        if watch_type is not None:
            self._deliver(partial(self._tell_watch, WatchEvent(watch_type, self._codec.without_chroot(event.path))))

    def _deliver(self, callback: Callable[[], None]) -> None:
        self._deliveries.append(callback)
        if not self._drain_posted:
            self._drain_posted = True
            self._post(self._drain)

    # On the owner's thread.

    def _drain(self) -> None:
        self._drain_posted = False
        try:
            while self._deliveries:
                self._deliveries.popleft()()
        finally:
            # A callback that raises stops this round, not the deliveries behind it.
            if self._deliveries and not self._drain_posted:
                self._drain_posted = True
                self._post(self._drain)

    def _session_changed(self, state: SessionState, session_id: int) -> None:
        self._connected = state is SessionState.CONNECTED
        if state is SessionState.CONNECTED:
            self._session_id = session_id
        elif state is SessionState.EXPIRED:
            self._session_id = 0
        self._on_session(SessionEvent(state, session_id))

    def _tell_watch(self, event: WatchEvent) -> None:
        self._on_watch(event)


def _sasl_options(security: ZooKeeperSecurity) -> dict[str, str] | None:
    if not security.username:
        return None
    return {"mechanism": "DIGEST-MD5", "username": security.username, "password": security.password}
