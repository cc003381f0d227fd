"""A node that ZooKeeper refuses to read still exists: no broker counts as dead, and no state is forgotten."""

from paceline.coordination import znodes
from paceline.model.admin import NewTopic
from tests.unit.controller.cluster import Cluster, tp

STATE = znodes.partition_state_path(tp("a-0"))


def started() -> Cluster:
    cluster = Cluster()
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    cluster.told()
    return cluster


def test_a_broker_whose_registration_cannot_be_read_stays_alive() -> None:
    cluster = started()
    cluster.server.tree.unreadable.add(znodes.broker_path(1))
    cluster.start_broker(4)
    cluster.settle()
    assert cluster.state("a-0").startswith("1/0 isr [1, 2]")
    assert [broker.broker_id for broker in cluster.controller.describe_cluster().brokers] == [1, 2, 3, 4]
    cluster.kill_broker(1)
    cluster.settle()
    assert cluster.state("a-0").startswith("2/1 isr [2]"), "its registration has ended"


def test_a_state_that_cannot_be_read_is_not_forgotten() -> None:
    cluster = started()
    cluster.kill_broker(2)
    cluster.settle()
    cluster.server.tree.unreadable.add(STATE)
    cluster.kill_broker(1)
    cluster.settle()
    described = cluster.controller.describe_topics(["a"])[0].partitions[0]
    assert (described.leader_epoch, described.isr) == (2, (1,)), "the removal of the leader was written"
    cluster.start_broker(1)
    cluster.settle()
    cluster.server.tree.unreadable.clear()
    assert cluster.state("a-0").startswith("1/3 isr [1]")
