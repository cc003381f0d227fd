"""Control requests are refused before the broker is registered, and with a controller epoch that is not in ZooKeeper.

Source: docs/protocol/replication.md#request-fences.
"""

from collections.abc import Callable

import pytest

from paceline.broker.control.request_fence import ControlRequestDeferredError, RequestFence
from paceline.model.control import (
    ControllerStamp,
    LeaderAndIsrRequest,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from paceline.model.errors import ErrorCode
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster


def test_control_requests_are_refused_before_the_first_registration() -> None:
    fence = RequestFence(lambda _on_read: None)
    with pytest.raises(ControlRequestDeferredError):
        fence.check(ControllerStamp(1_000_000, 1, 29), -1)
    fence.confirm(1)
    assert fence.check(ControllerStamp(1_000_000, 1, 30), 30) is ErrorCode.NONE


def test_a_restarted_broker_refuses_a_leader_and_isr_for_its_earlier_registration() -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    stamp = cluster.stamp(2)
    cluster[2].crash()
    again = cluster.boot(2)  # on an empty disk, while the old registration still exists
    cluster.time.run_for(100)
    assert again.node.broker_epoch == -1
    with pytest.raises(ControlRequestDeferredError):
        again.node.handle_control(LeaderAndIsrRequest(stamp, (), (cluster.partition(2, 1, (2, 3)),)))
    assert TP not in again.node.replica_manager.hosted.online


def cluster_with_a_controller() -> BrokerCluster:
    """One broker that knows from ZooKeeper that the controller epoch is 1."""
    cluster = BrokerCluster((1,))
    cluster.set_controller_epoch(1)
    cluster[1].node.handle_control(LeaderAndIsrRequest(cluster.stamp(1), (), ()))
    cluster.time.run_for(10)
    return cluster


def test_a_request_with_a_forged_controller_epoch_is_not_applied_and_the_real_controller_is_obeyed() -> None:
    cluster = cluster_with_a_controller()
    node = cluster[1].node
    known = node.metadata.snapshot
    assert known.brokers
    forged = UpdateMetadataRequest(cluster.stamp(1, controller_epoch=2), (), ())
    for _ in range(2):
        with pytest.raises(ControlRequestDeferredError):
            node.handle_control(forged)
        assert cluster.send(1).error is ErrorCode.NONE
        cluster.time.run_for(10)
    assert node.metadata.snapshot is known
    assert cluster.send(1, cluster.partition(1, 0, (1,), is_new=True)).error is ErrorCode.NONE
    refused = cluster[1].said(StateChangeKind.CONTROL_REFUSED)
    assert {one.cause for one in refused} == {"controller epoch 2 is not in ZooKeeper"}


def test_the_next_controller_is_obeyed_when_zookeeper_has_confirmed_its_epoch() -> None:
    cluster = cluster_with_a_controller()
    node = cluster[1].node
    cluster.set_controller_epoch(2)
    next_controller = LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=2), (), ())
    with pytest.raises(ControlRequestDeferredError):
        node.handle_control(next_controller)
    read: list[bool] = []
    node.when_epochs_read(lambda: read.append(True))
    cluster.time.run_until(lambda: bool(read), 1_000)
    assert node.handle_control(next_controller).error is ErrorCode.NONE
    node.when_epochs_read(lambda: read.append(True))
    assert read == [True, True]
    earlier = LeaderAndIsrRequest(cluster.stamp(1, controller_epoch=1), (), ())
    assert node.handle_control(earlier).error is ErrorCode.STALE_CONTROLLER_EPOCH


@pytest.mark.parametrize("delete", [True, False])
def test_stop_replica_of_an_older_controller_neither_stops_nor_deletes(delete: bool) -> None:
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.set_controller_epoch(2)
    assert cluster.send(2).error is ErrorCode.NONE
    manager = cluster[2].node.replica_manager
    state = StopReplicaPartition(TP, "topic-id-of-orders-one", 0, delete)
    request = StopReplicaRequest(cluster.stamp(2, controller_epoch=1), (state,))
    assert cluster[2].node.handle_control(request).error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert TP in manager.hosted.online and manager.logs.get(TP) is not None
    assert manager.fetchers.state(TP) is not None


def test_an_epoch_that_could_not_be_read_is_read_again() -> None:
    answers: list[Callable[[int | None], None]] = []
    refuted: list[int] = []
    fence = RequestFence(answers.append, refuted.append)
    fence.confirm(5)
    for answer in (None, 5, 6):
        with pytest.raises(ControlRequestDeferredError):
            fence.check(ControllerStamp(1_000_000, 6, 30), 30)
        answers.pop()(answer)
    assert fence.check(ControllerStamp(1_000_000, 6, 30), 30) is ErrorCode.NONE
    assert (fence.confirmed_epoch, refuted, answers) == (6, [6], [])
