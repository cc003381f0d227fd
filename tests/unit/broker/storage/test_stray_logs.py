"""Logs of replicas that moved away while the broker was down: found in the first UpdateMetadata, renamed, kept."""

from dataclasses import replace

import pytest

from paceline.model.control import UpdateMetadataPartition, UpdateMetadataRequest
from paceline.model.errors import ErrorCode
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster

TOPIC_ID = "topic-id-of-orders-one"
MOVED = UpdateMetadataPartition(TP, TOPIC_ID, 1, leader=1, leader_epoch=5, isr=(1, 2), zk_version=9, replicas=(1, 2))


@pytest.fixture
def cluster() -> BrokerCluster:
    """Broker 1 leads in epoch 4; brokers 2 and 3 follow."""
    found = BrokerCluster()
    found.decide(1, 4, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    found[1].produce(b"a")
    found.until_in_sync(1, 2, 3)
    return found


def show(cluster: BrokerCluster, shown: UpdateMetadataPartition, initial: bool = True, broker_id: int = 3) -> None:
    stamp = cluster.stamp(broker_id)
    request = UpdateMetadataRequest(stamp, cluster.live(), (shown,), is_initial=initial)
    assert cluster.handle(broker_id, request).error is ErrorCode.NONE


def has_log(cluster: BrokerCluster) -> bool:
    return cluster[3].logs.get(TP) is not None


def test_a_replica_that_moved_away_is_set_aside_and_kept(cluster: BrokerCluster) -> None:
    show(cluster, MOVED)
    assert not has_log(cluster) and TP not in cluster[3].node.replica_manager.hosted.online
    (path,) = cluster[3].logs.set_aside
    assert path.endswith("-stray") and cluster[3].files.exists(path)
    assert cluster[3].node.replica_manager.fetchers.state(TP) is None
    assert [change.cause for change in cluster[3].said(StateChangeKind.LOG_SET_ASIDE)] == [f"stray, kept in {path}"]


def test_a_stray_log_is_found_after_a_restart_and_stays_reported(cluster: BrokerCluster) -> None:
    cluster.restart(3)
    show(cluster, MOVED)
    assert not has_log(cluster)
    cluster.restart(3)
    assert len(cluster[3].logs.set_aside) == 1 and cluster[3].node.metrics_snapshot()["logs_set_aside"] == 1


@pytest.mark.parametrize(
    ("why", "shown"),
    [
        ("it is assigned", replace(MOVED, replicas=(1, 2, 3))),
        ("the ISR still has it", replace(MOVED, isr=(1, 3))),
        ("it leads", replace(MOVED, leader=3)),
        ("another topic of that name", replace(MOVED, topic_id="another")),
        ("no topic id to compare", replace(MOVED, topic_id=None)),
        ("an earlier decision that was overtaken", replace(MOVED, leader_epoch=4)),
        ("the topic is being deleted, StopReplica will come", replace(MOVED, leader=-2)),
    ],
)
def test_a_log_without_proof_is_not_set_aside(cluster: BrokerCluster, why: str, shown: UpdateMetadataPartition) -> None:
    show(cluster, shown)
    assert has_log(cluster) and cluster[3].logs.set_aside == [], why


def test_a_partition_missing_in_the_metadata_is_not_set_aside(cluster: BrokerCluster) -> None:
    request = UpdateMetadataRequest(cluster.stamp(3), cluster.live(), (), is_initial=True)
    cluster[3].node.handle_control(request)
    assert has_log(cluster), "a ZooKeeper that has lost all data does not prove that a log is stray"


def test_later_metadata_sets_no_log_aside(cluster: BrokerCluster) -> None:
    show(cluster, MOVED, initial=False)
    assert has_log(cluster)


def test_metadata_for_an_earlier_registration_is_refused(cluster: BrokerCluster) -> None:
    stamp = cluster.stamp(3)
    cluster.restart(3)
    response = cluster[3].node.handle_control(UpdateMetadataRequest(stamp, cluster.live(), (MOVED,), is_initial=True))
    assert response.error is ErrorCode.STALE_BROKER_EPOCH and has_log(cluster)


def test_a_replica_may_be_assigned_again_beside_its_stray_log(cluster: BrokerCluster) -> None:
    show(cluster, MOVED)
    cluster.decide(1, 6, (1, 2))
    cluster.until_in_sync(1, 2, 3)
    assert cluster[3].values() == [b"a"] and len(cluster[3].logs.set_aside) == 1


def test_a_leader_of_a_deleted_topic_stops_when_a_newer_controller_sends_the_re_created_topic(
    cluster: BrokerCluster,
) -> None:
    shown = replace(MOVED, topic_id="another-topic-of-the-name", leader=2, replicas=(2, 3), isr=(2, 3))
    show(cluster, shown, initial=False, broker_id=1)
    assert cluster[1].node.replica_manager.hosted.online[TP].is_leader, (
        "the metadata is of the controller that made it leader"
    )
    cluster.set_controller_epoch(cluster.controller_epoch + 1)
    show(cluster, shown, initial=False, broker_id=1)
    assert TP not in cluster[1].node.replica_manager.hosted.online and cluster[1].logs.get(TP) is None
    (path,) = cluster[1].logs.set_aside
    assert path.endswith("-stray") and cluster[1].files.exists(path)
