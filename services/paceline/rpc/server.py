"""gRPC servers, one per listener, with the health service, on a port that no other process shares.

`AioRpcServer` serves data requests on the node's event loop. `ThreadPoolRpcServer` serves control requests on its own
threads, so that they never wait for data requests. Both are created, bound (port 0 means any free port), started and
stopped in the same way.
"""

import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paceline.model.addresses import address_of
from paceline.rpc.admission.listener_limits import ListenerLimits
from paceline.rpc.admission.message_limits import MAX_CLIENT_FIELDS, parsed
from paceline.rpc.admission.receive_limiter import ReceiveLimiter
from paceline.rpc.admission.silent_calls import MAX_SILENT_CALLS, SilentCalls
from paceline.rpc.eager_server import eager_server
from paceline.rpc.interceptors import AioErrorInterceptor, ErrorInterceptor, RequestObserver
from paceline.rpc.security.authorized_requests import authorized
from paceline.rpc.security.guard import NODE_LISTENERS, Guard
from paceline.rpc.streams.stream_server import MAX_GATEWAY_STREAMS, MAX_STREAMS

DEFAULT_MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
MAX_HEADER_BYTES: Final = 16 * 1024
RECEIVE_BUFFER_BYTES: Final = 64 * 1024
"""Bytes of a request that a client may send before the server reads it; HTTP/2 allows as much per connection."""
MIN_PING_INTERVAL_MS: Final = 10_000
MAX_CONNECTIONS: Final = 4_096
"""Maximum number of connections of one listener; a further connection is accepted and closed at once."""
MAX_STREAMS_PER_CONNECTION: Final = 256
"""Maximum number of concurrent calls of one connection; gRPC clients queue further calls until a call ends."""
MAX_CALLS: Final = 10_000
"""Maximum number of concurrent calls of one listener, including long polls and watches."""
ROOM_FOR_HEALTH: Final = 1_000
"""Calls above `MAX_CALLS` that gRPC accepts: health checks, which are served, and calls that are throttled."""
UNCOMPRESSED: Final = [("grpc.compression_enabled_algorithms_bitset", 1)]
"""Server option that ends calls with compressed messages with UNIMPLEMENTED, before a message is inflated."""
MAX_PENDING_CALLS: Final = MAX_CALLS
"""Maximum number of calls that wait for the event loop.

With gRPC's default of 1,000, further calls would end with CANCELLED and no message while the event loop is busy, for
example after a restart, when all clients reconnect.
"""

READINESS: Final = "readiness"
LIVENESS: Final = "liveness"

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


M = TypeVar("M", bound=Message)


class BindError(Exception):
    """A listener's port could not be bound; the message contains listener, address and reason."""


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service of a server."""

    full_name: str
    """For example ``paceline.v1.LogService``; also the name of the service in health checks."""
    add: Callable[[Any], None]
    """Adds the servicer to a server: ``lambda server: add_LogServiceServicer_to_server(servicer, server)``."""


def unary(handle: Callable[[M, Any], Awaitable[Message]], request: type[M], max_fields: int = MAX_CLIENT_FIELDS) -> Any:
    """Return a method handler of an aio server that parses the request itself, so that parse errors become statuses."""

    async def handler(data: bytes, context: Any) -> bytes:
        response: Message = await authorized(handle, parsed(request, data, max_fields), context)
        return response.SerializeToString()

    return grpc.unary_unary_rpc_method_handler(handler)


def server_options(
    max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES,
    max_connections: int = MAX_CONNECTIONS,
    receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
) -> list[tuple[str, int]]:
    """Return the options of a server.

    gRPC refuses larger requests with RESOURCE_EXHAUSTED before an interceptor runs
    (docs/protocol/limits.md#message-size). Clients may ping every 10 s; with gRPC's default of five minutes their
    connections would end with ``too_many_pings``.
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
        # Limit the bytes that a call may send before its request is read. By default gRPC lets them grow to megabytes
        # on each of thousands of connections.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", receive_buffer_bytes),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # With the default of 1 a second process could bind the same port and receive half of the connections.
        ("grpc.so_reuseport", 0),
    ]


def _ignore(_method: str, _seconds: float, _reason: str | None) -> None:
    return None


class _BoundServer:
    """Name, port and names in health checks of one listener's server."""

    def __init__(self, listener: str, services: Iterable[Service], server: Any, credentials: Any) -> None:
        self.listener = listener
        self.port = 0
        self._server = server
        self._credentials = credentials
        self._health_names = ("", READINESS, *(service.full_name for service in services))
        """Names in health checks that follow the serving state: the server, readiness and each service."""

    def bind(self, host: str, port: int) -> int:
        """Bind the port, 0 for any free port, and return it.

        Raises:
            BindError: the port is in use, or the host is not an address of this machine.
        """
        self.port = _bind(self._server, self._credentials, self.listener, host, port)
        return self.port


class AioRpcServer(_BoundServer):
    """The `grpc.aio` server of one listener."""

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
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
        guard: Guard | None = None,
        credentials: Any = None,
        limiter: ReceiveLimiter | None = None,
        limits: ListenerLimits | None = None,
    ) -> None:
        """Create the server without binding its port.

        Args:
            listener: name of the listener.
            services: gRPC services of the server, besides health.
            max_request_bytes: size of the largest request.
            observe: called for every finished call.
            with_reflection: whether the server has the gRPC reflection service.
            max_calls: maximum number of concurrent calls; further calls are throttled, except health checks.
            max_streams: maximum number of open request streams; further clients use unary calls.
            max_connections: maximum number of open connections; further connections are closed.
            receive_buffer_bytes: bytes of a request that a client may send before the server reads it.
            guard: authorizes callers.
            credentials: credentials of an SSL listener; None for PLAINTEXT.
            limiter: limits the requests that are being received; servers may share a limiter.
            limits: counts and logs what the limits refuse.
        """
        self._interceptor = AioErrorInterceptor(observe, max_streams, max_calls, guard, limiter, limits)
        server = eager_server(
            interceptors=[self._interceptor],
            options=server_options(max_request_bytes, max_connections, receive_buffer_bytes)
            + UNCOMPRESSED * (listener in NODE_LISTENERS),
            maximum_concurrent_rpcs=max_calls + max_streams + MAX_GATEWAY_STREAMS + ROOM_FOR_HEALTH,
        )
        super().__init__(listener, services, server, credentials)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for service in services:
            service.add(self._server)
        if with_reflection:
            reflection.enable_server_reflection(_reflected(services), self._server)

    async def start(self) -> None:
        """Accept calls; health checks report liveness but NOT_SERVING until `set_serving`."""
        await self._health.set(LIVENESS, SERVING)
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Set the status that health checks report for this listener and its services."""
        for name in self._health_names:
            await self._health.set(name, SERVING if serving else NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait up to ``grace_s`` seconds for calls in progress, then cancel them."""
        await self._health.enter_graceful_shutdown()
        self._interceptor.streams.end()
        self._interceptor.gateway_streams.end()
        await self._server.stop(grace_s)


class ThreadPoolRpcServer(_BoundServer):
    """The thread-pool server of one listener, for control requests.

    It has neither the reflection service nor the health service's Watch, because each such stream would occupy one of
    the few threads until its client ends the stream.
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
        max_silent_calls: int = MAX_SILENT_CALLS,
        limits: ListenerLimits | None = None,
        guard: Guard | None = None,
        credentials: Any = None,
    ) -> None:
        """Create the server without binding its port; the other arguments are those of `AioRpcServer`.

        Args:
            threads: threads for calls whose request has arrived.
            max_silent_calls: maximum number of calls whose request has not arrived; they have threads of their own.
            limits: counts and logs what the limits refuse.
        """
        workers = threads + max_silent_calls
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=f"{listener.lower()}-rpc")
        limits = limits or ListenerLimits()
        silent_calls = SilentCalls(listener, max_silent_calls, limits)
        server = grpc.server(
            self._pool,
            interceptors=[ErrorInterceptor(observe, guard, silent_calls, limits)],
            options=server_options(max_request_bytes, max_connections) + UNCOMPRESSED,
        )
        super().__init__(listener, services, server, credentials)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for service in services:
            service.add(self._server)

    def start(self) -> None:
        """Accept calls; health checks report liveness but NOT_SERVING until `set_serving`."""
        self._health.set(LIVENESS, SERVING)
        self.set_serving(False)
        self._server.start()

    def set_serving(self, serving: bool) -> None:
        """Set the status that health checks report for this listener and its services."""
        for name in self._health_names:
            self._health.set(name, SERVING if serving else NOT_SERVING)

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, block up to ``grace_s`` seconds for calls in progress, then cancel them."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 1.0)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _reflected(services: Iterable[Service]) -> list[str]:
    names = [service.full_name for service in services]
    return [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]


def _bind(server: Any, credentials: Any, listener: str, host: str, port: int) -> int:
    address = address_of(host, port)
    try:
        if credentials is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as failure:
        raise BindError(_why_not(listener, host, port, str(failure))) from None


def _why_not(listener: str, host: str, port: int, said: str) -> str:
    """Return the reason of a failed bind, found by binding a plain socket: gRPC reports only that the bind failed."""
    where = f"{listener} listener on {address_of(host, port)}"
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
