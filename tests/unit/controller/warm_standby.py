"""A controller with a warm standby, the death of a controller, and the states that the two know."""

from dataclasses import replace

from paceline.controller.context import ControllerContext
from paceline.controller.node import ControllerNode
from paceline.coordination import znodes
from paceline.coordination.interface import GetData
from paceline.model.admin import NewTopic
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.settings import ControllerConfig
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster

STANDBY = CONTROLLER_ID + 1
THIRD = CONTROLLER_ID + 2
PARTITIONS = 30


def pair(config: ControllerConfig | None = None) -> tuple[Cluster, ControllerNode]:
    """Three brokers, one topic, an active controller and a warm standby."""
    cluster = Cluster(config)
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),) * PARTITIONS), NewTopic("b", assignments=((2, 3),)))
    standby = cluster.start_controller(STANDBY)
    assert standby.is_warm
    return cluster, standby


def die(cluster: Cluster, controller_id: int = CONTROLLER_ID) -> None:
    """End a controller's process; its session ends at once, too."""
    client = cluster.controller_clients[controller_id]
    session_id = client.session_id
    node = cluster.controllers.pop(controller_id)
    client.crash()
    node.stop()
    cluster.server.expire(session_id)
    cluster.settle()


def context(node: ControllerNode) -> ControllerContext:
    return node._components.context


def in_zookeeper(cluster: Cluster) -> dict[TopicPartition, LeaderAndIsr]:
    found = {}
    for path in cluster.server.tree.paths():
        if path.endswith("/state"):
            _, _, _, topic, _, partition, _ = path.split("/")
            response = cluster.zk(GetData(path))
            assert response.stat is not None
            state = znodes.decode_partition_state(path, response.data, response.stat.version)
            found[TopicPartition(topic, int(partition))] = state.leader_and_isr
    return found


def knows_what_is_there(cluster: Cluster, node: ControllerNode) -> bool:
    """Whether states in memory equal those in ZooKeeper; the controller epoch may differ where nothing was written."""
    epoch = node.controller_epoch
    known = {p: replace(state, controller_epoch=epoch) for p, state in context(node).leadership.items()}
    return known == {p: replace(state, controller_epoch=epoch) for p, state in in_zookeeper(cluster).items()}
