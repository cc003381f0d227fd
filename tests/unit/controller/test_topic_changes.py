"""Topics that vanish, and are made again, while the controller looks."""

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.controller.storage import Storage
from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete
from paceline.model.assignment import ReplicaAssignment
from paceline.runtime.flow import Flow
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster

NODE = znodes.encode_topic_assignment(znodes.TopicAssignment({0: ReplicaAssignment((1, 2))}, "t" * 22))


def made_again_when_read(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topic ``t`` goes after it was listed and before its node is read, and comes back right after that."""
    real, path = Storage.topic_nodes, znodes.topic_path("t")
    times: list[int] = []

    def topic_nodes(self: Storage, topics: Sequence[str], gone: set[str] | None = None) -> Flow[Any]:
        racing = "t" in topics and not times
        if racing:
            times.append(1)
            cluster.tool.submit([Delete(path)], lambda _: None)
        found = yield from real(self, topics, gone)
        if racing:
            assert "t" not in found
            cluster.tool.submit([Create(path, NODE)], lambda _: None)
        return found

    monkeypatch.setattr(Storage, "topic_nodes", topic_nodes)


def test_a_topic_that_is_made_again_between_two_looks_gets_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    made_again_when_read(cluster, monkeypatch)
    cluster.zk(Create(znodes.topic_path("t"), NODE))
    cluster.settle()
    assert cluster.state("t-0") == "1/0 isr [1, 2] ce 1 v0"


def test_a_topic_that_is_made_again_during_a_takeover_gets_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.zk(Create(znodes.topic_path("t"), NODE))
    made_again_when_read(cluster, monkeypatch)
    cluster.start_controller(CONTROLLER_ID)
    assert cluster.state("t-0") == "1/0 isr [1, 2] ce 1 v0"
