"""`KazooZooKeeper`: a ZooKeeper client on kazoo. Only this folder imports kazoo.

kazoo's connection thread adds all responses and events, in the order of their arrival, to one queue; the owner's thread
runs them. Three features of kazoo are not used, because each would break a rule of `interface.py`:

* Worker threads: kazoo passes watch events and responses to different threads, so a response could overtake the watch
  event of the same change. Here callbacks run on the connection thread and only add to the queue.
* The queue across sessions: here requests submitted without a connection wait in this class, and receive
  SESSION_EXPIRED when the session ends (docs/protocol/zookeeper.md#requests-end-with-their-session).
* The chroot: `RequestCodec` prepends it to the paths, so that the same connection can create the chroot first.
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
"""Maximum number of requests in flight.

More would not be faster, and after a connection loss a request that still waits in this class was surely not applied.
"""

_CLOSE_TIMEOUT_S = 2.0
"""Longest time that `KazooZooKeeper.close` waits for the server to close the session."""
_PROBE_PAUSE_S = 1.0
_PROBE_TIMEOUT_S = 2.0
_FINDINGS_NEEDED = 2
"""Consecutive findings of lost data before it is reported: a server that is starting may give a wrong response once."""


class _Pending:
    """One request without a response; kazoo calls `set` or `set_exception` once, on its connection thread."""

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
    """A client of a ZooKeeper ensemble; implements the `ZooKeeper` protocol.

    Only the owner's thread calls the methods, and all callbacks run on that thread.

    Args:
        hosts: ``host:port[,host:port][/chroot]``; the chroot is created if it does not exist.
        session_timeout_ms: requested session timeout; by default a server grants 2 to 20 of its ticks, and the granted
            timeout applies.
        post: runs a callback on the owner's thread; called from any thread, like ``loop.call_soon_threadsafe``.
        on_data_lost: called once, on the owner's thread, when the ensemble refuses this client because it has lost data
            (docs/protocol/zookeeper.md#ensemble-that-lost-its-data), within seconds after the session is in doubt.
        security: TLS, SASL credentials and ACLs.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        post: Callable[[Callable[[], None]], None],
        on_data_lost: Callable[[Exception], None] = lambda error: None,
        security: ZooKeeperSecurity = NO_SECURITY,
    ) -> None:
        servers, slash, chroot = hosts.partition("/")
        self._on_data_lost = on_data_lost
        self._security = security
        self._chroot = slash + chroot.strip("/") if chroot.strip("/") else ""
        self._timeout_s = session_timeout_ms / 1000
        self._asked_ms = self._granted_ms = session_timeout_ms
        self._post = post
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
        # Used by the owner's thread only.
        self._session_id = 0
        self._connected = False
        self._seen_generation = 0
        self._on_session: Callable[[SessionEvent], None] = lambda event: None
        self._on_watch: Callable[[WatchEvent], None] = lambda event: None
        self._started = False
        # Used by the connection thread and the owner's thread, under the lock.
        self._lock = threading.RLock()
        self._wire_session_id = 0
        self._wire_connected = False
        self._generation = 0
        self._closed = False
        self._waiting: deque[_Pending] = deque()
        self._in_flight: dict[_Pending, None] = {}
        self._doubt_timer: threading.Timer | None = None
        self._last_event: Any = None
        # Callbacks for the owner's thread, in order.
        self._deliveries: deque[Callable[[], None]] = deque()
        self._drain_posted = False

    @property
    def session_id(self) -> int:
        """Id of the current session; 0 before the first connection and between two sessions."""
        return self._session_id

    @property
    def connected(self) -> bool:
        """Whether the client is connected, so that requests are sent at once."""
        return self._connected

    @property
    def session_may_be_over(self) -> bool:
        """Whether the session may have expired, even if the owner's thread has not received that event yet."""
        with self._lock:
            over = not self._session_id or self._generation != self._seen_generation
            return over or time.monotonic() - self._contact.last_s > self._timeout_s

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect, and reconnect after every connection loss until `close`.

        Raises:
            RuntimeError: the client was already started.
        """
        if self._started:
            raise RuntimeError("the client was already started")
        self._started = True
        self._on_session = on_session
        self._on_watch = on_watch
        self._client.start_async()

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        """Send requests without waiting for each response; call ``on_done`` once with all responses."""
        if not requests:
            self._deliver(partial(on_done, []))
            return
        batch = Batch(len(requests), on_done)
        with self._lock:
            # The session may have expired although this thread has not received the event yet.
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
        """Close the session. Requests without a response receive SESSION_EXPIRED, followed by the CLOSED event."""
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
            # kazoo waits for its connection thread without a time limit, so stop it on another thread.
            stopper = threading.Thread(target=self._stop_client, name="zookeeper-close", daemon=True)
            stopper.start()
            stopper.join(_CLOSE_TIMEOUT_S)

    def _hear_of_the_grant(self) -> None:
        """Wrap kazoo's connect method to learn the granted session timeout, which kazoo does not expose."""
        connection = self._client._connection
        connect = connection._connect

        def connect_and_tell(*args: Any) -> Any:
            try:
                read_timeout_ms, connect_timeout_ms = connect(*args)
            except (AuthFailedError, SASLException, SessionClosedRequireSaslError) as failure:
                self._sasl_failed(failure)
                raise ConnectionDropped("the SASL exchange failed") from failure
            self._granted(round(read_timeout_ms * 3 / 2))  # kazoo returns two thirds of the session timeout
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connect_and_tell

    def _sasl_failed(self, failure: Exception) -> None:
        """Log the failure once and keep connecting: a server that stops during the exchange causes the same error."""
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

    # The following methods run on the connection thread, or with the lock held.

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
        self._contact.accepted()
        self._stop_doubting()
        self._deliver(partial(self._session_changed, SessionState.CONNECTED, self._wire_session_id))
        self._waiting.extendleft(reversed(self._chroot_requests()))
        self._pump()

    def _granted(self, timeout_ms: int) -> None:
        """Use the session timeout that the server granted; it determines when the session is in doubt."""
        with self._lock:
            if timeout_ms == self._granted_ms:
                return
            self._granted_ms = timeout_ms
            self._timeout_s = timeout_ms / 1000
            self._contact.set_session_timeout(self._timeout_s)
        LOG.warning(
            "ZooKeeper changed the session timeout to fit its minSessionTimeout and maxSessionTimeout: "
            "granted_ms=%d zookeeper.session.timeout.ms=%d",
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
        """Report that the session is in doubt, then look for lost data; runs on the timer's thread."""
        with self._lock:
            if self._doubt_timer is not threading.current_thread() or self._closed:
                return
            self._deliver(partial(self._session_changed, SessionState.IN_DOUBT, self._wire_session_id))
        self._look_for_lost_data(threading.current_thread())

    def _look_for_lost_data(self, doubt: threading.Thread) -> None:
        """Query the servers until the doubt ends or lost data is found, and report lost data to the owner."""
        servers = [(host, int(port)) for host, port in self._client.hosts]
        findings = 0
        while findings < _FINDINGS_NEEDED:
            with self._lock:
                if self._doubt_timer is not doubt or self._closed:
                    return
            found = lost_data(servers, self._client.last_zxid, _PROBE_TIMEOUT_S, self._security)
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
                # kazoo fails requests before it reports the connection loss; the owner expects DISCONNECTED first.
                self._wire_down()
            self._answer(pending, response)
            self._pump()

    def _answer(self, pending: _Pending, response: Response) -> None:
        self._deliver(partial(pending.batch.answer, pending.index, response))

    def _watch_fired(self, event: Any) -> None:
        # The deletion of a node with a data watch and a child watch calls this method twice with the same event.
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

    # The following methods run on the owner's thread.

    def _drain(self) -> None:
        self._drain_posted = False
        try:
            while self._deliveries:
                self._deliveries.popleft()()
        finally:
            # If a callback raised, schedule the remaining callbacks.
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
