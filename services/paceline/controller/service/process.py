"""The controller process: order of start and stop.

Start: bind ports, open the ZooKeeper session, take part in elections, report SERVING, also as a standby. Stop: report
NOT_SERVING, resign and close the session, so that the next controller takes over immediately, then let running calls
finish within a grace period.
"""

import asyncio
import gc
import logging
import os
import random
import time
from collections.abc import Sequence
from typing import Any, Final

from paceline import __version__
from paceline.controller.events import Event
from paceline.controller.node import ControllerNode
from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.controller.service.servers import ControllerServers
from paceline.controller.service.standby_transport import GrpcStandbyTransport
from paceline.controller.service.transport import GrpcControlTransport
from paceline.controller.standby.takeover import Takeover
from paceline.coordination.errors import ZooKeeperDataLostError
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.model.control import Endpoint, LiveBroker
from paceline.model.identity import Role
from paceline.rpc.retry import wait_until
from paceline.runtime.lifecycle import (
    exit_now_after,
)
from paceline.runtime.metrics import node_families
from paceline.runtime.node_process import NodeProcess
from paceline.runtime.settings import ControllerSettings

LOG = logging.getLogger("paceline.controller")

_REFRESH_S: Final = 1.0
_STOP_GRACE_S: Final = 1.0
_STOP_LIMIT_S: Final = 15.0
_GC_YOUNG_OBJECTS: Final = 200_000
"""Allocations between two garbage collections. The context is large and has no cycles; with Python's default of 700 an
election of ten thousand partitions would scan it many times."""


class ControllerProcess(NodeProcess):
    """A controller from start to stop; `run` returns the exit code."""

    _settings: ControllerSettings

    def __init__(self, settings: ControllerSettings, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(Role.CONTROLLER, settings, loop)
        self._handle = NodeHandle()
        self._handle.set_loaded(False)
        self._servers = ControllerServers(
            settings, self._handle, self._scheduler, self._metrics, self._hub, self._security, self.describe_node
        )
        suspect_ms = settings.config.broker_suspect_ms
        self._transport = GrpcControlTransport(self._scheduler.post, self._security, lambda: self._node, suspect_ms)
        self._standby_transport = GrpcStandbyTransport(self._scheduler.post, self._security, suspect_ms)
        self._node: ControllerNode | None = None
        self._elected = 0
        self._serving = False

    async def _start(self, begin: float) -> None:
        gc.set_threshold(_GC_YOUNG_OBJECTS, 20, 100)
        await self._servers.start()
        metrics_port = self._serve_metrics()
        await self._claim_cluster_id(self._settings.keys.controller_id)
        self._node = ControllerNode(
            self._settings.config,
            self._servers.advertised,
            self._scheduler,
            PatientZooKeeper(self._measured_zookeeper()),
            self._transport,
            random.Random(os.urandom(16)),
            self._state_changed,
            self._event_handled,
            standby_transport=self._standby_transport,
            on_active_change=self._handle.set_loaded,
            on_takeover=self._taken_over,
        )
        self._handle.access_lists, self._handle.quotas = self._access_lists, self._quota_reader
        self._handle.on_session = self.on_session
        self._handle.set(self._node)
        self._node.start()
        await self._until_connected()
        await self._wait_for_active_controller()
        await self._report_readiness()
        self._begin_tasks()
        listeners = ",".join(f"{one.listener}://{one.address}" for one in self._servers.advertised)
        LOG.info(
            "controller ready: id=%d version=%s start_s=%.2f endpoints=%s zookeeper=%s metrics_port=%s",
            self._settings.keys.controller_id, __version__, time.monotonic() - begin, listeners,
            self._settings.zookeeper_hosts, metrics_port,
        )  # fmt: skip

    async def _wait_for_active_controller(self) -> None:
        """Wait until there is an active controller, at most as long as for the ZooKeeper connection.

        The process becomes ready only after that.
        """
        node = self._node
        assert node is not None
        timeout_s = self._settings.zookeeper_connection_timeout_ms / 1000
        await wait_until(lambda: node.active_controller is not None or self._over.done(), timeout_s)

    async def _report_readiness(self) -> None:
        """Report ready if this controller is active or knows the active controller."""
        ready = self._node is not None and self._node.active_controller is not None
        if ready != self._serving:
            self._serving = ready
            await self._servers.set_serving(ready)

    async def _stop(self) -> None:
        finished = exit_now_after(
            _STOP_LIMIT_S, lambda: LOG.error("stop timed out, exiting: timeout_s=%.0f", _STOP_LIMIT_S)
        )
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

    def _check_cluster_id(self, known: str) -> str:
        """Return the cluster id; a cluster id that differs from ``known`` ends the process.

        Another id means that ZooKeeper was wiped or replaced.
        """
        found = self._node.describe_cluster().cluster_id if self._node is not None else ""
        if known and found != known:
            self._end(ZooKeeperDataLostError(f"ZooKeeper belonged to cluster {known}, and now to {found or 'none'}"))
        return known or found

    @property
    def _advertised(self) -> Sequence[Endpoint]:
        return self._servers.advertised

    def _own_facts(self) -> dict[str, Any]:
        if self._node is None:
            return {"node_id": self._settings.keys.controller_id}
        return {
            "node_id": self._settings.keys.controller_id,
            "cluster_id": self._node.describe_cluster().cluster_id,
            "peers": self._node.peers(),
            "controller_epoch": self._node.highest_controller_epoch,
            "active_controller": self._node.describe_active(),
        }

    def _live_brokers(self) -> list[LiveBroker]:
        return [] if self._node is None else list(self._node.describe_cluster().brokers)

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
        node = self._node
        assert node is not None
        counted = dict.fromkeys(node.elections, 0)
        cluster_id = ""
        while True:
            await asyncio.sleep(_REFRESH_S)
            cluster_id = self._check_cluster_id(cluster_id)
            await self._report_readiness()
            try:
                self._refresh_metrics(node, counted)
            except Exception:  # a metric that cannot be computed must not end readiness
                LOG.exception("updating the metrics failed")

    def _refresh_metrics(self, node: ControllerNode, counted: dict[tuple[str, str], int]) -> None:
        """Update the metrics; ``counted`` has the elections that are already in their counter."""
        for labels, count in node.elections.items():
            self._metrics.leader_elections.labels(*labels).inc(count - counted.get(labels, 0))
            counted[labels] = count
        self._metrics.refresh(node.gauges() | {"watchers": self._hub.watcher_count})
        queues = node.broker_queues()
        self._metrics.families.rows = {
            "controller_broker_queue_size": {(str(broker),): size for broker, size, _, _ in queues},
            "controller_broker_requests_total": {(str(broker),): sent for broker, _, sent, _ in queues},
            "controller_broker_queue_seconds_total": {(str(broker),): waited / 1000 for broker, _, _, waited in queues},
            **(self._zookeeper.families() if self._zookeeper is not None else {}),
            **node_families(self.describe_node()),
            **self._throttled(),
        }
