"""A standby replaces a controller whose process is dead before the ZooKeeper session of that process ends."""

from paceline.controller.events import ActiveControllerDead
from paceline.coordination import znodes
from paceline.coordination.interface import GetData
from paceline.model.admin import NewTopic
from tests.unit.controller.cluster import CONTROLLER_ID, Cluster

STANDBY = CONTROLLER_ID + 1
THIRD = CONTROLLER_ID + 2


def started(*standbys: int) -> Cluster:
    cluster = Cluster()
    cluster.start_broker(1, 2)
    cluster.start_controller()
    cluster.create(NewTopic("a", assignments=((1, 2),)))
    for controller_id in standbys:
        assert cluster.start_controller(controller_id).is_warm
    return cluster


def epoch(cluster: Cluster) -> int:
    return int(cluster.zk(GetData(znodes.CONTROLLER_EPOCH)).data or 0)


def test_a_standby_takes_over_when_the_active_controller_refuses_connects() -> None:
    cluster = started(STANDBY)
    cluster.streams.refuse(CONTROLLER_ID)
    cluster.settle()
    assert cluster.controllers[STANDBY].is_active
    assert (epoch(cluster), cluster.controllers[STANDBY].controller_epoch) == (2, 2)
    assert not cluster.controllers[CONTROLLER_ID].is_active, "its watch shows that another controller is active"


def test_one_of_two_standbys_takes_over() -> None:
    cluster = started(STANDBY, THIRD)
    cluster.streams.refuse(CONTROLLER_ID)
    cluster.settle()
    assert epoch(cluster) == 2, "the second one found another epoch"
    assert [c for c, node in sorted(cluster.controllers.items()) if node.is_active] in ([STANDBY], [THIRD])


def test_a_standby_acts_once_per_epoch() -> None:
    cluster = started(STANDBY)
    node = cluster.controllers[STANDBY]
    cluster.streams.refuse(CONTROLLER_ID)
    cluster.settle()
    cluster.streams.refuse(CONTROLLER_ID)
    cluster.settle()
    assert node.is_active and epoch(cluster) == 2


def test_evidence_about_an_earlier_epoch_replaces_no_controller() -> None:
    cluster = started(STANDBY, THIRD)
    cluster.streams.refuse(CONTROLLER_ID)
    cluster.settle()
    active = next(controller_id for controller_id, node in cluster.controllers.items() if node.is_active)
    other = STANDBY + THIRD - active
    cluster.controllers[other]._enqueue(ActiveControllerDead(active, 1))
    cluster.settle()
    assert epoch(cluster) == 2 and cluster.controllers[active].is_active
    cluster.controllers[other]._enqueue(ActiveControllerDead(CONTROLLER_ID, 2))
    cluster.settle()
    assert epoch(cluster) == 2, "the dead controller is no longer active"
