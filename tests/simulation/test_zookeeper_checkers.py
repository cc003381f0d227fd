"""The checkers of ZooKeeper, controllers and complete clusters report small bad histories and accept good ones."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Check, Create, Multi, SetData, WatchType
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import ControllerStamp, LeaderAndIsrPartition, LeaderAndIsrRequest, LiveBroker
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from tests.simulation.admin import Admin
from tests.simulation.checked_cluster import STATE, TOPIC_ID, TP, cluster, elect, prepared, state, violated, write
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.health import moves_only_wait
from tests.simulation.machines import ControllerLife

__all__ = ["cluster"]


OTHER = TopicPartition("nowhere", 0)


# ZooKeeper


def test_a_good_history_of_states_is_not_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    state(cluster, 2, 1, (2, 3), 1)
    assert violated(cluster) == ()


def test_a_controller_epoch_that_skips_or_comes_alone_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    write(cluster, znodes.CONTROLLER_EPOCH, znodes.encode_controller_epoch(3), 2, 9)
    assert "K1" in violated(cluster)


def test_deleting_the_controller_node_of_another_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    write(cluster, znodes.CONTROLLER, None, None, 9, session=2, kind=WatchType.DELETED)
    write(cluster, "/brokers/ids/9", None, None, 10, session=2, kind=WatchType.DELETED)
    assert violated(cluster) == ("K8",)


@pytest.mark.parametrize(
    ("leader", "epoch", "isr", "expected"),
    [
        (2, 2, (2, 3), "R2"),
        (2, 0, (2, 3), "R2"),
        (1, 1, (2, 3), "R11"),
        (1, 1, (1, 9), "R11"),
    ],
)
def test_an_impossible_state_is_reported(
    cluster: SimulatedCluster, leader: int, epoch: int, isr: tuple[int, ...], expected: str
) -> None:
    prepared(cluster)
    state(cluster, leader, epoch, isr, 1)
    assert expected in violated(cluster)


def test_a_leader_from_outside_the_isr_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    state(cluster, 1, 1, (1,), 1)
    state(cluster, 2, 2, (2,), 2)
    assert "R5" in violated(cluster)


def test_a_write_of_a_deposed_controller_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    write(cluster, znodes.CONTROLLER, None, None, 8, kind=WatchType.DELETED)
    elect(cluster, 2, 9, session=2)
    state(cluster, 2, 1, (2, 3), 1, controller_epoch=1, session=1)
    assert violated(cluster) == ("K2",)


def test_dropping_a_replica_before_the_targets_are_in_sync_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    for version, assignment in ((1, ReplicaAssignment((4, 1, 2, 3), (4,), (1,))), (2, ReplicaAssignment((4, 2, 3)))):
        node = znodes.TopicAssignment({0: assignment}, TOPIC_ID)
        write(cluster, znodes.topic_path("t"), znodes.encode_topic_assignment(node), version, 10 + version)
    assert violated(cluster) == ("K9",)


def test_a_node_that_does_not_parse_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    write(cluster, STATE, b'{"version":1,"leader":1,"leader_epoch":1,"controller_epoch":1,"isr":[]}', 1, 9)
    assert violated(cluster) == ("R11",)


def test_a_write_without_its_guard_is_reported_before_it_is_sent(cluster: SimulatedCluster) -> None:
    life = ControllerLife(next(iter(cluster.controllers.values())), 1)
    good = Multi((Check(znodes.CONTROLLER_EPOCH, 3), SetData(STATE, b"", 4)))
    cluster.checks.zookeeper_asked(life, [good])
    assert violated(cluster) == ()
    cluster.checks.zookeeper_asked(life, [SetData(STATE, b"", 4)])
    assert violated(cluster) == ("K2",)
    cluster.checks.zookeeper_asked(life, [Multi((Check(znodes.CONTROLLER_EPOCH, 3), SetData(STATE, b"", -1)))])
    assert violated(cluster) == ("R12", "K2")


# Control


def test_sending_a_state_that_was_not_written_is_reported(cluster: SimulatedCluster) -> None:
    prepared(cluster)
    life = cast(Any, SimpleNamespace(name="c", node=SimpleNamespace(is_active=True, controller_epoch=1)))

    def send(zk_version: int, isr: tuple[int, ...]) -> None:
        partition = LeaderAndIsrPartition(TP, TOPIC_ID, 1, 1, 0, isr, zk_version, (1, 2, 3))
        request = LeaderAndIsrRequest(ControllerStamp(1_000_000, 1, 7), (), (partition,))
        cluster.checks.control_sent(life, LiveBroker(1, ()), request)

    send(0, (1, 2, 3))
    assert violated(cluster) == ()
    send(1, (1, 2))
    assert violated(cluster) == ("K3",)
    life.node.is_active = False
    send(0, (1, 2, 3))
    assert violated(cluster) == ("K3", "K7")


def test_a_late_copy_of_a_deletion_deletes_a_re_created_topic_and_another_is_created(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(cluster)
    admin = Admin(cluster)
    arrivals: list[Any] = []
    asked: list[str] = []
    controller = SimpleNamespace(node=SimpleNamespace(ask=lambda request: asked.append(request.name)))
    monkeypatch.setattr(cluster, "controller_named", lambda _: controller)
    monkeypatch.setattr(cluster.network, "call", lambda _caller, _target, handle, *_: arrivals.append(handle))
    admin.recreate("t")
    late = arrivals.pop()
    late(None)
    assert (asked, arrivals) == (["DeleteTopics"], [])
    cluster.checks.records.topic_ids["t"] = "the-next-topic-of-name"
    late(None)
    assert "the-next-topic-of-name" in cluster.checks.dead_topic_ids
    arrivals.pop()(None)
    assert (asked, arrivals) == (["DeleteTopics"] * 3, []), "deleted, and then re-created"


def test_an_exception_in_a_process_is_reported(cluster: SimulatedCluster) -> None:
    cluster.checks.unexpected("broker-1", ValueError("boom"))
    assert violated(cluster) == ("X1",)


def test_registrations_older_than_the_read_are_reported(cluster: SimulatedCluster) -> None:
    control, audit = cluster.checks.control, cluster.checks.zookeeper
    audit.registrations += [(1, 7), (2, 8), (1, None)]
    control.looked({1: 7}, 1, {})
    control.looked({1: 7}, 1, {1: LiveBroker(1, (), broker_epoch=7), 2: LiveBroker(2, (), broker_epoch=8)})
    assert violated(cluster) == ()
    control.looked({}, 3, {1: LiveBroker(1, (), broker_epoch=7)})
    assert violated(cluster) == ("K11",)


# Complete again


def test_only_reassignments_of_a_damaged_topic_or_that_wait_for_an_operator_may_stay_pending(
    cluster: SimulatedCluster,
) -> None:
    record, tree = prepared(cluster), cluster.server.tree
    for number, path in enumerate(("/admin", znodes.REASSIGN_PARTITIONS)):
        tree.apply(Create(path, b"{"), 1, 199 + number)
    assert not moves_only_wait(cluster)
    tree.apply(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({TP: (2, 3)}), -1), 1, 201)
    assert not moves_only_wait(cluster)
    record.assignment = ReplicaAssignment((2, 3, 1), (), (1,))
    assert not moves_only_wait(cluster)
    record.zk = LeaderAndIsr(1, 0, (1,), 1, 1)
    record.flip(1)
    assert moves_only_wait(cluster)
    tree.apply(SetData(znodes.REASSIGN_PARTITIONS, b"{", -1), 1, 202)
    assert moves_only_wait(cluster)
    tree.apply(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({TP: (2, 3)}), -1), 1, 203)
    record.flipped.clear()
    assert not moves_only_wait(cluster)
    record.harmed = True
    assert moves_only_wait(cluster)
    tree.apply(SetData(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({TP: (2,), OTHER: (2,)}), -1), 1, 204)
    assert not moves_only_wait(cluster)
