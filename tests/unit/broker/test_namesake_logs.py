"""A log whose topic is gone must not bar the way to a new topic of the same name for ever."""

from dataclasses import replace

import pytest

from paceline.model.control import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    StopReplicaPartition,
    StopReplicaRequest,
)
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import EPOCH_DURING_DELETE, NO_LEADER, TopicPartition
from tests.support.broker_cluster import TP, BrokerCluster

OLD_ID = "topic-id-of-orders-one"
NEW_ID = "the-id-of-the-new-topic"
NEW = LeaderAndIsrPartition(TP, NEW_ID, 1, leader=1, leader_epoch=0, isr=(1, 3), zk_version=0, replicas=(1, 3))


@pytest.fixture
def cluster() -> BrokerCluster:
    """Broker 3 has restarted with a log of a topic that was deleted while it was away."""
    found = BrokerCluster()
    found.decide(1, 4, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    found[1].produce(b"a")
    found.until_in_sync(1, 2, 3)
    found.restart(3)
    return found


def decide(cluster: BrokerCluster, state: LeaderAndIsrPartition) -> ErrorCode:
    request = LeaderAndIsrRequest(cluster.stamp(3), tuple(cluster.live()), (state,))
    return cluster.handle(3, request).partition_errors[TP]


def test_the_old_log_is_set_aside_and_kept_and_the_new_topic_begins(cluster: BrokerCluster) -> None:
    assert decide(cluster, NEW) is ErrorCode.NONE
    (path,) = cluster[3].logs.set_aside
    assert path.endswith("-stray") and cluster[3].files.exists(path)
    assert cluster[3].log().topic_id == NEW_ID and cluster[3].log().log_end_offset == 0


def test_a_log_that_is_hosted_stays_for_the_request_may_be_late(cluster: BrokerCluster) -> None:
    assert decide(cluster, NEW) is ErrorCode.NONE
    late = replace(NEW, topic_id=OLD_ID, leader_epoch=9)
    assert decide(cluster, late) is ErrorCode.INCONSISTENT_TOPIC_ID
    assert cluster[3].log().topic_id == NEW_ID


@pytest.mark.parametrize("state", [replace(NEW, topic_id=None), replace(NEW, replicas=(1, 2), isr=(1, 2))])
def test_without_an_id_or_an_assignment_nothing_is_touched(
    cluster: BrokerCluster, state: LeaderAndIsrPartition
) -> None:
    decide(cluster, state)
    assert cluster[3].logs.set_aside == []


def test_what_an_earlier_registration_hosted_gives_way(cluster: BrokerCluster) -> None:
    broker, old = cluster[3], replace(NEW, topic_id=OLD_ID, leader_epoch=9)
    assert decide(cluster, old) is ErrorCode.NONE
    registered = broker.node.broker_epoch
    cluster.server.expire(broker.zookeeper.session_id)
    cluster.time.run_until(lambda: broker.node.ready and broker.node.broker_epoch > registered, 60_000)
    cluster.update_metadata()
    assert decide(cluster, NEW) is ErrorCode.NONE, "it slept while its replica moved away and the topic was made anew"
    (path,) = broker.logs.set_aside
    assert path.endswith("-stray") and broker.files.exists(path)
    assert broker.log().topic_id == NEW_ID and broker.log().log_end_offset == 0
    assert decide(cluster, replace(old, leader_epoch=10)) is ErrorCode.INCONSISTENT_TOPIC_ID, "this one may be late"


def test_a_late_repetition_does_not_bring_a_deleted_topic_back(cluster: BrokerCluster) -> None:
    broker = cluster[3]
    assert decide(cluster, NEW) is ErrorCode.NONE
    deleted = StopReplicaPartition(TP, NEW_ID, EPOCH_DURING_DELETE, delete_partition=True)
    stop = StopReplicaRequest(cluster.stamp(3), (deleted,))
    assert broker.node.handle_control(stop).partition_errors[TP] is ErrorCode.NONE
    assert decide(cluster, NEW) is ErrorCode.INCONSISTENT_TOPIC_ID
    assert TP not in broker.node.replica_manager.partitions and broker.logs.get(TP) is None
    assert decide(cluster, replace(NEW, topic_id="the-id-of-the-next-topic")) is ErrorCode.NONE


def test_a_replica_that_moved_away_comes_back_in_a_later_epoch_only(cluster: BrokerCluster) -> None:
    assert decide(cluster, NEW) is ErrorCode.NONE
    moved = StopReplicaPartition(TP, NEW_ID, 4, delete_partition=True)
    assert cluster[3].node.handle_control(StopReplicaRequest(cluster.stamp(3), (moved,))).error is ErrorCode.NONE
    for late in (NEW, replace(NEW, leader_epoch=4)):
        assert decide(cluster, late) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert TP not in cluster[3].node.replica_manager.partitions and cluster[3].logs.get(TP) is None
    assert decide(cluster, replace(NEW, leader_epoch=5)) is ErrorCode.NONE


@pytest.mark.parametrize("leader", [1, NO_LEADER])
def test_what_an_earlier_controller_told_of_gives_way_to_a_later_ones_topic(
    cluster: BrokerCluster, leader: int
) -> None:
    broker, old = cluster[3], replace(NEW, topic_id=OLD_ID, leader_epoch=9, leader=leader)
    assert decide(cluster, old) is ErrorCode.NONE
    assert decide(cluster, NEW) is ErrorCode.INCONSISTENT_TOPIC_ID, "of the same controller, so it may be late"
    cluster.set_controller_epoch(cluster.controller_epoch + 1)
    assert decide(cluster, NEW) is ErrorCode.NONE, "its node could not be read when the topic was deleted"
    (path,) = broker.logs.set_aside
    assert path.endswith("-stray") and broker.files.exists(path)
    assert broker.log().topic_id == NEW_ID and broker.log().log_end_offset == 0


def test_a_replica_that_is_left_of_a_topic_being_deleted_answers_how_it_is(cluster: BrokerCluster) -> None:
    other = TopicPartition(TP.topic, TP.partition + 1)
    states = (NEW, replace(NEW, topic_partition=other))
    request = LeaderAndIsrRequest(cluster.stamp(3), tuple(cluster.live()), states)
    assert set(cluster[3].node.handle_control(request).partition_errors.values()) == {ErrorCode.NONE}
    deleted = StopReplicaPartition(TP, NEW_ID, EPOCH_DURING_DELETE, delete_partition=True)
    cluster[3].node.handle_control(StopReplicaRequest(cluster.stamp(3), (deleted,)))
    asked = replace(NEW, topic_partition=other, leader=NO_LEADER, leader_epoch=1)
    request = LeaderAndIsrRequest(cluster.stamp(3), tuple(cluster.live()), (asked,))
    assert cluster[3].node.handle_control(request).partition_errors[other] is ErrorCode.NONE


def test_an_old_log_in_a_failed_directory_has_somebody_else_lead_the_new_topic() -> None:
    cluster = BrokerCluster((1,))
    broker = cluster.boot(3, dirs=("/data", "/more"))
    cluster.time.run_until(lambda: broker.node.ready, 10_000)
    cluster.decide(3, 4, (3,), (3,), is_new=True)
    cluster.time.run_for(10)
    broker.produce(b"a")
    broker.crash()
    cluster.server.expire(broker.zookeeper.session_id)
    broker = cluster.boot(3, broker.files, dirs=("/data", "/more"))
    cluster.time.run_until(lambda: broker.node.ready, 10_000)
    broker.log().directory.fail(OSError("gone"))
    broker.node.replica_manager.take_failed_dirs_offline()
    assert decide(cluster, replace(NEW, is_new=True)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert TP not in broker.node.replica_manager.partitions and broker.logs.set_aside == []
