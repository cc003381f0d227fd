"""`NodeProcess`: what a controller's and a broker's process have in common, from start to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import random
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

from paceline import __version__
from paceline.coordination.access_lists import AccessListReader
from paceline.coordination.client_quotas import QuotaReader
from paceline.coordination.errors import CoordinationError, SessionLostError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import ZooKeeper
from paceline.coordination.kazoo.client import KazooZooKeeper
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.coordination.recipes import get_or_create_cluster_id
from paceline.coordination.revoked_certificates import read_serial_numbers
from paceline.model.acls import AccessRules
from paceline.model.control import Endpoint, LiveBroker
from paceline.model.identity import Role, cluster_id_of
from paceline.model.node_description import NodeDescription, NodeListener
from paceline.model.quotas import ClientQuotas
from paceline.model.state_change import StateChange
from paceline.rpc.channels import open_aio_channel
from paceline.rpc.retry import wait_until
from paceline.rpc.security.authorizer import Mode
from paceline.rpc.security.credentials import CertificateFilesError
from paceline.rpc.watch.event_publisher import EventPublisher
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.lifecycle import ExitCode, StartupError, on_stop_signals, raise_open_file_limit
from paceline.runtime.logging import StateChangeWriter, configure_logging
from paceline.runtime.measured_zookeeper import MeasuredZooKeeper
from paceline.runtime.metrics import Metrics, watch_event_loop
from paceline.runtime.node_identity import certificates_in_use, check_cluster_id, open_transport_security
from paceline.runtime.settings import ControllerSettings, NodeSettings
from paceline.runtime.zookeeper_flow import ask_zookeeper, run_flow

T = TypeVar("T")

_AUDIT_FLUSH_S: Final = 1.0
_REVOKED_INTERVAL_S: Final = 5.0
"""Interval between reads of the revoked certificates."""


class NodeProcess(ABC):
    """A process from start to stop; `run` returns the exit code."""

    def __init__(self, role: Role, settings: NodeSettings[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._role = role
        self._log = logging.getLogger(f"paceline.{role.value}")
        self._settings = settings
        self._loop = loop
        self._scheduler = AsyncioScheduler(loop)
        self._metrics = Metrics()
        self._hub = WatchHub(secrets.token_hex(6))
        self._security = open_transport_security(settings.security, role)
        keys = settings.keys
        self._security.quotas = ClientQuotas((keys.quota_window_num - 1) * keys.quota_window_size_seconds)
        self._state_changes = StateChangeWriter()
        self._over: asyncio.Future[str | Exception] = loop.create_future()
        self._zookeeper: MeasuredZooKeeper | None = None
        self._access_lists: AccessListReader | None = None
        self._quota_reader: QuotaReader | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._began_s = time.monotonic()
        self._was_ready = False
        self.starts_again = False
        """Whether the process shall start again after `run`, in the same operating system process."""

    async def run(self) -> ExitCode:
        """Start, serve until stopped, stop.

        Raises:
            StartupError: the process could not start; all opened resources are closed again.
        """
        gc.enable()
        self._loop.set_exception_handler(self._unexpected)
        on_stop_signals(self._loop, self._end)
        begin = time.monotonic()
        try:
            await self._start(begin)
            ended = await self._over
        except BaseException:
            await self._stop()
            raise
        if isinstance(ended, Exception):
            self._log.error("stopping after a fatal error: role=%s error=%s", self._role.value, ended, exc_info=ended)
        else:
            self._log.info("stopping: signal=%s", ended)
        await self._stop()
        self._security.authorizer.audit.flush(all_now=True)
        return ExitCode.FATAL if isinstance(ended, Exception) else ExitCode.OK

    @abstractmethod
    async def _start(self, begin: float) -> None:
        """Start; return when the process is ready."""

    @abstractmethod
    async def _stop(self) -> None:
        """Close all opened resources."""

    @abstractmethod
    async def _refresh(self) -> None:
        """Update metrics and readiness from the core, once a second, until cancelled."""

    @abstractmethod
    def _live_brokers(self) -> list[LiveBroker]:
        """Return the live brokers that this process knows."""

    @abstractmethod
    def _own_facts(self) -> dict[str, Any]:
        """Return the fields of `NodeDescription` that depend on the role."""

    @property
    @abstractmethod
    def _advertised(self) -> Sequence[Endpoint]:
        """The advertised addresses of the listeners."""

    def describe_node(self) -> NodeDescription:
        """Return this process as it sees itself; call it on the event loop."""
        zookeeper, up_ms = self._zookeeper, int((time.monotonic() - self._began_s) * 1000)
        state = "serving" if self._metrics.is_serving else "not-serving" if self._was_ready else "starting"
        facts = {"state": state, **self._own_facts()}
        return NodeDescription(
            role=self._role.value,
            server_version=__version__,
            clock_ms=self._scheduler.wall_ms(),
            up_ms=up_ms,
            zookeeper_state="disconnected" if zookeeper is None else zookeeper.session_state.name.lower(),
            zookeeper_state_ms=up_ms if zookeeper is None else zookeeper.state_ms,
            listeners=tuple(
                NodeListener(one.listener, one.address, self._security.credentials(one.listener) is not None)
                for one in self._advertised
            ),
            certificates=certificates_in_use(self._security),
            **facts,
        )

    def _begin_tasks(self) -> None:
        self._was_ready = True
        work = [watch_event_loop(self._metrics), self._refresh(), self._write_audit_sums()]
        if self._security.identity is not None:
            work.append(self._follow_revoked())
        keys = self._settings.keys
        if keys.cluster_events_topic_enable:
            tls = self._security.credentials("CLIENT")
            publisher = EventPublisher(
                self._hub,
                self._client_addresses,
                lambda address: open_aio_channel(address, tls=tls),
                keys.cluster_events_topic_replication_factor,
            )
            work.append(publisher.run())
        self._tasks = [self._loop.create_task(one) for one in work]

    async def _write_audit_sums(self) -> None:
        while True:
            await asyncio.sleep(_AUDIT_FLUSH_S)
            self._security.authorizer.audit.flush()

    async def _follow_revoked(self) -> None:
        """Read the revoked certificates again and again; while ZooKeeper is away, those of the latest read hold."""
        authorizer = self._security.authorizer
        while True:
            await asyncio.sleep(_REVOKED_INTERVAL_S)
            with contextlib.suppress(CoordinationError, TimeoutError):
                authorizer.revoked = await self.on_session(read_serial_numbers(), _REVOKED_INTERVAL_S)

    async def on_session(self, flow: Flow[T], timeout_s: float) -> T:
        """Run a flow over the ZooKeeper session of this process, see `run_flow`."""
        assert self._zookeeper is not None
        return await run_flow(PatientZooKeeper(self._zookeeper), self._scheduler, flow, timeout_s)

    def _throttled(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Return the throttle times of clients, as label families."""
        found = self._security.quotas.throttled_ms
        return {"client_throttle_seconds_total": {labels: ms / 1_000 for labels, ms in found.items()}}

    def _client_addresses(self) -> list[str]:
        endpoints = (broker.endpoint("CLIENT") for broker in self._live_brokers())
        return [endpoint.address for endpoint in endpoints if endpoint is not None]

    def _serve_metrics(self) -> int | None:
        keys = self._settings.keys
        return self._metrics.serve(keys.metrics_host, keys.metrics_port, self._settings.print_config)

    async def _claim_cluster_id(self, node_id: int) -> None:
        """Check that certificate and ZooKeeper belong to this cluster, and read the revoked certificates.

        The node does not exist yet, so no call of a revoked certificate is served.
        """
        identity = self._security.identity
        if identity is None:
            return
        try:
            self._security.check_node(self._role, node_id)
        except CertificateFilesError as failure:
            raise StartupError(str(failure), ExitCode.USAGE) from None

        def claim() -> Flow[tuple[str, frozenset[str]]]:
            found = yield from get_or_create_cluster_id(cluster_id_of(identity.cluster))
            return found, (yield from read_serial_numbers())

        found, self._security.authorizer.revoked = await self._ask_zookeeper(claim())
        check_cluster_id(identity, found)

    async def _ask_zookeeper(self, flow: Flow[T]) -> T:
        zookeeper = PatientZooKeeper(self._open_zookeeper())
        timeout_ms = self._settings.zookeeper_connection_timeout_ms
        try:
            return await self._unless_ended(ask_zookeeper(zookeeper, self._scheduler, flow, timeout_ms))
        except (TimeoutError, SessionLostError):
            raise self._no_zookeeper() from None
        except CoordinationError as error:
            raise StartupError(f"the {self._role.value} cannot start: {error}", ExitCode.FATAL) from error

    def _open_zookeeper(self) -> KazooZooKeeper:
        return KazooZooKeeper(
            self._settings.zookeeper_hosts,
            self._settings.keys.zookeeper_session_timeout_ms,
            self._scheduler.post,
            on_data_lost=self._end,
            security=self._settings.security.zookeeper,
        )

    def _measured_zookeeper(self) -> ZooKeeper:
        """Return the node's client, whose session also reads quotas, and access lists unless they are ignored."""
        zookeeper = MeasuredZooKeeper(self._open_zookeeper(), self._metrics.zk_request_seconds.observe)
        self._zookeeper = zookeeper
        rng = random.Random(os.urandom(16))
        inner: ZooKeeper = zookeeper
        if self._security.authorizer.mode is not Mode.OFF:
            inner = self._access_lists = AccessListReader(zookeeper, self._scheduler, rng, self._rules_read)
        self._quota_reader = QuotaReader(inner, self._scheduler, rng, self._security.quotas.use)
        return self._quota_reader

    def _rules_read(self, rules: AccessRules) -> None:
        authorizer = self._security.authorizer
        if authorizer.rules is None:
            self._log.info("access lists read: mode=%s resources=%d", authorizer.mode, len(rules.resources))
        authorizer.use(rules)
        self._metrics.refresh({"unreadable_access_lists": rules.unreadable_count})

    async def _until_connected(self) -> None:
        zookeeper = self._zookeeper
        assert zookeeper is not None
        timeout_s = self._settings.zookeeper_connection_timeout_ms / 1000
        await wait_until(lambda: zookeeper.connected or self._over.done(), timeout_s)
        if self._over.done():
            self._raise_ended(self._over.result())
        if not zookeeper.connected:
            raise self._no_zookeeper()

    def _no_zookeeper(self) -> StartupError:
        return StartupError(
            f"ZooKeeper at {self._settings.zookeeper_hosts} was not reached within "
            f"{self._settings.zookeeper_connection_timeout_ms} ms (zookeeper.connection.timeout.ms): "
            "start it, or correct zookeeper.connect",
            ExitCode.ZOOKEEPER_UNREACHABLE,
        )

    async def _unless_ended(self, work: Awaitable[T]) -> T:
        """Return the result of a part of the start, unless the process ends before; then that part is abandoned."""
        part = asyncio.ensure_future(work)
        waiting: set[asyncio.Future[Any]] = {part, self._over}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not part.done():
            part.cancel()
            self._raise_ended(self._over.result())
        return part.result()

    def _raise_ended(self, ended: str | Exception) -> NoReturn:
        """Raise the error for an end before the node was ready."""
        if isinstance(ended, Exception):
            raise StartupError(f"the {self._role.value} cannot start: {ended}", ExitCode.FATAL) from ended
        raise StartupError(f"stopped by {ended} before it was ready", ExitCode.INTERRUPTED)

    def _end(self, reason: str | Exception) -> None:
        """End the process because of a signal, by its name, or a fatal error."""
        if not self._over.done():
            self._over.set_result(reason)

    def _state_changed(self, change: StateChange) -> None:
        self._state_changes.put(change)
        self._hub.put(change)

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception of a core callback, which is a bug; the process continues."""
        self._log.error("callback failed: message=%s", context.get("message"), exc_info=context.get("exception"))


def run_process(
    make: Callable[[Any, asyncio.AbstractEventLoop], NodeProcess], settings: NodeSettings[Any], node: dict[str, int]
) -> int:
    """Run a process with these settings and return its exit code; ``node`` is in every line of its log."""
    keys = settings.keys
    role = "controller" if isinstance(settings, ControllerSettings) else "broker"
    os.umask(0o077)  # files of this process are private: records, state changes
    try:
        configure_logging(
            keys.logging_format,
            keys.logging_level,
            keys.state_change_log_path,
            bound=node,
            audit_path=keys.audit_log_path,
        )
    except OSError as failure:
        sys.stderr.write(f"paceline {role}: state.change.log.path or audit.log.path cannot be written: {failure}\n")
        return ExitCode.USAGE
    raise_open_file_limit()

    async def process() -> ExitCode:
        while True:
            made = make(settings, asyncio.get_running_loop())
            code = await made.run()
            if not made.starts_again:
                return code

    try:
        return asyncio.run(process())
    except StartupError as failure:
        sys.stderr.write(f"paceline {role}: {failure}\n")
        return failure.exit_code
