"""StopReplica (docs/protocol/replication.md#stopreplica)."""

import pytest

from paceline.model.errors import ErrorCode
from tests.support.broker_cluster import TP, BrokerCluster


@pytest.fixture
def cluster() -> BrokerCluster:
    found = BrokerCluster()
    found.decide(1, 4, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    return found


def error(cluster: BrokerCluster, broker_id: int, leader_epoch: int, delete: bool = False) -> ErrorCode:
    return cluster.stop_replica(broker_id, leader_epoch, delete).partition_errors[TP]


@pytest.mark.parametrize(
    ("leader_epoch", "expected"),
    [
        (-2, ErrorCode.NONE),
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.NONE),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_only_a_lower_leader_epoch_is_fenced(cluster: BrokerCluster, leader_epoch: int, expected: ErrorCode) -> None:
    assert error(cluster, 2, leader_epoch) is expected
    fetching = cluster[2].node.replica_manager.fetchers.state(TP) is not None
    assert fetching is (expected is not ErrorCode.NONE)


def test_without_delete_fetching_stops_but_role_and_log_stay(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    assert error(cluster, 3, 4) is ErrorCode.NONE
    cluster[1].produce(b"b")
    cluster.time.run_for(3_000)
    partition = cluster[3].node.replica_manager.hosted.online[TP]
    assert (partition.leader_id, partition.leader_epoch) == (1, 4)
    assert cluster[3].values() == [b"a"] and cluster[2].values() == [b"a", b"b"]
    assert (1, 0) in cluster[3].transport.closed


def test_a_stopped_replica_follows_again_in_the_next_epoch(cluster: BrokerCluster) -> None:
    error(cluster, 3, 4)
    cluster.decide(1, 5, (1, 2))
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)


def test_the_delete_flag_removes_partition_and_log(cluster: BrokerCluster) -> None:
    path = cluster[2].log().path
    assert error(cluster, 2, -2, delete=True) is ErrorCode.NONE
    assert TP not in cluster[2].node.replica_manager.hosted.online
    assert cluster[2].logs.get(TP) is None and not cluster[2].files.exists(path)


def test_files_of_a_deleted_log_stay_for_their_delay(cluster: BrokerCluster) -> None:
    error(cluster, 2, -2, delete=True)
    left = [name for name in cluster[2].files.directories if name.endswith("-delete")]
    assert len(left) == 1
    cluster.time.run_for(59_999)
    assert cluster[2].files.exists(left[0])
    cluster.time.run_for(1)
    assert not cluster[2].files.exists(left[0])


def test_deleting_a_replica_that_is_not_hosted_succeeds(cluster: BrokerCluster) -> None:
    error(cluster, 2, -2, delete=True)
    assert error(cluster, 2, -2, delete=True) is ErrorCode.NONE


def test_stopping_a_leader_completes_the_requests_of_its_clients(cluster: BrokerCluster) -> None:
    cluster.cuts |= {(2, 1), (3, 1)}
    answer = cluster[1].produce(b"a")
    fetch = cluster[1].consume(0, max_wait_ms=60_000)
    assert not answer and not fetch
    error(cluster, 1, -2, delete=True)
    assert answer[0].failure is not None and fetch[0].results[0].failure is not None


def test_a_deletion_with_another_topic_id_does_not_delete_the_log(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    response = cluster.stop_replica(2, -2, True, topic_id="an-earlier-id")
    assert response.partition_errors[TP] is ErrorCode.NONE
    assert cluster[2].values() == [b"a"]
    cluster[1].produce(b"b")
    cluster.until_in_sync(1, 2, 3)


def test_a_re_created_topic_starts_empty(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"old")
    cluster.until_in_sync(1, 2, 3)
    for broker_id in (1, 2, 3):
        error(cluster, broker_id, -2, delete=True)
    decision = cluster.partition(1, 0, (1, 2, 3), is_new=True, topic_id="a-new-id")
    for broker_id in (1, 2, 3):
        assert cluster.send(broker_id, decision).partition_errors[TP] is ErrorCode.NONE
    cluster.time.run_due()
    cluster[1].produce(b"new")
    cluster.until_in_sync(1, 2, 3)
    assert cluster[2].values() == [b"new"]
