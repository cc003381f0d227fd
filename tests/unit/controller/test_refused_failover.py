"""A node that ZooKeeper refuses to change leaves the cluster with a controller: each failover continues without it."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create, SetData
from paceline.model.admin import NewTopic
from paceline.model.settings import ControllerConfig
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster, tp

CONFIG = ControllerConfig(CONTROLLER_ID, auto_leader_rebalance_enable=False)
STATE = znodes.partition_state_path(tp("a-0"))


def without_controller(config: ControllerConfig = CONFIG) -> Cluster:
    """a-0 and b-0 are led by broker 2, and the active controller has stopped."""
    cluster = Cluster(config)
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(*(NewTopic(name, assignments=((2, 1, 3),)) for name in ("a", "b")))
    cluster.controllers.pop(CONTROLLER_ID).stop()
    cluster.told()
    return cluster


def notify_isr(cluster: Cluster) -> str:
    cluster.change_isr("a-0", [2, 1])
    return f"{znodes.ISR_CHANGE_PREFIX}0000000000"


def notify_log_dir(cluster: Cluster) -> str:
    cluster.zk(Create(znodes.LOG_DIR_EVENT_PREFIX, znodes.encode_log_dir_event(1), sequential=True))
    return f"{znodes.LOG_DIR_EVENT_PREFIX}0000000000"


def ask_for_preferred_leaders(cluster: Cluster) -> str:
    cluster.zk(Create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partition_set([tp("a-0")])))
    return znodes.PREFERRED_REPLICA_ELECTION


def ask_for_an_invalid_reassignment(cluster: Cluster) -> str:
    cluster.zk(Create(znodes.REASSIGN_PARTITIONS, b"{"))
    return znodes.REASSIGN_PARTITIONS


def mark_for_deletion(cluster: Cluster) -> str:
    cluster.zk(Create(znodes.delete_topic_path("a")))
    return znodes.delete_topic_path("a")


def add_an_unassigned_member(cluster: Cluster) -> str:
    cluster.change_isr("a-0", [2, 1, 9], notify=False)
    return STATE


@pytest.mark.parametrize(
    "prepare",
    [
        notify_isr,
        notify_log_dir,
        ask_for_preferred_leaders,
        ask_for_an_invalid_reassignment,
        mark_for_deletion,
        add_an_unassigned_member,
    ],
)
def test_a_new_controller_becomes_active_although_zookeeper_refuses_a_write(
    prepare: Callable[[Cluster], str],
) -> None:
    cluster = without_controller(replace(CONFIG, delete_topic_enable=False))
    cluster.server.tree.read_only.add(prepare(cluster))
    node = cluster.start_controller(CONTROLLER_ID + 1)
    cluster.time.run_for(20_000)
    assert node.is_active and node.controller_epoch == 2, "elected once"
    cluster.kill_broker(2)
    cluster.settle()
    assert cluster.state("b-0").startswith("1/1 isr [1, 3]")


def test_a_new_controller_becomes_active_although_zookeeper_refuses_to_list_the_states_of_a_topic_without_id() -> None:
    cluster = without_controller()
    data = cluster.data(znodes.topic_path("a"))
    topic_id = data.pop("topic_id")
    cluster.zk(SetData(znodes.topic_path("a"), json.dumps(data).encode()))
    cluster.server.tree.unreadable.add(znodes.topic_partitions_path("a"))
    node = cluster.start_controller(CONTROLLER_ID + 1)
    cluster.time.run_for(20_000)
    assert node.is_active and node.controller_epoch == 2, "elected once"
    assert cluster.data(znodes.topic_path("a"))["topic_id"] == topic_id, "the brokers have returned the id"
    cluster.kill_broker(2)
    cluster.settle()
    assert cluster.state("a-0").startswith("1/1 isr [1, 3]")
    assert cluster.state("b-0").startswith("1/1 isr [1, 3]")


def test_a_broker_whose_unclean_restart_cannot_be_written_gets_no_request() -> None:
    cluster = without_controller()
    cluster.kill_broker(2)
    cluster.start_broker(2, unclean=True)
    cluster.server.tree.read_only.add(STATE)
    node = cluster.start_controller(CONTROLLER_ID + 1)
    cluster.time.run_for(20_000)
    assert node.is_active and node.controller_epoch == 2
    assert cluster.state("a-0").startswith("2/0 isr [2, 1, 3]")
    assert cluster.state("b-0").startswith("1/2 isr [1, 3]")
    assert 2 not in cluster.told(), "broker 2 would lead a-0 without the records that it lost"
    cluster.server.tree.read_only.clear()
    cluster.start_broker(4)
    cluster.settle()
    assert cluster.state("a-0").startswith("1/2 isr [1, 3]"), "the next change of brokers tries again"
    assert 2 in cluster.told()
