"""`NodeServers`: the gRPC servers of one process, one for each listener.

CONTROL has threads of its own, so that clients cannot delay it; all other listeners run on the event loop.
"""

import asyncio
import logging
from abc import abstractmethod
from typing import Any, Final

from paceline.model.control import Endpoint
from paceline.rpc.security.transport_security import TransportSecurity
from paceline.rpc.server import AioRpcServer, BindError, Service, ThreadPoolRpcServer
from paceline.runtime.connection_limiter import ConnectionLimiter
from paceline.runtime.lifecycle import ExitCode, StartupError, descriptor_shares, open_file_limit
from paceline.runtime.metrics import Metrics
from paceline.runtime.settings import LoadedSettings
from paceline.runtime.settings.security import is_loopback

LOG = logging.getLogger("paceline.rpc")

_STRANGERS_CAN: Final = {
    "REPLICATION": "read all records and act as a follower",
    "CONTROL": "act as a controller or broker: stop and delete replicas, move leaders",
}


class NodeServers:
    """Starts and stops the servers; a subclass makes them."""

    def __init__(self, settings: LoadedSettings[Any], metrics: Metrics, security: TransportSecurity) -> None:
        self._listeners = settings.listeners
        self._advertised = settings.advertised
        self._metrics = metrics
        self._security = security
        self._max_connections, _ = descriptor_shares(
            open_file_limit(), len(settings.listeners), settings.keys.max_connections
        )
        self._guards = {one.listener: security.guard(one.listener) for one in settings.listeners}
        self._connection_limiter = ConnectionLimiter(
            {listener: guard.known_peers for listener, guard in self._guards.items()},
            settings.keys.max_silent_connections_per_ip,
            self._max_connections,
            metrics,
            security.authorizer.is_revoked,
        )
        self._keys = settings.keys
        self._aio: list[AioRpcServer] = []
        self._control: ThreadPoolRpcServer | None = None
        self.advertised: tuple[Endpoint, ...] = ()
        """Advertised endpoints with the bound ports."""

    @abstractmethod
    def _aio_server(self, name: str) -> AioRpcServer:
        """Make the server of a listener other than CONTROL."""

    def _control_service(self) -> tuple[Service, int]:
        """Return the service of CONTROL and its number of threads; a process without CONTROL has none."""
        raise NotImplementedError

    def _control_server(self) -> ThreadPoolRpcServer:
        service, threads = self._control_service()
        return ThreadPoolRpcServer(
            "CONTROL",
            [service],
            max_request_bytes=self._keys.control_request_max_bytes,
            observe=self._metrics.observe_request,
            threads=threads,
            max_connections=self._max_connections,
            max_silent_calls=self._keys.control_silent_calls_max,
            limits=self._metrics.listener_limits,
            guard=self._guards["CONTROL"],
            credentials=self._security.server_credentials("CONTROL"),
        )

    async def start(self) -> None:
        """Bind every listener, then accept calls.

        Raises:
            StartupError: a port cannot be bound.
        """
        bound: dict[str, int] = {}
        try:
            for listener in self._listeners:
                if listener.listener == "CONTROL":
                    self._control = self._control_server()
                    bound["CONTROL"] = self._control.bind(listener.host, listener.port)
                else:
                    server = self._aio_server(listener.listener)
                    self._aio.append(server)
                    bound[listener.listener] = server.bind(listener.host, listener.port)
        except BindError as failure:
            raise StartupError(str(failure), ExitCode.PORT_IN_USE) from None
        self.advertised = tuple(
            Endpoint(one.listener, one.host, one.port or bound[one.listener]) for one in self._advertised
        )
        for listener in self._listeners:
            if self._security.credentials(listener.listener) is None:
                LOG.log(
                    logging.INFO if is_loopback(listener.host) else logging.WARNING,
                    "listener without TLS: listener=%s address=%s:%d, every process that reaches it can %s",
                    listener.listener,
                    listener.host,
                    bound[listener.listener],
                    _STRANGERS_CAN.get(listener.listener, "read, write and administer"),
                )
        self._connection_limiter.start(bound)
        for server in self._aio:
            await server.start()
        if self._control is not None:
            self._control.start()

    async def set_serving(self, serving: bool) -> None:
        """Set the health status of every listener and of HTTP."""
        self._metrics.is_serving = serving
        for server in self._aio:
            await server.set_serving(serving)
        if self._control is not None:
            self._control.set_serving(serving)

    async def stop(self, grace_s: float) -> None:
        """Stop every server, CONTROL last."""
        self._connection_limiter.stop()
        for server in self._aio:
            await server.stop(grace_s)
        if self._control is not None:
            # Its handlers wait for the event loop, so the loop must not wait for them.
            await asyncio.to_thread(self._control.stop, grace_s)
