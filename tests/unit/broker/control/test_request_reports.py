"""Answers to control requests are reported for partitions that a watcher names, with both epochs of a refusal."""

import pytest

from paceline.broker.control.request_fence import ControlRequestDeferredError
from paceline.model.control import LeaderAndIsrRequest, StopReplicaPartition, StopReplicaRequest, UpdateMetadataRequest
from paceline.model.state_change import StateChange, StateChangeKind
from tests.support.broker_cluster import CONTROLLER_ID, TP, BrokerCluster


@pytest.fixture
def cluster() -> BrokerCluster:
    """Partition 0 of orders in leader epoch 3."""
    cluster = BrokerCluster((1, 2))
    cluster.decide(1, 3, (1, 2), is_new=True)
    cluster.time.run_for(50)
    return cluster


def reported(cluster: BrokerCluster) -> list[StateChange]:
    return cluster[2].said(StateChangeKind.CONTROL_REQUEST)


def test_nothing_is_reported_without_a_watcher(cluster: BrokerCluster) -> None:
    assert not reported(cluster)


def test_an_applied_request_is_reported_with_its_decision(cluster: BrokerCluster) -> None:
    cluster[2].watched.add(TP)
    cluster.send(2, cluster.partition(1, 4, (1,)), cluster.partition(1, 4, (1,), tp=TP._replace(partition=1)))
    (change,) = reported(cluster)
    assert (change.topic_partition, change.leader, change.leader_epoch, change.isr) == (TP, 1, 4, (1,))
    assert (change.replica, change.controller_epoch) == (2, 1)
    assert change.answer is not None
    assert (change.answer.request, change.answer.controller_id) == ("LeaderAndIsr", CONTROLLER_ID)
    assert (change.answer.error, change.answer.known_leader_epoch) == (None, None)
    cluster[2].watched.clear()
    cluster.send(2, cluster.partition(1, 5, (1,)))
    assert reported(cluster) == [change]


def test_an_old_leader_epoch_is_reported_with_both_leader_epochs(cluster: BrokerCluster) -> None:
    cluster[2].watched.add(TP)
    cluster.send(2, cluster.partition(1, 2, (1, 2)))
    stop = StopReplicaPartition(TP, None, 2, True)
    cluster[2].node.handle_control(StopReplicaRequest(cluster.stamp(2), (stop,)))
    leader_and_isr, stopped = reported(cluster)
    assert leader_and_isr.answer is not None and stopped.answer is not None
    assert (leader_and_isr.leader_epoch, leader_and_isr.answer.known_leader_epoch) == (2, 3)
    assert leader_and_isr.answer.error == "STALE_CONTROLLER_EPOCH"
    assert (stopped.answer.request, stopped.answer.error) == ("StopReplica", "FENCED_LEADER_EPOCH")
    assert (stopped.leader, stopped.cause) == (None, "deletes the replica")


def test_a_deposed_controller_is_reported_with_both_controller_epochs(cluster: BrokerCluster) -> None:
    cluster[2].watched.add(TP)
    cluster.set_controller_epoch(9)
    claim = LeaderAndIsrRequest(cluster.stamp(2), (), (cluster.partition(1, 4, (1,)),))
    with pytest.raises(ControlRequestDeferredError):
        cluster[2].node.handle_control(claim)
    cluster.time.run_for(50)
    cluster[2].node.handle_control(LeaderAndIsrRequest(cluster.stamp(2, 1), (), (cluster.partition(1, 5, (1,)),)))
    deferred, refused = (change.answer for change in reported(cluster))
    assert deferred is not None and refused is not None
    assert (deferred.error, deferred.known_controller_epoch) == ("BROKER_NOT_AVAILABLE", 1)
    assert (refused.error, refused.known_controller_epoch) == ("STALE_CONTROLLER_EPOCH", 9)
    assert reported(cluster)[1].controller_epoch == 1


def test_a_request_for_an_earlier_registration_is_reported_with_both_broker_epochs(cluster: BrokerCluster) -> None:
    stamp = cluster.stamp(2)
    again = cluster.restart(2)
    again.watched.add(TP)
    again.node.handle_control(LeaderAndIsrRequest(stamp, (), (cluster.partition(1, 4, (1,)),)))
    (change,) = reported(cluster)
    assert change.answer is not None and change.answer.error == "STALE_BROKER_EPOCH"
    assert (change.broker_epoch, change.answer.known_broker_epoch) == (stamp.broker_epoch, again.node.broker_epoch)


def test_new_metadata_is_reported(cluster: BrokerCluster) -> None:
    cluster[2].watched.add(TP)
    cluster.update_metadata()
    assert [change.answer.request for change in reported(cluster) if change.answer] == ["UpdateMetadata"]
    empty = UpdateMetadataRequest(cluster.stamp(2), cluster.live(), ())
    cluster[2].node.handle_control(empty)
    assert len(reported(cluster)) == 1
