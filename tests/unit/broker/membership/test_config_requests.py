"""A configuration change through a controller takes effect on running brokers."""

import random
from collections.abc import Callable
from typing import Any

from paceline.controller.admin.admin_requests import IncrementalAlterConfigs
from paceline.controller.admin.admin_values import (
    ConfigAlteration,
    ConfigKeyChange,
    ConfigOperation,
    ConfigResource,
    ResourceType,
)
from paceline.controller.node import ControllerNode
from paceline.coordination import znodes
from paceline.coordination.interface import Create
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import ControlRequest, ControlResponse, LiveBroker
from paceline.model.settings import ControllerConfig
from tests.support.broker_cluster import CONTROLLER_ID, TP, BrokerCluster
from tests.support.no_standbys import NoStandbyTransport
from tests.support.zookeeper.client import MemoryZooKeeper


class Unreachable:
    """A controller's transport whose requests never arrive: the test acts for the brokers."""

    def send(
        self,
        broker: LiveBroker,
        request: ControlRequest,
        timeout_ms: int,
        on_done: Callable[[ControlResponse | Exception], None],
    ) -> None:
        pass

    def close(self, broker_id: int) -> None:
        pass


def test_a_configuration_change_through_the_controller_is_applied_by_every_broker() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    assignment = znodes.TopicAssignment({TP.partition: ReplicaAssignment((1, 2, 3))}, "x" * 22)
    for path in znodes.PERSISTENT_NODES:
        for step in [*znodes.parent_paths(path), path]:
            cluster.zk(Create(step))
    cluster.zk(Create(znodes.topic_path(TP.topic), znodes.encode_topic_assignment(assignment)))
    client = MemoryZooKeeper(cluster.server, cluster.time)
    node = ControllerNode(
        ControllerConfig(CONTROLLER_ID, auto_leader_rebalance_enable=False),
        [],
        cluster.time,
        PatientZooKeeper(client),
        Unreachable(),
        random.Random(1),
        lambda change: None,
        standby_transport=NoStandbyTransport(),
    )
    node.start()
    cluster.time.run_until(lambda: node.is_active, 1_000)
    resource = ConfigResource(ResourceType.TOPIC, TP.topic)
    answers: list[Any] = []
    for operation, value, expected in ((ConfigOperation.SET, "3", 3), (ConfigOperation.DELETE, None, 1)):
        changes = (ConfigKeyChange("min.insync.replicas", operation, value),)
        alteration = ConfigAlteration(resource, changes)
        node.ask(IncrementalAlterConfigs((alteration,), False, reply=answers.append))
        cluster.time.run_until(
            lambda wanted=expected: (
                [cluster[one].log().config.min_insync_replicas for one in (1, 2, 3)]  # type: ignore[misc]
                == [wanted] * 3
            ),
            1_000,
        )
    assert [result.error for answer in answers for result in answer] == [None, None]
