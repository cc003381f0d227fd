"""A leader epoch that rises by too much is confirmed in ZooKeeper: docs/protocol/replication.md#request-fences."""

from collections.abc import Callable, Mapping

import pytest

from paceline.broker.control.leader_epoch_fence import MAX_UNCONFIRMED_RISE, LeaderEpochFence
from paceline.broker.control.request_fence import ControlRequestDeferredError
from paceline.coordination.znodes.states import MAX_LEADER_EPOCH
from paceline.model.control import LeaderAndIsrRequest
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import NO_EPOCH, TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster

OTHER = TopicPartition("orders", 1)
FORGED = 2**31 - 2


def test_a_forged_leader_epoch_is_refused_and_the_next_leader_is_followed() -> None:
    cluster = BrokerCluster((1, 2))
    cluster.decide(1, 0, (1, 2), is_new=True)
    forged = cluster.partition(2, FORGED, (2,))
    response = cluster.send(1, forged, cluster.partition(1, 0, (1,), tp=OTHER, is_new=True))
    assert response.partition_errors == {TP: ErrorCode.UNKNOWN_LEADER_EPOCH, OTHER: ErrorCode.NONE}
    partition = cluster[1].node.replica_manager.hosted.online[TP]
    assert partition.is_leader and partition.leader_epoch == 0
    refused = [change.cause for change in cluster[1].said(StateChangeKind.CONTROL_REFUSED)]
    assert refused == [f"leader epoch {FORGED} of {TP} is not in ZooKeeper, which has 0"]
    cluster.decide(2, 1, (1, 2))
    assert cluster[1].node.replica_manager.hosted.online[TP].leader_epoch == 1


def test_no_partition_of_the_request_is_applied_before_zookeeper_has_answered() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    jump = MAX_UNCONFIRMED_RISE + 1
    cluster.write_state(LeaderAndIsr(1, jump, (1,), 0, 0))
    request = LeaderAndIsrRequest(
        cluster.stamp(1), (), (cluster.partition(1, jump, (1,)), cluster.partition(1, 0, (1,), tp=OTHER, is_new=True))
    )
    with pytest.raises(ControlRequestDeferredError, match=str(jump)):
        cluster[1].node.handle_control(request)
    hosted = cluster[1].node.replica_manager.hosted.online
    assert OTHER not in hosted and hosted[TP].leader_epoch == 0
    response = cluster.handle(1, request)
    assert response.partition_errors == {TP: ErrorCode.NONE, OTHER: ErrorCode.NONE}
    assert hosted[TP].leader_epoch == jump


def test_a_high_epoch_of_a_partition_without_a_state_node_is_refused() -> None:
    cluster = BrokerCluster((1,))
    response = cluster.send(1, cluster.partition(1, MAX_LEADER_EPOCH, (1,)))
    assert response.partition_errors == {TP: ErrorCode.UNKNOWN_LEADER_EPOCH}
    assert TP not in cluster[1].node.replica_manager.hosted.online


def test_a_restarted_broker_accepts_a_high_epoch_that_is_in_zookeeper() -> None:
    cluster = BrokerCluster((1,))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster.decide(1, 5_000, (1,))
    cluster.restart(1)
    cluster.time.run_for(100)
    cluster.decide(1, 5_001, (1,))
    assert cluster[1].node.replica_manager.hosted.online[TP].leader_epoch == 5_001


def test_a_small_rise_is_accepted_without_reading_zookeeper() -> None:
    fence = LeaderEpochFence(lambda _wanted, _on_read: pytest.fail("asked ZooKeeper"))
    assert fence.refuted({TP: (MAX_UNCONFIRMED_RISE + 7, 7), OTHER: (0, NO_EPOCH)}) == {}


def test_an_epoch_that_could_not_be_read_is_read_again_and_an_answer_counts_once() -> None:
    answers: list[Callable[[Mapping[TopicPartition, int] | None], None]] = []
    fence = LeaderEpochFence(lambda _wanted, on_read: answers.append(on_read))
    for answer in None, {TP: 4_000}:
        with pytest.raises(ControlRequestDeferredError):
            fence.refuted({TP: (5_000, 0)})
        waited: list[bool] = []
        fence.when_read(lambda heard=waited: heard.append(True))  # type: ignore[misc]
        assert not waited
        answers.pop()(answer)
        assert waited == [True]
    assert fence.refuted({TP: (5_000, 0)}) == {TP: 4_000}
    with pytest.raises(ControlRequestDeferredError):
        fence.refuted({TP: (5_000, 0)})
    answers.pop()({TP: 5_000})
    assert fence.refuted({TP: (5_000, 0)}) == {}


def test_zookeeper_is_read_again_for_a_later_leader_when_the_deferred_request_was_not_repeated() -> None:
    epochs = iter([5_000, 5_001])
    fence = LeaderEpochFence(lambda wanted, on_read: on_read(dict.fromkeys(wanted, next(epochs))))
    with pytest.raises(ControlRequestDeferredError):
        fence.refuted({TP: (5_000, NO_EPOCH)})
    with pytest.raises(ControlRequestDeferredError):
        fence.refuted({TP: (5_001, NO_EPOCH)})
    assert fence.refuted({TP: (5_001, NO_EPOCH)}) == {}
