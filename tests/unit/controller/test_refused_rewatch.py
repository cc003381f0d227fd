"""After a reconnect all watches are lost: each is set again even if ZooKeeper refuses the work of another."""

from paceline.coordination import znodes
from paceline.coordination.interface import Create, Delete
from paceline.model.admin import NewTopic
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp


def test_an_address_that_cannot_be_published_hides_no_later_change() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    node = cluster.start_controller()
    address = znodes.controller_path(CONTROLLER_ID)
    cluster.zk(Delete(address))
    cluster.settle()
    assert cluster.exists(address), "published again"
    cluster.server.tree.read_only.add(address)
    cluster.controller_clients[CONTROLLER_ID].disconnect()
    cluster.time.run_until(lambda: cluster.controller_clients[CONTROLLER_ID].connected, max_ms=1_000)
    cluster.settle()
    assert node.is_active and node.controller_epoch == 1, "the same term after the reconnect"
    cluster.kill_broker(2)
    cluster.settle()
    assert [broker.broker_id for broker in node.describe_cluster().brokers] == [1]
    cluster.server.tree.read_only.clear()
    cluster.time.run_for(10_000)
    cluster.zk(Delete(address))
    cluster.settle()
    assert cluster.exists(address), "watched again"


def test_a_notification_that_cannot_be_deleted_does_not_hide_later_requests() -> None:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    node = cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    notification = f"{znodes.ISR_CHANGE_PREFIX}0000000000"
    cluster.server.tree.read_only.add(notification)
    cluster.change_isr("a-0", [1])
    cluster.settle()
    assert cluster.exists(notification)
    cluster.controller_clients[CONTROLLER_ID].disconnect()
    cluster.settle()
    cluster.time.run_until(lambda: cluster.controller_clients[CONTROLLER_ID].connected, max_ms=1_000)
    cluster.settle()
    assert node.is_active and node.controller_epoch == 1, "the same term after the reconnect"
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({tp("a-0"): (1,)})))
    cluster.settle()
    assert cluster.data(znodes.topic_path("a"))["partitions"] == {"0": [1]}
