"""The controller's process updates readiness and metrics once a second."""

import asyncio

import pytest

from paceline.controller.node import ControllerNode
from paceline.controller.service import process as process_module
from paceline.controller.service.process import ControllerProcess
from paceline.rpc.retry import wait_until
from paceline.runtime.settings import load_controller
from tests.unit.controller.cluster import Cluster


def test_a_metric_that_cannot_be_computed_does_not_end_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    node = cluster.start_controller()
    computed: list[ControllerNode] = []

    def broken(self: ControllerNode) -> dict[str, int]:
        computed.append(self)
        raise KeyError("a partition that a change has just removed")

    monkeypatch.setattr(ControllerNode, "gauges", broken)
    monkeypatch.setattr(process_module, "_REFRESH_S", 0.001)

    async def run() -> None:
        process = ControllerProcess(load_controller(["--zookeeper-connect=zk:2181"], {}), asyncio.get_running_loop())
        process._node = node
        process._measured_zookeeper()
        refresh = asyncio.create_task(process._refresh())
        await wait_until(lambda: len(computed) > 2 or refresh.done(), 60.0)
        assert not refresh.done() and process._metrics.is_serving
        node.stop()
        node._event_handler.active_controller = None
        assert await wait_until(lambda: not process._metrics.is_serving, 60.0)
        refresh.cancel()
        process._metrics.close()
        process._state_changes.close()

    asyncio.run(run())
