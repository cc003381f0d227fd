"""Calls from a broker to leaders and to the controller: one thread and one connection per replica fetcher.

A fetcher's thread waits for responses on a stream and parses them, so that the event loop gets only finished values,
once per response. The event loop writes requests to the stream directly, without a switch to the fetcher's thread.
"""

import logging
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from paceline.internal.v1 import controller_service_pb2 as pb
from paceline.internal.v1 import controller_service_pb2_grpc
from paceline.model.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    Endpoint,
    InternalTopic,
    LiveBroker,
)
from paceline.model.errors import BrokerNotAvailableError, InvalidRequestError, PacelineError, error_for
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse
from paceline.rpc import wire
from paceline.rpc.channels import CONTROL_MAX_MESSAGE_BYTES, REPLICATION_MAX_MESSAGE_BYTES, open_channel
from paceline.rpc.convert import control, replica
from paceline.rpc.convert.common import message_of
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.event_loop import Post
from paceline.rpc.security.credentials import TlsCredentials
from paceline.rpc.security.transport_security import PLAINTEXT, TransportSecurity
from paceline.rpc.streams.stream_client import StreamClient

LOG = logging.getLogger("paceline.broker.transport")

T = TypeVar("T")

CONTROL = "CONTROL"
REPLICATION = "REPLICATION"
_FETCH_STREAM = "/paceline.internal.v1.ReplicationService/FetchStream"
_CLOSE_WAIT_S = 2.0
_SMALL_FETCH = 64
"""Number of partitions up to which a fetch is encoded on the event loop, which costs less than a thread switch."""
_DEADLINE_CHECK_S = 0.5


class GrpcBrokerTransport:
    """Implements `broker.interfaces.BrokerTransport`; call its methods on the event loop."""

    def __init__(
        self,
        post: Post,
        security: TransportSecurity = PLAINTEXT,
        on_controller_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_controller_lost`` runs on the event loop when the heartbeat connection has closed."""
        self._post = post
        self._on_controller_lost = on_controller_lost
        self._security = security
        self._fetchers: dict[tuple[int, int], _Fetcher] = {}
        self._deadlines: _Deadlines | None = None
        self._controller_calls: _Caller | None = None
        self._heart: _Caller | None = None
        self._encoder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fetch-encoder")
        """Encodes fetches of many partitions, so that the event loop is not blocked."""

    def replica_fetch(
        self,
        leader: LiveBroker,
        fetcher_id: int,
        request: ReplicaFetchRequest,
        timeout_ms: int,
        on_done: Callable[[ReplicaFetchResponse | Exception], None],
    ) -> None:
        """Fetch from a leader over the fetcher's own connection."""
        fetcher = self._fetcher(leader, fetcher_id, on_done)
        if fetcher is not None:
            fetcher.fetch(request, timeout_ms / 1000, on_done)

    def close_fetcher(self, leader_id: int, fetcher_id: int) -> None:
        """End the fetcher's thread and connection; cancels a call in flight."""
        fetcher = self._fetchers.pop((leader_id, fetcher_id), None)
        if fetcher is not None:
            fetcher.close()

    def controlled_shutdown(
        self,
        controller: Endpoint,
        request: ControlledShutdownRequest,
        timeout_ms: int,
        on_done: Callable[[ControlledShutdownResponse | Exception], None],
    ) -> None:
        """Ask a controller to move this broker's leaders away."""

        def call(channel: Any) -> ControlledShutdownResponse:
            stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
            message = message_of(pb.ControlledShutdownRequest, request)
            return control.controlled_shutdown_response_from_proto(
                stub.ControlledShutdown(message, timeout=timeout_ms / 1000)
            )

        self._controller(controller).submit(call, on_done)

    def create_internal_topic(
        self,
        controller: Endpoint,
        topic: InternalTopic,
        timeout_ms: int,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        """Ask a controller to create an internal topic."""

        def call(channel: Any) -> None:
            stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
            message = message_of(pb.CreateInternalTopicRequest, topic)
            answer = stub.CreateInternalTopic(message, timeout=timeout_ms / 1000)
            if answer.HasField("error"):
                raise error_for(answer.error.code, answer.error.message)

        self._controller(controller).submit(call, on_done)

    def _controller(self, controller: Endpoint) -> "_Caller":
        self._controller_calls = self._caller_to(controller, "controller-calls", self._controller_calls)
        return self._controller_calls

    def _caller_to(self, controller: Endpoint, name: str, known: "_Caller | None") -> "_Caller":
        if known is not None:
            if known.address == controller.address:
                return known
            known.close()
        tls = self._security.credentials(CONTROL)
        channel = open_channel(controller.address, CONTROL_MAX_MESSAGE_BYTES, own_connection=True, tls=tls)
        return _Caller(name, channel, controller.address, self._post)

    def broker_heartbeat(
        self,
        controller: Endpoint,
        request: BrokerHeartbeatRequest,
        timeout_ms: int,
        on_done: Callable[[BrokerHeartbeatResponse | Exception], None],
    ) -> None:
        """Renew the lease at a controller, over a separate connection."""

        def call(channel: Any) -> BrokerHeartbeatResponse:
            stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
            message = message_of(pb.BrokerHeartbeatRequest, request)
            return control.broker_heartbeat_response_from_proto(
                stub.BrokerHeartbeat(message, timeout=timeout_ms / 1000)
            )

        known = self._heart
        self._heart = self._caller_to(controller, "heartbeat", known)
        if self._heart is not known:
            self._watch_channel(self._heart.channel)
        self._heart.submit(call, on_done)

    def close(self) -> None:
        """End every thread; waits briefly for calls in flight."""
        callers: list[_Caller | _Fetcher] = list(self._fetchers.values())
        callers.extend(one for one in (self._controller_calls, self._heart) if one is not None)
        self._fetchers.clear()
        self._controller_calls = self._heart = None
        for caller in callers:
            caller.close()
        for caller in callers:
            caller.join(_CLOSE_WAIT_S)
        self._encoder.shutdown(wait=False, cancel_futures=True)
        if self._deadlines is not None:
            self._deadlines.close()

    def _watch_channel(self, channel: Any) -> None:
        """Report when an established connection closes; gRPC detects this earlier than the next heartbeat does."""
        was_ready = False

        def changed(state: grpc.ChannelConnectivity) -> None:
            nonlocal was_ready
            lost = was_ready and state is not grpc.ChannelConnectivity.SHUTDOWN
            was_ready = state is grpc.ChannelConnectivity.READY
            if lost and not was_ready:
                self._post(self._on_controller_lost)

        channel.subscribe(changed)

    def _fetcher(self, leader: LiveBroker, fetcher_id: int, on_done: Callable[[Any], None]) -> "_Fetcher | None":
        """Return the fetcher's connection; None, after calling ``on_done``, when the leader has no address."""
        endpoint = leader.endpoint(REPLICATION)
        if endpoint is None:
            error = InvalidRequestError(f"broker {leader.broker_id} has no {REPLICATION} listener")
            self._post(lambda: on_done(error))
            return None
        key = (leader.broker_id, fetcher_id)
        fetcher = self._fetchers.get(key)
        if fetcher is not None and fetcher.address != endpoint.address:
            fetcher.close()
            fetcher = None
        if fetcher is None:
            if self._deadlines is None:
                self._deadlines = _Deadlines()
            name = f"fetcher-{leader.broker_id}-{fetcher_id}"
            tls = self._security.credentials(REPLICATION)
            fetcher = self._fetchers[key] = _Fetcher(name, endpoint.address, self._post, self._encoder, tls)
            self._deadlines.add(fetcher)
        return fetcher


class _Fetcher:
    """A connection with a thread that waits for the responses to fetches."""

    def __init__(
        self, name: str, address: str, post: Post, encoder: ThreadPoolExecutor, tls: TlsCredentials | None
    ) -> None:
        self.address = address
        self._post = post
        self._encoder = encoder
        self._channel = open_channel(address, REPLICATION_MAX_MESSAGE_BYTES, own_connection=True, tls=tls)
        self._stream = StreamClient(self._channel, _FETCH_STREAM, name, one_at_a_time=True)

    def fetch(
        self,
        request: ReplicaFetchRequest,
        timeout_s: float,
        on_done: Callable[[ReplicaFetchResponse | Exception], None],
    ) -> None:
        """Fetch; the result is posted to the event loop exactly once."""

        def fetched(answer: bytes | Exception) -> None:
            outcome = self._outcome_of(answer)
            self._post(lambda: on_done(outcome))

        def ask() -> None:
            try:
                body = replica.replica_fetch_to_proto(request).SerializeToString()
            except Exception as failure:
                fetched(failure)
            else:
                self._stream.ask(body, timeout_s, fetched)

        if len(request.partitions) + len(request.forgotten) <= _SMALL_FETCH:
            ask()
        else:
            self._encoder.submit(ask)

    def expire(self) -> None:
        """Fail overdue calls."""
        self._stream.expire()

    def close(self) -> None:
        """End the thread and the connection; calls in flight end with an error."""
        self._stream.close()
        self._channel.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._stream.join(timeout_s)

    def _outcome_of(self, answer: bytes | Exception) -> ReplicaFetchResponse | Exception:
        """Parse a response on the fetcher's thread; batches are sliced out of the response instead of parsed."""
        if isinstance(answer, Exception):
            return _error_of(answer, self.address)
        try:
            return wire.parse_replica_fetch_response(answer)
        except Exception as failure:
            return _error_of(failure, self.address)


class _Deadlines:
    """A thread that fails overdue fetches, because a fetcher's own thread is blocked in its wait."""

    def __init__(self) -> None:
        self._fetchers: weakref.WeakSet[_Fetcher] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="fetch-deadlines", daemon=True).start()

    def add(self, fetcher: _Fetcher) -> None:
        """Check a fetcher as long as it is referenced."""
        with self._lock:
            self._fetchers.add(fetcher)

    def close(self) -> None:
        """End the thread soon."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(_DEADLINE_CHECK_S):
            with self._lock:
                fetchers = list(self._fetchers)
            for fetcher in fetchers:
                fetcher.expire()


class _Caller:
    """A thread that makes calls over a channel in order; closes the channel at the end."""

    def __init__(self, name: str, channel: Any, address: str, post: Post) -> None:
        self.address = address
        self.channel = channel
        self._post = post
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[Any], T], on_done: Callable[[T | Exception], None]) -> None:
        """Make the call; its result is posted to the event loop exactly once."""
        self._calls.put(lambda: self._make(call, on_done))

    def close(self) -> None:
        """End the thread and the connection; calls in flight or queued end with an error."""
        self._closed = True
        self._calls.put(None)
        self.channel.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (step := self._calls.get()) is not None:
            step()

    def _make(self, call: Callable[[Any], T], on_done: Callable[[T | Exception], None]) -> None:
        outcome: T | Exception
        try:
            outcome = call(self.channel)
        except Exception as failure:
            if self._closed and isinstance(failure, ValueError):  # gRPC's error for a call on a closed channel
                outcome = BrokerNotAvailableError(f"the connection to {self.address} was closed")
            else:
                outcome = _error_of(failure, self.address)
        self._post(lambda: on_done(outcome))


def _error_of(failure: Exception, address: str) -> PacelineError:
    if isinstance(failure, grpc.RpcError):
        return from_rpc_error(failure)
    if isinstance(failure, PacelineError):
        return failure
    LOG.error("call failed unexpectedly: address=%s", address, exc_info=failure)
    return BrokerNotAvailableError(f"the call to {address} failed: {failure}")
