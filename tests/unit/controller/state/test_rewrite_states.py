"""States that the controller rewrites while their leaders write the ISR: no change of either is lost."""

import json

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Multi, SetData
from paceline.model.admin import NewTopic
from tests.support.zookeeper.client import MemoryZooKeeper
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp


def leader_writes_first(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, partition: str, *isrs: list[int]) -> None:
    """Let the partition's leader write one of ``isrs`` just before each write of its state by the controller."""
    path = znodes.partition_state_path(tp(partition))
    submit = MemoryZooKeeper.submit
    to_write = list(isrs)

    def disturbed(client, requests, on_done):  # type: ignore[no-untyped-def]
        multis = [request for request in requests if isinstance(request, Multi)]
        if not to_write or not any(isinstance(op, SetData) and op.path == path for m in multis for op in m.operations):
            submit(client, requests, on_done)
            return
        node = cluster.server.tree.get(path)
        assert node is not None
        data = json.dumps({**json.loads(node.data or b""), "isr": to_write.pop(0)})
        cluster.tool.submit([SetData(path, data.encode())], lambda _: None)
        cluster.time.call_later(0.001, lambda: submit(client, requests, on_done))

    monkeypatch.setattr(MemoryZooKeeper, "submit", disturbed)


def without_controller() -> Cluster:
    """a-0 and b-0 are led by broker 2, and the active controller has stopped."""
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(*(NewTopic(name, assignments=((2, 1, 3),)) for name in ("a", "b")))
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.told()
    return cluster


def take_over(cluster: Cluster) -> None:
    cluster.start_controller(CONTROLLER_ID + 1)
    cluster.time.run_for(100)


@pytest.mark.parametrize("isrs", [([2, 1],), ([2, 1], [2, 1, 3])], ids=str)
def test_an_unclean_member_is_removed_although_the_leader_writes_meanwhile(
    monkeypatch: pytest.MonkeyPatch, isrs: tuple[list[int], ...]
) -> None:
    cluster = without_controller()
    cluster.kill_broker(1)
    cluster.start_broker(1, unclean=True)
    leader_writes_first(monkeypatch, cluster, "a-0", *isrs)
    take_over(cluster)
    left = [member for member in isrs[-1] if member != 1]
    assert cluster.state("a-0") == f"2/1 isr {left} ce 2 v{len(isrs) + 1}"
    assert cluster.state("b-0") == "2/1 isr [2, 3] ce 2 v1"
    first = next(line for line in cluster.told()[2] if line.startswith("LAI"))
    assert f"a-0 2/1 {left}" in first


def test_a_state_from_which_the_leader_removed_the_member_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = without_controller()
    cluster.kill_broker(1)
    cluster.start_broker(1, unclean=True)
    leader_writes_first(monkeypatch, cluster, "a-0", [2, 3])
    take_over(cluster)
    assert cluster.state("a-0") == "2/0 isr [2, 3] ce 1 v1"
    assert cluster.state("b-0") == "2/1 isr [2, 3] ce 2 v1"


def test_an_unassigned_member_is_removed_although_the_leader_writes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = without_controller()
    cluster.change_isr("a-0", [2, 1, 9], notify=False)
    leader_writes_first(monkeypatch, cluster, "a-0", [2, 9])
    take_over(cluster)
    assert cluster.state("a-0") == "2/1 isr [2] ce 2 v3"
    assert cluster.state("b-0") == "2/0 isr [2, 1, 3] ce 1 v0"
