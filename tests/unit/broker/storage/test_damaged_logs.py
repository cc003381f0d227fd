"""A batch whose bytes differ from those written: errors, when the replica goes offline, and how it is rebuilt."""

from dataclasses import replace

import pytest

from paceline.coordination import znodes
from paceline.model.client_io import OffsetKind, OffsetQuery
from paceline.model.errors import ErrorCode
from paceline.model.replica_fetch import ReplicaFetchResponse, ReplicaFetchResult
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest

VALUES = [b"value-%d" % number for number in range(10)]


def flip(broker: BrokerUnderTest, value: bytes) -> None:
    """Flip a byte of a value where it lies on the broker's disk."""
    path = broker.log().segments[0].log_path
    data = broker.files.contents[path]
    assert data.count(value) == 1
    data[data.index(value)] ^= 0x40


@pytest.fixture
def cluster() -> BrokerCluster:
    """Ten batches in every replica; broker 1 leads in epoch 4."""
    found = BrokerCluster(replica_fetch_backoff_ms=100)
    found.decide(1, 4, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    for value in VALUES:
        found[1].produce(value)
        found.time.run_for(20)
    found.until_in_sync(1, 2, 3)
    return found


def events(cluster: BrokerCluster) -> int:
    """Return the number of notifications to the controller about a changed replica."""
    return sum(path.startswith(znodes.LOG_DIR_EVENT_NOTIFICATION + "/") for path in cluster.paths())


def read_all(broker: BrokerUnderTest, offset: int = 0) -> tuple[bytes, ErrorCode | None]:
    """Return the values that a client reads from ``offset`` on, and the first error."""
    found = b""
    while offset < len(VALUES):
        (response,) = broker.consume(offset, max_bytes=100)
        (result,) = response.results
        if result.failure is not None:
            return found, result.failure.code
        found += result.batches
        offset += result.batches.count(b"value-")
    return found, None


def test_a_damaged_leader_goes_offline_and_is_rebuilt_from_its_successor(cluster: BrokerCluster) -> None:
    damaged, kept_at = cluster[1], cluster[1].log().path
    flip(damaged, VALUES[4])
    found, error = read_all(damaged)
    assert error is ErrorCode.KAFKA_STORAGE_ERROR, "the client retries on another leader"
    assert found.count(b"value-") == 4, "records before the damage are served"
    cluster.time.run_for(50)
    assert TP not in damaged.node.replica_manager.hosted.online and events(cluster) == 1
    probe = cluster.send(1, replace(cluster.partition(1, 4, (1, 2, 3)), zk_version=0))
    assert probe.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    assert damaged.log().log_end_offset == 10, "no log is set aside yet"

    cluster.decide(2, 5, (2, 3), to=(2, 3))
    cluster.time.run_for(50)
    assert events(cluster) == 2, "the broker reports that the replica can follow again"
    assert damaged.logs.set_aside == [], "no log is set aside before a LeaderAndIsr names a leader"
    answer = cluster.send(1, cluster.partition(2, 5, (2, 3)), live_leaders=cluster.live([2]))
    assert answer.partition_errors == {TP: ErrorCode.NONE}
    cluster.until_in_sync(1, 2, 3)
    assert damaged.values() == VALUES
    cluster.time.run_until(lambda: set(cluster.state().isr) == {1, 2, 3}, 20_000)
    (aside,) = damaged.logs.set_aside
    assert aside.endswith("-damaged") and damaged.files.exists(aside) and damaged.log().path == kept_at
    assert [change.kind for change in damaged.said(StateChangeKind.LOG_DAMAGED, StateChangeKind.LOG_SET_ASIDE)] == [
        StateChangeKind.LOG_DAMAGED,
        StateChangeKind.LOG_SET_ASIDE,
    ]
    assert (
        damaged.node.metrics_snapshot()["damaged_logs"] == 0 and damaged.node.metrics_snapshot()["logs_set_aside"] == 1
    )


def test_a_damaged_log_that_no_assignment_names_is_not_reported_to_the_controller(cluster: BrokerCluster) -> None:
    """Each report makes the controller request the state of all replicas of the broker."""
    broker = cluster[1]
    path = broker.log().segments[0].log_path
    stopped: list[bool] = []
    broker.node.stop(lambda: stopped.append(True))
    cluster.time.run_until(lambda: bool(stopped), 60_000)
    data = broker.files.contents[path]
    data[data.index(VALUES[8]) - 51] = 9  # the magic byte of the last but one batch
    cluster._decisions.clear()
    back = cluster.boot(1, broker.files)
    cluster.time.run_until(lambda: back.node.ready, 60_000)
    cluster.update_metadata()
    assert list(back.logs.truncated_after_clean_stop) == [TP] and TP not in back.node.replica_manager.hosted.online
    before = events(cluster)
    cluster.time.run_for(120_000)
    assert events(cluster) == before


def test_the_last_isr_member_serves_its_intact_records(cluster: BrokerCluster) -> None:
    cluster.cuts |= {(2, 1), (3, 1)}
    cluster.decide(1, 5, (1,))
    flip(cluster[1], VALUES[4])
    found, error = read_all(cluster[1])
    assert error is ErrorCode.CORRUPT_MESSAGE and found.count(b"value-") == 4
    (response,) = cluster[1].consume(5)
    assert response.results[0].batches.count(b"value-") == 5, "also records after the damage"
    cluster.time.run_for(60_000)
    assert cluster[1].node.replica_manager.hosted.online[TP].is_leader
    assert cluster[1].logs.set_aside == [] and events(cluster) == 0
    numbers = cluster[1].node.metrics_snapshot()
    assert numbers["damaged_logs"] == 1 and numbers["damaged_reads_total"] >= 1
    assert [change.cause for change in cluster[1].said(StateChangeKind.LOG_DAMAGED)] != []


def test_a_damaged_leader_stays_while_the_other_isr_members_are_dead(cluster: BrokerCluster) -> None:
    cluster.decide(1, 5, (1, 2))
    cluster.update_metadata(live=(1, 3))
    flip(cluster[1], VALUES[4])
    assert read_all(cluster[1])[1] is ErrorCode.CORRUPT_MESSAGE
    cluster.time.run_for(100)
    assert TP in cluster[1].node.replica_manager.hosted.online


def test_a_damaged_leader_goes_offline_when_another_replica_joins_the_isr(cluster: BrokerCluster) -> None:
    cluster.decide(1, 5, (1,))
    flip(cluster[1], VALUES[4])
    assert read_all(cluster[1])[1] is ErrorCode.CORRUPT_MESSAGE
    cluster.time.run_until(
        lambda: set(cluster.state().isr) == {1, 2, 3}, 60_000
    )  # the followers have all records already
    cluster.time.run_for(60_000)
    assert TP not in cluster[1].node.replica_manager.hosted.online and events(cluster) >= 1


def test_a_damaged_replica_leads_again_when_it_is_the_only_isr_member(cluster: BrokerCluster) -> None:
    flip(cluster[1], VALUES[4])
    read_all(cluster[1])
    cluster.time.run_for(50)
    cluster.decide(-1, 5, (1,), to=())
    cluster.time.run_for(50)
    assert events(cluster) == 2
    assert cluster.send(1, cluster.partition(1, 6, (1,))).partition_errors == {TP: ErrorCode.NONE}
    assert cluster[1].log().log_end_offset == 10 and cluster[1].logs.set_aside == []
    assert read_all(cluster[1], 5)[1] is None


def test_metadata_of_the_same_leader_epoch_does_not_end_the_offline_state(cluster: BrokerCluster) -> None:
    flip(cluster[1], VALUES[4])
    read_all(cluster[1])
    cluster.time.run_for(50)
    cluster.decide(2, 4, (2, 3), to=())
    assert cluster[1].node.replica_manager.storage.damaged_logs.is_offline(TP)
    assert events(cluster) == 1


def test_a_follower_in_the_isr_keeps_its_damaged_log(cluster: BrokerCluster) -> None:
    flip(cluster[1], VALUES[4])
    read_all(cluster[1])
    cluster.time.run_for(50)
    cluster.decide(-1, 5, (1,), to=())
    cluster.decide(2, 6, (1, 2), to=(2,))
    answer = cluster.send(1, cluster.partition(2, 6, (1, 2)), live_leaders=cluster.live([2]))
    assert answer.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}, (
        "the controller then removes the replica from the ISR"
    )
    assert cluster[1].logs.set_aside == [] and cluster[1].log().log_end_offset == 10


def test_damage_found_while_truncating_takes_the_follower_offline(cluster: BrokerCluster) -> None:
    follower = cluster[3]
    path = follower.log().segments[0].log_path
    data = follower.files.contents[path]
    data[data.index(VALUES[2]) - 51] = 9  # the magic of the third batch
    cluster.decide(2, 5, (2,), to=(2,))
    cluster[2].log().truncate_to(5)
    cluster.decide(2, 6, (2,), to=(2, 3))
    cluster.time.run_until(lambda: follower.node.replica_manager.storage.damaged_logs.is_offline(TP), 5_000)
    cluster.decide(2, 7, (2,), to=(2,))
    cluster.time.run_for(50)
    cluster.send(3, cluster.partition(2, 7, (2,)), live_leaders=cluster.live([2]))
    cluster.until_in_sync(2, 3)
    assert follower.values() == VALUES[:5]


def test_a_follower_never_appends_a_corrupt_batch_and_fetches_again(cluster: BrokerCluster) -> None:
    leader, follower = cluster[1], cluster[2]
    bad = True

    def replica_fetch(request: object, reply: object, ask=leader.node.handle_replica_fetch) -> None:  # type: ignore[no-untyped-def]
        def spoil(answer: ReplicaFetchResponse) -> None:
            reply(ReplicaFetchResponse(answer.session_id, [spoilt(one) for one in answer.results], answer.error))  # type: ignore[operator]

        ask(request, spoil)

    def spoilt(result: ReplicaFetchResult) -> ReplicaFetchResult:
        if not bad or not result.batches:
            return result
        data = bytearray(result.batches)
        data[-3] ^= 1
        return replace(result, batches=bytes(data))

    leader.node.handle_replica_fetch = replica_fetch  # type: ignore[method-assign]
    cluster.time.run_for(2_000)  # the leader's own batch is intact
    leader.produce(b"new")
    before = len(follower.transport.fetches)
    cluster.time.run_for(2_000)
    assert follower.values() == VALUES
    assert 3 <= len(follower.transport.fetches) - before <= 60, "the fetch is repeated, with pauses"
    bad = False
    cluster.until_in_sync(1, 2, 3)
    assert follower.values() == [*VALUES, b"new"]


def test_a_lookup_by_time_reports_damage(cluster: BrokerCluster) -> None:
    cluster.decide(1, 5, (1,))
    flip(cluster[1], VALUES[0])
    path = cluster[1].log().segments[0].log_path
    cluster[1].files.contents[path][16] = 9
    (answer,) = cluster[1].list_offsets(OffsetQuery(TP, OffsetKind.TIMESTAMP, 1))
    assert answer.failure is not None and answer.failure.code is ErrorCode.CORRUPT_MESSAGE
    assert cluster[1].node.metrics_snapshot()["damaged_logs"] == 1


def test_a_damaged_replica_may_be_deleted(cluster: BrokerCluster) -> None:
    flip(cluster[1], VALUES[4])
    read_all(cluster[1])
    cluster.time.run_for(50)
    path = cluster[1].log().path
    assert cluster.stop_replica(1, -2, delete=True).partition_errors == {TP: ErrorCode.NONE}
    assert not cluster[1].files.exists(path)
    assert cluster[1].node.metrics_snapshot()["damaged_logs"] == 0
    assert cluster[1].node.metrics_snapshot()["offline_replicas"] == 0


def crash_with_a_later_epoch(cluster: BrokerCluster) -> None:
    """Restart broker 3 with a false epoch in its first batch: no checksum covers that field."""
    data = cluster[3].files.contents[cluster[3].log().segments[0].log_path]
    cluster[3].crash()
    data[13] ^= 0x20
    back = cluster.restart(3)
    cluster.time.run_until(lambda: back.node.ready, 60_000)
    cluster.update_metadata()
    assert back.log().latest_epoch == 4 + (0x20 << 16)


def test_a_log_with_a_false_epoch_is_rebuilt(cluster: BrokerCluster) -> None:
    crash_with_a_later_epoch(cluster)
    cluster.decide(1, 5, (1, 2))
    cluster.until_in_sync(1, 2, 3)
    assert cluster[3].values() == VALUES and cluster[3].log().latest_epoch == 4
    assert [path.endswith("-damaged") for path in cluster[3].logs.set_aside] == [True], "the old log is kept"


def test_a_log_with_a_false_epoch_does_not_lead(cluster: BrokerCluster) -> None:
    crash_with_a_later_epoch(cluster)
    answer = cluster.send(3, cluster.partition(3, 5, (1, 2, 3)))
    assert answer.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    assert cluster[3].logs.set_aside == [], "the ISR relies on it"


def test_a_late_stop_replica_of_an_earlier_leader_epoch_does_not_delete_an_offline_replica(
    cluster: BrokerCluster,
) -> None:
    damaged = cluster[1]
    flip(damaged, VALUES[4])
    read_all(damaged)
    cluster.time.run_for(50)
    assert TP not in damaged.node.replica_manager.hosted.online
    late = cluster.stop_replica(1, 3, delete=True)
    assert late.partition_errors == {TP: ErrorCode.FENCED_LEADER_EPOCH}
    probe = cluster.send(1, cluster.partition(1, 5, (1, 2, 3)))
    assert probe.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}, "it may not lead with an empty log"
    assert damaged.log().log_end_offset == 10
    assert cluster.stop_replica(1, 5, delete=True).partition_errors == {TP: ErrorCode.NONE}
