"""Server ends: one server object per listener, with health, on a port that is surely ours.

`AioRpcServer` serves data and shares the node's event loop, `ThreadPoolRpcServer` serves control, which must never
wait behind data. Both are built, bound (port 0 takes a free one), started and stopped the same way.
"""

import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paceline.model.errors import InvalidRequestError
from paceline.rpc.admission.message_limits import MAX_CLIENT_FIELDS, MAX_INTERNAL_FIELDS, refuse_too_many_fields
from paceline.rpc.admission.receive_limiter import ReceiveLimiter
from paceline.rpc.interceptors import AioErrorInterceptor, ErrorInterceptor, RequestObserver, _ignore
from paceline.rpc.security.guard import Guard
from paceline.rpc.streams.stream_server import MAX_STREAMS

DEFAULT_MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
MAX_HEADER_BYTES: Final = 16 * 1024
LOOKAHEAD_BYTES: Final = 256 * 1024
MIN_PING_INTERVAL_MS: Final = 10_000
MAX_CONNECTIONS: Final = 4_096
"""At one listener; a further one is accepted and closed at once."""
MAX_STREAMS_PER_CONNECTION: Final = 256
"""Calls that one connection may have at once; gRPC's clients keep further calls back until one of these is over."""
MAX_CALLS: Final = 10_000
"""At one listener, long polls and watches included."""
ROOM_FOR_HEALTH: Final = 1_000
"""Calls beyond them that gRPC lets in: those that are refused, and questions after health, which are answered."""
MAX_PENDING_CALLS: Final = MAX_CALLS
"""Calls that wait until the event loop takes them. Beyond 1,000, gRPC's default, they would end CANCELLED, without a
word, when it was busy for a moment: as after a restart, when everybody comes back."""

READINESS: Final = "readiness"
LIVENESS: Final = "liveness"

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


M = TypeVar("M", bound=Message)


class BindError(Exception):
    """A listener's port could not be had; the message names listener, address and reason."""


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service to put on a server."""

    full_name: str
    """For example ``paceline.v1.LogService``; the name of its health entry, too."""
    add: Callable[[Any], None]
    """Adds the servicer: ``lambda server: add_LogServiceServicer_to_server(servicer, server)``."""


def parsed(message: type[M], data: bytes, max_fields: int = MAX_CLIENT_FIELDS) -> M:
    """Return the message in these bytes.

    Raises:
        InvalidRequestError: they are not such a message, which gRPC itself would call an internal error, or it has more
            than ``max_fields`` fields.
    """
    refuse_too_many_fields(data, max_fields)
    try:
        return message.FromString(data)
    except DecodeError as failure:
        raise InvalidRequestError(f"the message cannot be parsed: {failure}") from None


def unary(handle: Callable[[M, Any], Awaitable[Message]], request: type[M], max_fields: int = MAX_CLIENT_FIELDS) -> Any:
    """Return a method handler of an aio server that parses inside the handler, where errors become statuses."""

    async def handler(data: bytes, context: Any) -> bytes:
        return (await handle(parsed(request, data, max_fields), context)).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(handler)


def server_options(
    max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES, max_connections: int = MAX_CONNECTIONS
) -> list[tuple[str, int]]:
    """Return the options of a server.

    gRPC refuses larger requests with RESOURCE_EXHAUSTED before our code runs (docs/protocol/limits.md#message-size).
    Clients may ping every 10 s; gRPC's default of five minutes ends their connections with ``too_many_pings``.
    """
    return [
        ("grpc.max_receive_message_length", max_request_bytes),
        ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
        ("grpc.max_metadata_size", MAX_HEADER_BYTES),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING_CALLS),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        # Limit of the bytes a connection may send ahead of the requests being received. gRPC would let them grow to MB
        # on each of hundreds of connections.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # With the default of 1 a second process on the same port would start and take half of the connections.
        ("grpc.so_reuseport", 0),
    ]


class _Health:
    """Health status of both servers, set in their health servicer: server, each service, liveness and readiness."""

    def __init__(self, services: Iterable[Service]) -> None:
        self.names = ("", READINESS, *(service.full_name for service in services))


class AioRpcServer:
    """A `grpc.aio` server of one listener."""

    def __init__(
        self,
        listener: str,
        services: Sequence[Service],
        *,
        max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES,
        observe: RequestObserver = _ignore,
        with_reflection: bool = True,
        max_calls: int = MAX_CALLS,
        max_streams: int = MAX_STREAMS,
        max_connections: int = MAX_CONNECTIONS,
        guard: Guard | None = None,
        credentials: Any = None,
        limiter: ReceiveLimiter | None = None,
    ) -> None:
        """Make the server.

        Args:
            listener: its name.
            services: gRPC services of the server, besides health.
            max_request_bytes: largest request.
            observe: told about every finished call.
            with_reflection: whether clients may ask for the contract.
            max_calls: calls at once; further ones are throttled, all but questions after health.
            max_streams: streams of exchanges that may be open at once; for further requests clients use unary calls.
            max_connections: connections that may be open at once; further ones are closed.
            guard: admits callers.
            credentials: of an SSL listener; None for PLAINTEXT.
            limiter: bounds the requests that are being received; servers may share one.
        """
        self.listener = listener
        self.port = 0
        self._credentials = credentials
        self._health_names = _Health(services).names
        self._interceptor = AioErrorInterceptor(
            observe, max_streams=max_streams, max_calls=max_calls, guard=guard, limiter=limiter
        )
        self._server = grpc.aio.server(
            interceptors=[self._interceptor],
            options=server_options(max_request_bytes, max_connections),
            maximum_concurrent_rpcs=max_calls + max_streams + ROOM_FOR_HEALTH,
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for service in services:
            service.add(self._server)
        if with_reflection:
            reflection.enable_server_reflection(_reflected(services), self._server)

    def bind(self, host: str, port: int) -> int:
        """Take the port, 0 for any free one, and return it.

        Raises:
            BindError: the port is in use or the host is not ours.
        """
        self.port = _bind(self._server, self._credentials, self.listener, host, port)
        return self.port

    async def start(self) -> None:
        """Accept calls; health says alive but not serving until `set_serving`."""
        await self._health.set(LIVENESS, SERVING)
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Tell health checks whether this listener serves."""
        for name in self._health_names:
            await self._health.set(name, SERVING if serving else NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones ``grace_s`` seconds, then cancel them."""
        await self._health.enter_graceful_shutdown()
        await self._interceptor.streams.end()
        await self._server.stop(grace_s)


class _ThreadedHealth(health.HealthServicer):  # type: ignore[misc]
    """The library's servicer, without the lock that its watchers' ends wait for.

    A status is sent while that lock is held, and sending ends only after a callback on the server's own thread. The
    same thread reports watchers that have disconnected; if it waited for the lock there, both would deadlock.
    """

    def _on_close_callback(self, send_response_callback: Any, service: str) -> Callable[[], None]:
        def callback() -> None:
            self._send_response_callbacks[service].discard(send_response_callback)
            send_response_callback(None)

        return callback

    def set(self, service: str, status: Any) -> None:
        with self._lock:
            if self._gracefully_shutting_down:
                return
            self._server_status[service] = status
            response = health_pb2.HealthCheckResponse(status=status)
            for send in list(self._send_response_callbacks.get(service, ())):
                send(response)


class ThreadPoolRpcServer:
    """A thread-pool server of one listener, for control requests.

    It has no reflection: each of its streams would keep one of the few threads for as long as its client likes.
    """

    def __init__(
        self,
        listener: str,
        services: Sequence[Service],
        *,
        max_request_bytes: int = MAX_RESPONSE_BYTES,
        observe: RequestObserver = _ignore,
        threads: int = 4,
        max_connections: int = MAX_CONNECTIONS,
        guard: Guard | None = None,
        credentials: Any = None,
    ) -> None:
        self.listener = listener
        self.port = 0
        self._credentials = credentials
        self._health_names = _Health(services).names
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"{listener.lower()}-rpc")
        self._server = grpc.server(
            self._pool,
            interceptors=[ErrorInterceptor(observe, MAX_INTERNAL_FIELDS, guard)],
            options=server_options(max_request_bytes, max_connections),
        )
        # Watch streams of the health service must not hold the few control threads: experimental_non_blocking.
        self._health = _ThreadedHealth(experimental_non_blocking=True)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for service in services:
            service.add(self._server)

    def bind(self, host: str, port: int) -> int:
        """Take the port, 0 for any free one, and return it.

        Raises:
            BindError: the port is in use or the host is not ours.
        """
        self.port = _bind(self._server, self._credentials, self.listener, host, port)
        return self.port

    def start(self) -> None:
        """Accept calls; health says alive but not serving until `set_serving`."""
        self._health.set(LIVENESS, SERVING)
        self.set_serving(False)
        self._server.start()

    def set_serving(self, serving: bool) -> None:
        """Tell health checks whether this listener serves."""
        for name in self._health_names:
            self._health.set(name, SERVING if serving else NOT_SERVING)

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones ``grace_s`` seconds, then cancel them. Blocks until done."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 1.0)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _reflected(services: Iterable[Service]) -> list[str]:
    names = [service.full_name for service in services]
    return [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]


def _bind(server: Any, credentials: Any, listener: str, host: str, port: int) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    bound: int
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as failure:
        raise BindError(_why_not(listener, host, port, str(failure))) from None
    if bound == 0:  # releases of grpcio before 1.60 said it this way
        raise BindError(_why_not(listener, host, port, "the address could not be bound"))
    return bound


def _why_not(listener: str, host: str, port: int, said: str) -> str:
    """Return the reason in words; gRPC's own says only that it failed, so the bind is tried once by hand."""
    where = f"{listener} listener on {host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as failure:
        return f"{where}: the host {host!r} cannot be resolved ({failure.strerror})"
    with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        except OSError as failure:
            if failure.errno == errno.EADDRINUSE:
                return f"port {port} is in use ({where})"
            if failure.errno == errno.EADDRNOTAVAIL:
                return f"{where}: {host} is not an address of this machine"
            if failure.errno == errno.EACCES:
                return f"{where}: no permission to use port {port}"
            return f"{where}: {failure.strerror}"
    return f"{where}: {said}"
