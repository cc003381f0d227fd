"""A partition state that ZooKeeper refuses to write stops neither the controller nor the other partitions."""

from dataclasses import replace

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Delete
from paceline.model.admin import NewTopic
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import ControllerConfig
from tests.support.zookeeper.link import Link
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster

PARTITIONS = 40
CONFIG = ControllerConfig(CONTROLLER_ID, auto_leader_rebalance_enable=False)


def cluster_of(config: ControllerConfig) -> Cluster:
    """Every partition led by broker 1, followed by 2; the state of ``a-7`` cannot be written."""
    cluster = Cluster(config)
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),) * PARTITIONS))
    cluster.server.tree.read_only.add(znodes.partition_state_path(TopicPartition("a", 7)))
    return cluster


@pytest.mark.parametrize("limit", [1_000, 2])
def test_a_state_that_zookeeper_refuses_to_write_does_not_stop_the_controller(limit: int) -> None:
    cluster = cluster_of(replace(CONFIG, zookeeper_multi_max_operations=limit))
    cluster.kill_broker(1)
    cluster.settle()
    others = {cluster.state(f"a-{partition}").partition(" ce")[0] for partition in range(PARTITIONS) if partition != 7}
    assert others == {"2/1 isr [2]"}, "the other partitions have a new leader"
    assert cluster.state("a-7").startswith("1/0 isr [1, 2]")
    cluster.server.tree.read_only.clear()
    cluster.start_broker(3)
    cluster.settle()
    assert cluster.state("a-7").startswith("2/1 isr [2]"), "the next event tries the election again"


def test_a_state_that_zookeeper_refuses_to_create_does_not_delay_other_partitions() -> None:
    """The node of a topic that another tool has created may allow only this tool to create nodes below it."""
    cluster = cluster_of(CONFIG)
    cluster.server.tree.read_only = {znodes.topic_partitions_path("foreign")}
    cluster.create_topic_node("foreign", [(1, 2), (2, 1)])
    cluster.create_topic_node("own", [(1, 2)])
    cluster.settle()
    assert cluster.state("own-0").startswith("1/0 isr [1, 2]")
    cluster.kill_broker(1)
    cluster.settle()
    assert {cluster.state(f"a-{partition}").partition(" ce")[0] for partition in range(PARTITIONS)} == {"2/1 isr [2]"}
    cluster.server.tree.read_only.clear()
    cluster.start_broker(1)
    cluster.settle()
    assert cluster.state("foreign-0").startswith("1/0 isr [1, 2]"), "the next event tries again"


def test_an_isr_that_zookeeper_refuses_to_write_does_not_stop_the_controller() -> None:
    cluster = cluster_of(CONFIG)
    cluster.kill_broker(2)
    cluster.settle()
    others = {cluster.state(f"a-{partition}").partition(" ce")[0] for partition in range(PARTITIONS) if partition != 7}
    assert others == {"1/1 isr [1]"}
    assert cluster.state("a-7").startswith("1/0 isr [1, 2]")
    (result,) = cluster.reassign({TopicPartition("a", 7): (1,)})
    assert result.error is not None and "OTHER" in str(result.error), "the reassignment needs the state, too"
    assert cluster.controller.is_active


class SlowLink(Link):
    """Requests take a millisecond, so that endless attempts do not stop the virtual time."""

    def request_delay_ms(self) -> float:
        return 1.0


def test_a_journal_that_zookeeper_refuses_to_create_again_ends_the_attempts_of_an_election() -> None:
    cluster = Cluster(CONFIG)
    cluster.start_broker(1, 2)
    cluster.start_controller(link=SlowLink())
    cluster.time.run_for(1_000)
    cluster.create(NewTopic("a", assignments=((1, 2),) * PARTITIONS))
    cluster.zk(Delete(znodes.CONTROLLER_JOURNAL))
    cluster.server.tree.read_only.add(znodes.CONTROLLER_JOURNAL)
    cluster.kill_broker(1)
    cluster.time.run_for(5_000)
    assert cluster.controller.is_idle, "the election ends"
    cluster.server.tree.read_only.clear()
    cluster.start_broker(3)
    cluster.time.run_for(5_000)
    states = {cluster.state(f"a-{partition}").partition(" ce")[0] for partition in range(PARTITIONS)}
    assert states == {"2/1 isr [2]"}, "the next event tries the election again"
    assert cluster.exists(znodes.CONTROLLER_JOURNAL)
