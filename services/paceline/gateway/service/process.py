"""The gateway process: order of start and stop.

Start: bind the listeners, find a broker, report SERVING. Stop: report NOT_SERVING, give the partitions of all groups
back after the subscribers' last acknowledgements, wait for the results of published records, end the calls.
"""

import asyncio
import logging
import os
import secrets
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from paceline import __version__
from paceline.gateway.leases import KeysError, TokenKeys
from paceline.gateway.service.clients import Clients
from paceline.gateway.service.member_driver import DriverSettings
from paceline.gateway.service.members import Members
from paceline.gateway.service.servicer import GatewayServicer, ProducerIds
from paceline.model.errors import PacelineError
from paceline.model.identity import Role
from paceline.rpc.admission.receive_limiter import ReceiveLimiter
from paceline.rpc.security.private_files import private_file_problem
from paceline.rpc.security.transport_security import TransportSecurity
from paceline.rpc.server import AioRpcServer, Service
from paceline.runtime.lifecycle import ExitCode, StartupError, exit_now_after, on_stop_signals, raise_open_file_limit
from paceline.runtime.logging import configure_logging
from paceline.runtime.metrics import Metrics, watch_event_loop
from paceline.runtime.node_identity import open_transport_security
from paceline.runtime.node_servers import NodeServers
from paceline.runtime.settings import GatewaySettings
from paceline.v1.gateway_service_pb2_grpc import add_GatewayServiceServicer_to_server
from paceline_client import Admin, Connections

LOG = logging.getLogger("paceline.gateway")

_SWITCH_S: Final = 0.0005
"""Time that the event loop keeps the interpreter while a thread that reads from a broker waits for it."""
_REFRESH_S: Final = 1.0
_REVOKED_INTERVAL_S: Final = 10.0
_STOP_GRACE_S: Final = 2.0
_STOP_LIMIT_S: Final = 25.0


class GatewayServers(NodeServers):
    """The listeners CLIENT and EXTERNAL, with the same services."""

    def __init__(
        self, settings: GatewaySettings, metrics: Metrics, security: TransportSecurity, services: list[Service]
    ) -> None:
        self._services = services
        self._limiter = ReceiveLimiter()
        super().__init__(settings, metrics, security)

    def _aio_server(self, name: str) -> AioRpcServer:
        return AioRpcServer(
            name,
            self._services,
            max_request_bytes=self._keys.socket_request_max_bytes,
            observe=self._metrics.observe_request,
            with_reflection=self._keys.reflection_enable,
            max_connections=self._max_connections,
            guard=self._guards[name],
            credentials=self._security.server_credentials(name),
            limiter=self._limiter,
            limits=self._metrics.listener_limits,
        )


class GatewayProcess:
    """A gateway from start to stop; `run` returns the exit code."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Create the parts on the event loop; does not wait for the cluster.

        Raises:
            StartupError: a certificate or the file of token keys cannot be used.
        """
        keys = settings.keys
        self._settings = settings
        self._metrics = Metrics()
        security = open_transport_security(settings.security, Role.GATEWAY)
        self._authorizer = security.authorizer
        self._has_certificates = security.identity is not None
        if self._has_certificates:
            self._authorizer.revoked = None
        tls = settings.broker_tls
        try:
            self._connections = Connections(
                keys.bootstrap_servers, tls=tls, user_agent="paceline-gateway", name="gateway"
            )
        except PacelineError as failure:
            raise StartupError(str(failure), ExitCode.USAGE) from None
        self._clients = Clients(self._connections, tls is not None, keys.gateway_principals_max)
        driver = DriverSettings(
            keys.gateway_session_timeout_ms, keys.gateway_revocation_ms, keys.gateway_commit_interval_ms
        )
        self._members = Members(self._clients, driver, keys.gateway_members_max, keys.gateway_pull_idle_ms / 1000)
        self._key_file = Path(keys.gateway_token_key_file) if keys.gateway_token_key_file else None
        self._key_text = ""
        self._servicer = GatewayServicer(self._clients, self._members, TokenKeys([secrets.token_bytes(32)]))
        try:
            self._read_keys()
        except (OSError, KeysError) as failure:
            raise StartupError(f"gateway.token.key.file {self._key_file}: {failure}", ExitCode.USAGE) from None
        producer_ids = ProducerIds(self._clients)
        services = [
            Service("paceline.v1.GatewayService", lambda it: add_GatewayServiceServicer_to_server(self._servicer, it)),
            Service("paceline.v1.LogService", producer_ids.add_to),
        ]
        self._servers = GatewayServers(settings, self._metrics, security, services)
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> ExitCode:
        """Start, serve until stopped, stop.

        Raises:
            StartupError: a port cannot be bound.
        """
        loop, begin = asyncio.get_running_loop(), time.monotonic()
        on_stop_signals(loop, lambda name: None if self._over.done() else self._over.set_result(name))
        await self._servers.start()
        keys = self._settings.keys
        metrics_port = self._metrics.serve(keys.metrics_host, keys.metrics_port, self._settings.print_config)
        tasks = [
            loop.create_task(watch_event_loop(self._metrics)),
            loop.create_task(self._refresh(begin, metrics_port)),
            *([loop.create_task(self._follow_revoked())] if self._has_certificates else []),
        ]
        LOG.info("stopping: signal=%s", await self._over)
        finished = exit_now_after(
            _STOP_LIMIT_S, lambda: LOG.error("stop timed out, exiting: timeout_s=%.0f", _STOP_LIMIT_S)
        )
        for task in tasks:
            task.cancel()
        await self._servers.set_serving(False)
        await self._members.close()
        await self._clients.finish_publishing()
        await self._servers.stop(_STOP_GRACE_S)
        await asyncio.to_thread(self._clients.close_connections)
        self._metrics.close()
        finished()
        LOG.info("stopped")
        return ExitCode.OK

    async def _refresh(self, begin: float, metrics_port: int | None) -> None:
        """Once a second: report readiness, which needs a known broker, update metrics, and read the keys again."""
        serving = False
        self._connections.metadata.request()
        while True:
            ready = bool(self._connections.metadata.brokers())
            if ready != serving:
                serving = ready
                await self._servers.set_serving(ready)
                listeners = ",".join(f"{one.listener}://{one.address}" for one in self._servers.advertised)
                LOG.info(
                    "gateway %s: version=%s start_s=%.2f endpoints=%s metrics_port=%s",
                    "ready" if ready else "not ready", __version__, time.monotonic() - begin, listeners, metrics_port,
                )  # fmt: skip
            self._members.expire_pulls()
            self._clients.forget_idle()
            self._metrics.refresh(self._members.snapshot() | self._clients.snapshot())
            try:
                self._read_keys()
            except (OSError, KeysError) as failure:
                LOG.warning("keeping the token keys: file=%s error=%s", self._key_file, failure)
            await asyncio.sleep(_REFRESH_S if ready else 0.05)

    async def _follow_revoked(self) -> None:
        """Ask a controller for the revoked certificates again and again; the latest answer holds."""
        with Admin(self._connections) as admin:
            while True:
                try:
                    self._authorizer.revoked = await asyncio.to_thread(admin.describe_revoked_certificates)
                except PacelineError as failure:
                    LOG.warning("revoked certificates not read, trying again: error=%s", failure)
                await asyncio.sleep(_REVOKED_INTERVAL_S if self._authorizer.revoked is not None else _REFRESH_S)

    def _read_keys(self) -> None:
        if self._key_file is None:
            return
        problem = private_file_problem(self._key_file)
        if problem:
            raise KeysError(problem)
        text = self._key_file.read_text(encoding="ascii")
        if text != self._key_text:
            self._servicer.keys, self._key_text = TokenKeys.parse(text), text


def run_gateway(settings: GatewaySettings) -> int:
    """Run a gateway with these settings and return its exit code."""
    os.umask(0o077)
    configure_logging(settings.keys.logging_format, settings.keys.logging_level)
    raise_open_file_limit()
    sys.setswitchinterval(_SWITCH_S)

    async def process() -> ExitCode:
        # Lookups and commits block; a caller that waits for an unknown topic must not delay the others.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64, thread_name_prefix="gateway-call"))
        return await GatewayProcess(settings).run()

    try:
        return asyncio.run(process())
    except StartupError as failure:
        sys.stderr.write(f"paceline gateway: {failure}\n")
        return failure.exit_code
