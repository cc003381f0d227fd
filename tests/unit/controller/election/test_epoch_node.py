"""``/controller_epoch`` damaged or deleted: controllers report it and recover without an operator where they can."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Delete, GetData, SetData
from paceline.model.admin import NewTopic
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp

GARBAGE = [b"", b"seven", b'{"version":1}', b"\xff", b"-1", b"99999999999"]
STATE = znodes.partition_state_path(tp("a-0"))


def started() -> Cluster:
    """``a-0`` on brokers 1 and 2; the controller epoch is 3."""
    cluster = Cluster()
    cluster.start_broker(1, 2)
    for number in range(3):
        cluster.start_controller(CONTROLLER_ID + number)
        if number < 2:
            cluster.controllers.pop(CONTROLLER_ID + number).stop()
            cluster.settle()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    cluster.told()
    return cluster


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    return [text for text in said if "no controller can be elected: " in text]


@pytest.mark.parametrize("data", GARBAGE)
def test_no_controller_is_elected_until_a_damaged_epoch_is_repaired(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = started()
    cluster.start_controller(CONTROLLER_ID + 9)
    cluster.zk(SetData(znodes.CONTROLLER_EPOCH, data))
    cluster.kill_broker(1)
    cluster.settle()
    assert not any(node.is_active for node in cluster.controllers.values())
    assert not cluster.exists(znodes.CONTROLLER), "no controller that cannot become active owns the node"
    assert all(node.active_controller is None for node in cluster.controllers.values())
    first = complaints(caplog)
    assert len(first) >= 2, "each controller reports it"
    assert znodes.CONTROLLER_EPOCH in first[0] and "at least 3" in first[0]
    cluster.time.run_for(600_000)
    assert 20 <= len(complaints(caplog)) <= 45, "repeated with growing pauses"
    cluster.zk(SetData(znodes.CONTROLLER_EPOCH, b"7"))
    cluster.settle()
    assert cluster.controller.controller_epoch == 8, "elected without waiting for the next attempt"
    assert (cluster.data(STATE)["leader"], cluster.data(STATE)["isr"]) == (2, [2])


def test_a_new_controller_waits_until_a_damaged_epoch_is_repaired(caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    cluster.controllers.popitem()[1].stop()
    cluster.zk(SetData(znodes.CONTROLLER_EPOCH, b"?"))
    late = cluster.start_controller(CONTROLLER_ID + 9)
    assert not late.is_active and len(complaints(caplog)) == 1
    cluster.zk(SetData(znodes.CONTROLLER_EPOCH, b"3"))
    cluster.settle()
    assert late.controller_epoch == 4


@pytest.mark.parametrize("who_sees_it", ["the active controller", "one that has just started"])
def test_a_deleted_epoch_is_re_created_above_every_earlier_epoch(who_sees_it: str) -> None:
    cluster = started()
    if who_sees_it == "one that has just started":
        cluster.controllers.popitem()[1].stop()
        cluster.settle()
    cluster.zk(Delete(znodes.CONTROLLER_EPOCH))
    cluster.kill_broker(1)
    if who_sees_it == "one that has just started":
        cluster.start_controller(CONTROLLER_ID + 9)
    cluster.settle()
    assert cluster.controller.controller_epoch > 3, "brokers would fence a lower one"
    assert int(cluster.zk(GetData(znodes.CONTROLLER_EPOCH)).data or b"") == cluster.controller.controller_epoch
    assert (cluster.data(STATE)["leader"], cluster.data(STATE)["isr"]) == (2, [2])


def test_the_first_epoch_of_a_cluster_is_1() -> None:
    cluster = Cluster()
    assert cluster.start_controller().controller_epoch == 1


@pytest.mark.parametrize("path", [znodes.CONFIG_CHANGES, znodes.CLUSTER_ID, znodes.controller_path(CONTROLLER_ID)])
def test_a_start_that_zookeeper_refuses_is_reported_and_repeated(path: str, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.server.tree.read_only.add(path)
    node = cluster.start_controller()
    assert not node.is_active and len(complaints(caplog)) == 1 and path in complaints(caplog)[0]
    cluster.server.tree.read_only.clear()
    cluster.time.run_for(60_000)
    assert node.controller_epoch == 1, "elected within the same session"
    assert cluster.exists(znodes.controller_path(CONTROLLER_ID))


def test_an_election_that_zookeeper_refuses_is_reported_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    cluster = started()
    cluster.controllers.popitem()[1].stop()
    cluster.server.tree.read_only.add(znodes.CONTROLLER_EPOCH)
    late = cluster.start_controller(CONTROLLER_ID + 9)
    assert not late.is_active and len(complaints(caplog)) == 1
    assert znodes.CONTROLLER in complaints(caplog)[0] and "OTHER" in complaints(caplog)[0]
    cluster.server.tree.read_only.clear()
    cluster.time.run_for(60_000)
    assert late.controller_epoch == 4, "elected although no node has changed"
