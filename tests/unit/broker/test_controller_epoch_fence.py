"""Which control requests a broker takes: none before it is registered, and no controller epoch that nobody has."""

from collections.abc import Callable

import pytest

from paceline.broker.control.controller_epoch_fence import ControllerEpochFence, ControlRequestDeferredError
from paceline.model.control import ControllerStamp, LeaderAndIsrRequest
from paceline.model.errors import ErrorCode
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster


def test_nothing_is_taken_before_the_first_registration() -> None:
    fence = ControllerEpochFence(lambda _on_read: None)
    with pytest.raises(ControlRequestDeferredError):
        fence.check(ControllerStamp(1_000_000, 1, 29), -1)
    assert fence.highest_epoch == 0
    assert fence.check(ControllerStamp(1_000_000, 1, 30), 30) is ErrorCode.NONE


def test_a_broker_back_before_its_old_session_ends_is_not_made_leader_by_a_request_for_its_last_life() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    stamp = cluster.stamp(2)
    cluster[2].crash()
    again = cluster.boot(2)  # on an empty disk, while the old registration still stands
    cluster.time.run_for(100)
    assert again.node.broker_epoch == -1
    with pytest.raises(ControlRequestDeferredError):
        again.node.handle_control(LeaderAndIsrRequest(stamp, (), (cluster.partition(2, 1, (2, 3)),)))
    assert TP not in again.node.replica_manager.partitions


def cluster_with_a_controller() -> BrokerCluster:
    """One broker that knows from ZooKeeper that the controller epoch is 1."""
    cluster = BrokerCluster((1,))
    cluster.set_controller_epoch(1)
    cluster[1].node.handle_control(LeaderAndIsrRequest(cluster.stamp(1), (), ()))
    cluster.time.run_for(10)
    return cluster


def test_one_forged_next_epoch_does_not_lock_the_controller_out() -> None:
    cluster = cluster_with_a_controller()
    node = cluster[1].node
    forged = LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=2), (), ())
    assert node.handle_control(forged).error is ErrorCode.NONE
    with pytest.raises(ControlRequestDeferredError):
        cluster.send(1, cluster.partition(1, 0, (1,), is_new=True))
    cluster.time.run_for(10)
    assert cluster.send(1, cluster.partition(1, 0, (1,), is_new=True)).error is ErrorCode.NONE
    (refused,) = cluster[1].said(StateChangeKind.CONTROL_REFUSED)
    assert refused.cause == "controller epoch 2 is not in ZooKeeper; forgotten"


def test_epochs_that_rise_one_by_one_without_zookeeper_lead_nowhere() -> None:
    cluster = cluster_with_a_controller()
    node = cluster[1].node
    node.handle_control(LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=2), (), ()))
    for epoch in (3, 2, 3, 4):
        with pytest.raises(ControlRequestDeferredError):
            node.handle_control(LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=epoch), (), ()))
        cluster.time.run_for(10)
    assert cluster.send(1, cluster.partition(1, 0, (1,), is_new=True)).error is ErrorCode.NONE


def test_the_next_controller_is_heard_at_once_and_after_a_forgery_once_zookeeper_knows_it() -> None:
    cluster = cluster_with_a_controller()
    node = cluster[1].node
    cluster.set_controller_epoch(2)
    next_controller = LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=2), (), ())
    assert node.handle_control(next_controller).error is ErrorCode.NONE
    cluster.time.run_for(10)
    assert (
        node.handle_control(LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=1), (), ())).error
        is ErrorCode.STALE_CONTROLLER_EPOCH
    )
    node.handle_control(LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=3), (), ()))
    cluster.time.run_for(10)
    cluster.set_controller_epoch(3)
    with pytest.raises(ControlRequestDeferredError):
        node.handle_control(LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=3), (), ()))
    cluster.time.run_for(10)
    assert (
        node.handle_control(LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=3), (), ())).error is ErrorCode.NONE
    )
    cluster.set_controller_epoch(4)
    assert (
        node.handle_control(LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=4), (), ())).error is ErrorCode.NONE
    )


def test_an_answer_older_than_the_epoch_it_is_about_refutes_nothing() -> None:
    answers: list[Callable[[int | None], None]] = []
    refuted: list[int] = []
    fence = ControllerEpochFence(answers.append, refuted.append)
    fence.confirm(5)
    with pytest.raises(ControlRequestDeferredError):
        fence.check(ControllerStamp(1_000_000, 900, 30), 30)
    assert fence.check(ControllerStamp(1_000_000, 6, 30), 30) is ErrorCode.NONE
    answers.pop()(5)
    assert (fence.highest_epoch, refuted, len(answers)) == (6, [], 1)
    answers.pop()(None)
    assert fence.check(ControllerStamp(1_000_000, 6, 30), 30) is ErrorCode.NONE
    answers.pop()(6)
    assert (fence.highest_epoch, fence.confirmed_epoch, refuted, answers) == (6, 6, [], [])
