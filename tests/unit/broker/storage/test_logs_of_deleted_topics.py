"""A log of a deleted topic gives way to a re-created topic of the same name."""

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
    """Broker 3 has restarted with a log of a topic that was deleted while it was down."""
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


def test_the_log_of_a_deleted_topic_is_set_aside_and_a_new_log_begins(cluster: BrokerCluster) -> None:
    assert decide(cluster, NEW) is ErrorCode.NONE
    (path,) = cluster[3].logs.set_aside
    assert path.endswith("-stray") and cluster[3].files.exists(path)
    assert cluster[3].log().topic_id == NEW_ID and cluster[3].log().log_end_offset == 0


def test_a_hosted_log_stays_because_the_request_may_be_late(cluster: BrokerCluster) -> None:
    assert decide(cluster, NEW) is ErrorCode.NONE
    late = replace(NEW, topic_id=OLD_ID, leader_epoch=9)
    assert decide(cluster, late) is ErrorCode.INCONSISTENT_TOPIC_ID
    assert cluster[3].log().topic_id == NEW_ID


@pytest.mark.parametrize("state", [replace(NEW, topic_id=None), replace(NEW, replicas=(1, 2), isr=(1, 2))])
def test_a_request_without_topic_id_or_assignment_sets_no_log_aside(
    cluster: BrokerCluster, state: LeaderAndIsrPartition
) -> None:
    decide(cluster, state)
    assert cluster[3].logs.set_aside == []


def test_a_log_hosted_in_an_earlier_registration_is_set_aside(cluster: BrokerCluster) -> None:
    broker, old = cluster[3], replace(NEW, topic_id=OLD_ID, leader_epoch=9)
    assert decide(cluster, old) is ErrorCode.NONE
    registered = broker.node.broker_epoch
    cluster.server.expire(broker.zookeeper.session_id)
    cluster.time.run_until(lambda: broker.node.ready and broker.node.broker_epoch > registered, 60_000)
    cluster.update_metadata()
    assert decide(cluster, NEW) is ErrorCode.NONE, "its replica moved away and the topic was re-created meanwhile"
    (path,) = broker.logs.set_aside
    assert path.endswith("-stray") and broker.files.exists(path)
    assert broker.log().topic_id == NEW_ID and broker.log().log_end_offset == 0
    assert decide(cluster, replace(old, leader_epoch=10)) is ErrorCode.INCONSISTENT_TOPIC_ID, "this request may be late"


def test_a_late_repeated_leader_and_isr_does_not_re_create_a_deleted_replica(cluster: BrokerCluster) -> None:
    broker = cluster[3]
    assert decide(cluster, NEW) is ErrorCode.NONE
    deleted = StopReplicaPartition(TP, NEW_ID, EPOCH_DURING_DELETE, delete_partition=True)
    stop = StopReplicaRequest(cluster.stamp(3), (deleted,))
    assert broker.node.handle_control(stop).partition_errors[TP] is ErrorCode.NONE
    assert decide(cluster, NEW) is ErrorCode.INCONSISTENT_TOPIC_ID
    assert TP not in broker.node.replica_manager.hosted.online and broker.logs.get(TP) is None
    assert decide(cluster, replace(NEW, topic_id="the-id-of-the-next-topic")) is ErrorCode.NONE


def test_a_removed_replica_is_hosted_again_only_in_a_later_leader_epoch(cluster: BrokerCluster) -> None:
    assert decide(cluster, NEW) is ErrorCode.NONE
    moved = StopReplicaPartition(TP, NEW_ID, 4, delete_partition=True)
    assert cluster[3].node.handle_control(StopReplicaRequest(cluster.stamp(3), (moved,))).error is ErrorCode.NONE
    for late in (NEW, replace(NEW, leader_epoch=4)):
        assert decide(cluster, late) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert TP not in cluster[3].node.replica_manager.hosted.online and cluster[3].logs.get(TP) is None
    assert decide(cluster, replace(NEW, leader_epoch=5)) is ErrorCode.NONE


@pytest.mark.parametrize("leader", [1, NO_LEADER])
def test_topic_of_newer_controller_epoch_replaces_older_one(cluster: BrokerCluster, leader: int) -> None:
    broker, old = cluster[3], replace(NEW, topic_id=OLD_ID, leader_epoch=9, leader=leader)
    assert decide(cluster, old) is ErrorCode.NONE
    assert decide(cluster, NEW) is ErrorCode.INCONSISTENT_TOPIC_ID, "from the same controller, so it may be late"
    cluster.set_controller_epoch(cluster.controller_epoch + 1)
    assert decide(cluster, NEW) is ErrorCode.NONE, "the topic's node may have been unreadable when it was deleted"
    (path,) = broker.logs.set_aside
    assert path.endswith("-stray") and broker.files.exists(path)
    assert broker.log().topic_id == NEW_ID and broker.log().log_end_offset == 0


def test_a_remaining_replica_of_a_topic_being_deleted_answers_leader_and_isr(cluster: BrokerCluster) -> None:
    other = TopicPartition(TP.topic, TP.partition + 1)
    states = (NEW, replace(NEW, topic_partition=other))
    request = LeaderAndIsrRequest(cluster.stamp(3), tuple(cluster.live()), states)
    assert set(cluster[3].node.handle_control(request).partition_errors.values()) == {ErrorCode.NONE}
    deleted = StopReplicaPartition(TP, NEW_ID, EPOCH_DURING_DELETE, delete_partition=True)
    cluster[3].node.handle_control(StopReplicaRequest(cluster.stamp(3), (deleted,)))
    asked = replace(NEW, topic_partition=other, leader=NO_LEADER, leader_epoch=1)
    request = LeaderAndIsrRequest(cluster.stamp(3), tuple(cluster.live()), (asked,))
    assert cluster[3].node.handle_control(request).partition_errors[other] is ErrorCode.NONE


def test_an_old_log_in_a_failed_directory_refuses_leadership_of_the_new_topic() -> None:
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
    broker.node.replica_manager.storage.take_failed_dirs_offline()
    assert decide(cluster, replace(NEW, is_new=True)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert TP not in broker.node.replica_manager.hosted.online and broker.logs.set_aside == []
