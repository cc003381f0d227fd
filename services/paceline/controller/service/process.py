"""The controller process: order of start and stop.

Start: bind ports, open the ZooKeeper session, take part in elections, report SERVING; a standby is as healthy as the
active controller. Stop: report NOT_SERVING, resign and close the session, so that the next controller takes over at
once, then let running calls finish within a grace period.
"""

import asyncio
import gc
import logging
import os
import random
import secrets
import time
from typing import Any, Final

from paceline import __version__
from paceline.controller.events import Event
from paceline.controller.node import ControllerNode
from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.controller.service.servers import ControllerServers
from paceline.controller.service.standby_transport import GrpcStandbyTransport
from paceline.controller.service.transport import GrpcControlTransport
from paceline.controller.standby.takeover import Takeover
from paceline.coordination.errors import CoordinationError, SessionLostError, ZooKeeperDataLostError
from paceline.coordination.kazoo.client import KazooZooKeeper
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.coordination.recipes import get_or_create_cluster_id
from paceline.model.identity import Role, cluster_id_of
from paceline.model.state_change import StateChange
from paceline.rpc.channels import open_aio_channel
from paceline.rpc.retry import wait_until
from paceline.rpc.security.credentials import CertificateFilesError
from paceline.rpc.watch.event_publisher import EventPublisher
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.lifecycle import (
    ExitCode,
    StartupError,
    exit_now_after,
    on_stop_signals,
)
from paceline.runtime.logging import StateChangeWriter
from paceline.runtime.measured_zookeeper import MeasuredZooKeeper
from paceline.runtime.metrics import Metrics, MetricsError, watch_event_loop
from paceline.runtime.node_identity import check_cluster_id, open_transport_security
from paceline.runtime.settings import ControllerSettings
from paceline.runtime.zookeeper_flow import ask_zookeeper

LOG = logging.getLogger("paceline.controller")

_REFRESH_S: Final = 1.0
_STOP_GRACE_S: Final = 1.0
_STOP_LIMIT_S: Final = 15.0
_GC_YOUNG_OBJECTS: Final = 200_000
"""Allocations between two garbage collections. The context is large and has no cycles; with Python's default of 700 an
election of ten thousand partitions would scan it again and again."""


class ControllerProcess:
    """A controller from start to stop; `run` returns the exit code."""

    def __init__(self, settings: ControllerSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._scheduler = AsyncioScheduler(loop)
        self._metrics = Metrics()
        self._handle = NodeHandle()
        self._handle.set_loaded(False)
        self._hub = WatchHub(secrets.token_hex(6))
        self._security = open_transport_security(settings.security)
        self._servers = ControllerServers(
            settings, self._handle, self._scheduler, self._metrics, self._hub, self._security
        )
        suspect_ms = settings.config.broker_suspect_ms
        self._transport = GrpcControlTransport(self._scheduler.post, self._security, lambda: self._node, suspect_ms)
        self._standby_transport = GrpcStandbyTransport(self._scheduler.post, self._security, suspect_ms)
        self._state_changes = StateChangeWriter()
        self._over: asyncio.Future[str | Exception] = loop.create_future()
        self._node: ControllerNode | None = None
        self._zookeeper: MeasuredZooKeeper | None = None
        self._elected = 0
        self._serving = False
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> ExitCode:
        """Start, serve until stopped, stop.

        Raises:
            StartupError: the controller could not start; all opened resources are closed again.
        """
        gc.set_threshold(_GC_YOUNG_OBJECTS, 20, 100)
        self._loop.set_exception_handler(self._unexpected)
        on_stop_signals(self._loop, self._stop_asked)
        begin = time.monotonic()
        try:
            await self._start(begin)
            ended = await self._over
        except BaseException:
            await self._stop()
            raise
        if isinstance(ended, Exception):
            LOG.error("controller stops after a fatal error: error=%s", ended)
        else:
            LOG.info("stopping on %s", ended)
        await self._stop()
        return ExitCode.FATAL if isinstance(ended, Exception) else ExitCode.OK

    async def _start(self, begin: float) -> None:
        await self._servers.start()
        metrics_port = self._serve_metrics()
        await self._claim_cluster_id()
        self._zookeeper = MeasuredZooKeeper(self._open_zookeeper(), self._metrics.zk_request_seconds.observe)
        zookeeper = PatientZooKeeper(self._zookeeper)
        self._node = ControllerNode(
            self._settings.config,
            self._servers.advertised,
            self._scheduler,
            zookeeper,
            self._transport,
            random.Random(os.urandom(16)),
            self._state_changed,
            self._event_handled,
            standby_transport=self._standby_transport,
            on_active_change=self._handle.set_loaded,
            on_takeover=self._taken_over,
            on_metadata_change=self._hub.wake,
        )
        self._handle.set(self._node)
        self._node.start()
        await self._until_connected(zookeeper)
        await self._until_one_rules()
        await self._tell_readiness()
        self._tasks = [
            self._loop.create_task(watch_event_loop(self._metrics)),
            self._loop.create_task(self._refresh()),
        ]
        if self._settings.keys.cluster_events_topic_enable:
            self._tasks.append(self._loop.create_task(self._event_publisher().run()))
        listeners = ",".join(f"{one.listener}://{one.address}" for one in self._servers.advertised)
        LOG.info(
            "controller ready: id=%d version=%s start_s=%.2f endpoints=%s zookeeper=%s metrics_port=%s",
            self._settings.keys.controller_id, __version__, time.monotonic() - begin, listeners,
            self._settings.zookeeper_hosts, metrics_port,
        )  # fmt: skip

    async def _claim_cluster_id(self) -> None:
        """Check that certificate and ZooKeeper belong to this cluster, before taking part in elections."""
        identity = self._security.identity
        if identity is None:
            return
        try:
            self._security.check_node(Role.CONTROLLER, self._settings.keys.controller_id)
        except CertificateFilesError as failure:
            raise StartupError(str(failure), ExitCode.USAGE) from None
        zookeeper = PatientZooKeeper(self._open_zookeeper())
        timeout_ms = self._settings.zookeeper_connection_timeout_ms
        claim = get_or_create_cluster_id(cluster_id_of(identity.cluster))
        try:
            found = await ask_zookeeper(zookeeper, self._scheduler, claim, timeout_ms)
        except (TimeoutError, SessionLostError):
            raise self._no_zookeeper() from None
        except CoordinationError as failure:
            raise StartupError(f"the controller cannot start: {failure}", ExitCode.FATAL) from failure
        check_cluster_id(identity, found)

    def _open_zookeeper(self) -> KazooZooKeeper:
        return KazooZooKeeper(
            self._settings.zookeeper_hosts,
            self._settings.keys.zookeeper_session_timeout_ms,
            self._scheduler.post,
            on_data_lost=self._fatal,
            security=self._settings.security.zookeeper,
        )

    def _no_zookeeper(self) -> StartupError:
        return StartupError(
            f"ZooKeeper at {self._settings.zookeeper_hosts} was not reached within "
            f"{self._settings.zookeeper_connection_timeout_ms} ms (zookeeper.connection.timeout.ms): "
            "start it, or correct zookeeper.connect",
            ExitCode.ZOOKEEPER_UNREACHABLE,
        )

    def _serve_metrics(self) -> int | None:
        keys = self._settings.keys
        if keys.metrics_port < 0:
            return None
        try:
            return self._metrics.serve(keys.metrics_host, keys.metrics_port, self._settings.print_config)
        except MetricsError as failure:
            raise StartupError(str(failure), ExitCode.PORT_IN_USE) from None

    async def _until_connected(self, zookeeper: PatientZooKeeper) -> None:
        timeout_s = self._settings.zookeeper_connection_timeout_ms / 1000
        await wait_until(lambda: zookeeper.connected or self._over.done(), timeout_s)
        if self._over.done():
            raise StartupError(f"stopped by {self._over.result()} before it was ready", ExitCode.INTERRUPTED)
        if not zookeeper.connected:
            raise self._no_zookeeper()

    async def _until_one_rules(self) -> None:
        """Wait until there is an active controller, at most as long as for the ZooKeeper connection.

        The process becomes ready only after that.
        """
        node = self._node
        assert node is not None
        timeout_s = self._settings.zookeeper_connection_timeout_ms / 1000
        await wait_until(lambda: node.active_controller is not None or self._over.done(), timeout_s)

    async def _tell_readiness(self) -> None:
        """Report ready if this controller is active or knows the active controller."""
        ready = self._node is not None and self._node.active_controller is not None
        if ready != self._serving:
            self._serving = ready
            await self._servers.set_serving(ready)

    async def _stop(self) -> None:
        finished = exit_now_after(_STOP_LIMIT_S, lambda: LOG.error("the stop took too long; exiting anyway"))
        for task in self._tasks:
            task.cancel()
        await self._servers.set_serving(False)
        if self._node is not None:
            self._node.stop()
        self._hub.close()
        await self._servers.stop(_STOP_GRACE_S)
        await self._loop.run_in_executor(None, self._transport.close_all)
        await self._loop.run_in_executor(None, self._standby_transport.close_all)
        await self._loop.run_in_executor(None, self._state_changes.close)
        self._metrics.close()
        finished()
        LOG.info("stopped")

    def _stop_asked(self, signal_name: str) -> None:
        if not self._over.done():
            self._over.set_result(signal_name)

    def _fatal(self, failure: Exception) -> None:
        if not self._over.done():
            self._over.set_result(failure)

    def _check_cluster_id(self, known: str) -> str:
        """Return the cluster id; a cluster id that differs from ``known`` ends the process.

        It means that ZooKeeper was wiped or replaced.
        """
        found = self._node.describe_cluster().cluster_id if self._node is not None else ""
        if known and found != known:
            self._fatal(ZooKeeperDataLostError(f"ZooKeeper belonged to cluster {known}, and now to {found or 'none'}"))
        return known or found

    def _unexpected(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception of a core callback, which is a bug; the process continues."""
        LOG.error("unexpected: %s", context.get("message"), exc_info=context.get("exception"))

    def _event_publisher(self) -> EventPublisher:
        replication_factor = self._settings.keys.cluster_events_topic_replication_factor
        tls = self._security.credentials("CLIENT")
        return EventPublisher(
            self._hub, self._client_addresses, lambda address: open_aio_channel(address, tls=tls), replication_factor
        )

    def _client_addresses(self) -> list[str]:
        """Return the client addresses of the live brokers that this process knows."""
        brokers = () if self._node is None else self._node.describe_cluster().brokers
        endpoints = (broker.endpoint("CLIENT") for broker in brokers)
        return [endpoint.address for endpoint in endpoints if endpoint is not None]

    def _state_changed(self, change: StateChange) -> None:
        self._state_changes.put(change)
        self._hub.put(change)

    def _event_handled(self, event: Event, queued_ms: int, handled_ms: int) -> None:
        self._metrics.controller_queue_seconds.observe(queued_ms / 1000)
        self._metrics.controller_event_seconds.labels(event.name).observe(handled_ms / 1000)
        elected = sum(self._node.elections.values()) if self._node is not None else 0
        if elected != self._elected:
            self._elected = elected
            self._metrics.leader_election_seconds.observe(handled_ms / 1000)

    def _taken_over(self, takeover: Takeover) -> None:
        self._metrics.controller_takeover_seconds.labels(takeover.states.kind.value).observe(takeover.elapsed_ms / 1000)

    async def _refresh(self) -> None:
        """Check the cluster id and update readiness and metrics, once a second."""
        assert self._node is not None and self._zookeeper is not None
        counted = dict.fromkeys(self._node.elections, 0)
        cluster_id = ""
        while True:
            await asyncio.sleep(_REFRESH_S)
            cluster_id = self._check_cluster_id(cluster_id)
            await self._tell_readiness()
            for labels, count in self._node.elections.items():
                self._metrics.leader_elections.labels(*labels).inc(count - counted.get(labels, 0))
                counted[labels] = count
            self._metrics.refresh(self._node.gauges() | {"watchers": self._hub.watcher_count})
            queues = self._node.broker_queues()
            self._metrics.families.rows = {
                "controller_broker_queue_size": {(str(broker),): size for broker, size, _, _ in queues},
                "controller_broker_requests_total": {(str(broker),): sent for broker, _, sent, _ in queues},
                "controller_broker_queue_seconds_total": {
                    (str(broker),): waited / 1000 for broker, _, _, waited in queues
                },
                **self._zookeeper.families(),
            }
