"""DeleteRecords: new log starts on leader and followers, and the time of the answer (KIP-107)."""

from dataclasses import replace

import pytest

from paceline.broker.fetcher.follower_log import FollowerLog
from paceline.log.checkpoint import LOG_START_CHECKPOINT, read_offsets
from paceline.log.files import join
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    OffsetKind,
    OffsetQuery,
)
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChange, StateChangeKind
from tests.support.broker_cluster import TP, BrokerCluster

LOG_STARTS = join("/data", LOG_START_CHECKPOINT)
SMALL = LogConfig(segment_bytes=200, file_delete_delay_ms=1_000)
"""Two or three batches to a segment."""


@pytest.fixture
def cluster() -> BrokerCluster:
    """Ten committed records, one to a batch, on three brokers; broker 1 leads."""
    found = BrokerCluster(log_config=SMALL)
    found.decide(1, 4, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    for number in range(10):
        found[1].produce(b"%d" % number)
        found.time.run_for(20)
    found.until_in_sync(1, 2, 3)
    return found


def delete(
    cluster: BrokerCluster, offset: int | None, broker_id: int = 1, timeout_ms: int = 5_000, **more: object
) -> list[DeleteRecordsResult]:
    """Send one request; the list stays empty until the answer comes."""
    answers: list[DeleteRecordsResult] = []
    query = replace(DeleteRecordsQuery(TP, None, offset), **more)  # type: ignore[arg-type]
    cluster[broker_id].node.proved_calls.delete_records([query], timeout_ms, answers.extend)
    return answers


def starts(cluster: BrokerCluster) -> list[int]:
    return [cluster[broker_id].log().log_start_offset for broker_id in (1, 2, 3)]


def test_every_live_replica_has_the_new_log_start_at_the_answer(cluster: BrokerCluster) -> None:
    answers = delete(cluster, 7)
    assert answers == [], "no follower has the new log start yet"
    cluster.time.run_until(lambda: bool(answers), 100)
    assert answers[0].failure is None and answers[0].low_watermark == 7
    assert answers[0].old_log_start_offset == 0
    assert starts(cluster) == [7, 7, 7]
    assert delete(cluster, 99)[0].old_log_start_offset is None
    assert cluster[2].values() == [b"7", b"8", b"9"]


def test_without_an_offset_all_committed_records_are_deleted(cluster: BrokerCluster) -> None:
    answers = delete(cluster, None)
    cluster.time.run_for(200)
    assert answers[0].low_watermark == 10 and starts(cluster) == [10, 10, 10]
    cluster[1].produce(b"next")
    cluster.until_in_sync(1, 2, 3)
    assert cluster[3].values() == [b"next"]


def test_reads_below_the_start_are_out_of_range(cluster: BrokerCluster) -> None:
    delete(cluster, 7)
    (response,) = cluster[1].consume(6)
    failure = response.results[0].failure
    assert failure is not None and failure.code is ErrorCode.OFFSET_OUT_OF_RANGE and failure.log_start_offset == 7
    asked = [OffsetQuery(TP, OffsetKind.EARLIEST)]
    assert cluster[1].list_offsets(*asked)[0].offset == 7
    by_time = [OffsetQuery(TP, OffsetKind.TIMESTAMP, 0)]
    assert cluster[1].list_offsets(*by_time)[0].offset == 7


def test_whole_segments_are_deleted_after_their_delay_on_every_replica(cluster: BrokerCluster) -> None:
    before = {broker_id: len(cluster[broker_id].log().segments) for broker_id in (1, 2, 3)}
    delete(cluster, 7)
    cluster.time.run_for(500)
    for broker_id in (1, 2, 3):
        broker = cluster[broker_id]
        assert len(broker.log().segments) < before[broker_id]
        names = [path for path in broker.files.contents if path.startswith(broker.log().path + "/")]
        assert any(path.endswith(".deleted") for path in names), "reads in progress may finish"
    cluster.time.run_for(1_500)
    for broker_id in (1, 2, 3):
        assert not any(path.endswith(".deleted") for path in cluster[broker_id].files.contents)


def test_the_new_log_start_survives_a_crash_of_the_leader(cluster: BrokerCluster) -> None:
    answers = delete(cluster, 7)
    cluster.time.run_until(lambda: bool(answers), 200)
    broker = cluster.restart(1)
    assert broker.log().log_start_offset == 7 and broker.log().log_end_offset == 10


def test_the_new_log_start_survives_a_crash_of_every_replica(cluster: BrokerCluster) -> None:
    answers = delete(cluster, 7)
    cluster.time.run_until(lambda: bool(answers), 200)
    assert answers[0].failure is None
    for broker_id in (1, 2, 3):
        cluster[broker_id].crash()
    for broker_id in (1, 2, 3):
        assert read_offsets(cluster[broker_id].files, LOG_STARTS) == {TP: 7}
    broker = cluster.restart(2)
    assert broker.log().log_start_offset == 7 and broker.values() == [b"7", b"8", b"9"]


def test_followers_write_a_log_start_only_when_it_changes(cluster: BrokerCluster) -> None:
    def writes() -> int:
        return sum(operation == "rename" and path.startswith(LOG_STARTS) for operation, path in files.operations)

    files = cluster[2].files
    before = writes()
    delete(cluster, 7)
    cluster.time.run_until(lambda: starts(cluster) == [7, 7, 7], 1_000)
    assert writes() == before + 1
    for number in range(5):
        cluster[1].produce(b"%d" % number)
        cluster.time.run_for(20)
    assert cluster[2].log().log_end_offset == 15 and writes() == before + 1


def test_a_dead_follower_does_not_delay_the_answer_and_follows_when_it_returns(cluster: BrokerCluster) -> None:
    cluster.cuts.add((3, 1))
    cluster.update_metadata(live=(1, 2))
    cluster.time.run_for(1_000)
    answers = delete(cluster, 7)
    cluster.time.run_for(1_000)
    assert answers[0].failure is None and answers[0].low_watermark == 7
    assert starts(cluster) == [7, 7, 0]
    cluster.cuts.clear()
    cluster.update_metadata()
    cluster.time.run_until(lambda: starts(cluster) == [7, 7, 7], 10_000)


def test_a_follower_that_ends_below_the_log_start_restarts_its_log_there(cluster: BrokerCluster) -> None:
    cluster.cuts.add((3, 1))
    cluster.decide(1, 5, (1, 2))
    cluster[1].produce(b"10")
    cluster[1].produce(b"11")
    cluster.time.run_until(lambda: cluster[1].log().high_watermark == 12, 120_000)
    delete(cluster, 12, timeout_ms=100)
    cluster.time.run_for(200)
    cluster.cuts.clear()
    cluster.time.run_until(lambda: cluster[3].log().log_start_offset == 12, 20_000)
    assert cluster[3].log().log_end_offset == 12 and cluster[3].values() == []


def test_an_unreachable_follower_causes_a_timeout_and_the_records_are_deleted(cluster: BrokerCluster) -> None:
    cluster.cuts.add((3, 1))
    cluster.time.run_for(1_000)
    answers = delete(cluster, 7, timeout_ms=800)
    cluster.time.run_for(700)
    assert answers == []
    assert cluster[1].node.metrics_snapshot()["delete_records_purgatory_size"] == 1
    cluster.time.run_for(200)
    assert answers[0].failure is not None and answers[0].failure.code is ErrorCode.REQUEST_TIMED_OUT
    assert starts(cluster)[:2] == [7, 7]
    assert cluster[1].node.replica_manager.hosted.waiting_deletes.delayed_count == 0


@pytest.mark.parametrize(
    ("offset", "more", "code"),
    [
        (11, {}, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-2, {}, ErrorCode.OFFSET_OUT_OF_RANGE),
        (3, {"current_leader_epoch": 3}, ErrorCode.FENCED_LEADER_EPOCH),
        (3, {"topic_id": "another"}, ErrorCode.INCONSISTENT_TOPIC_ID),
        (3, {"topic_partition": TopicPartition("nowhere", 0)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (3, {"topic_partition": TopicPartition("__consumer_offsets", 0)}, ErrorCode.INVALID_TOPIC),
    ],
)
def test_an_invalid_offset_or_partition_is_refused(
    cluster: BrokerCluster, offset: int, more: dict[str, object], code: ErrorCode
) -> None:
    (answer,) = delete(cluster, offset, **more)
    assert answer.failure is not None and answer.failure.code is code
    assert starts(cluster) == [0, 0, 0]


def test_a_follower_refuses_and_names_the_leader(cluster: BrokerCluster) -> None:
    (answer,) = delete(cluster, 3, broker_id=2)
    assert answer.failure is not None and answer.failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answer.failure.leader is not None and answer.failure.leader.leader_id == 1


def test_a_compacted_topic_keeps_its_records(cluster: BrokerCluster) -> None:
    cluster[1].log().config = replace(SMALL, cleanup_policy=frozenset({"compact"}))
    (answer,) = delete(cluster, 3)
    assert answer.failure is not None and answer.failure.code is ErrorCode.POLICY_VIOLATION


def test_a_change_of_leader_ends_the_wait(cluster: BrokerCluster) -> None:
    cluster.cuts.add((3, 1))
    cluster.time.run_for(1_000)
    answers = delete(cluster, 7, timeout_ms=60_000)
    cluster.decide(2, 5, (1, 2, 3))
    assert answers[0].failure is not None and answers[0].failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_repeated_request_is_answered_at_once_when_all_replicas_have_the_log_start(cluster: BrokerCluster) -> None:
    delete(cluster, 7)
    cluster.time.run_for(500)
    (answer,) = delete(cluster, 5)
    assert answer.failure is None and answer.low_watermark == 7


def test_a_follower_below_the_leaders_log_start_accepts_the_batch_that_contains_it() -> None:
    cluster = BrokerCluster((1, 3))
    cluster.cuts.add((3, 1))
    cluster.decide(1, 4, (1,), (1, 3), is_new=True)
    hosted = cluster[3].node.replica_manager.hosted
    follower_log = FollowerLog(hosted.online[TP], hosted)
    records = [NewRecord(0, None, b"of a former leader") for _ in range(3)]
    follower_log.append(encode_batch(records, base_offset=0, leader_epoch=0), 1, 0)
    across = encode_batch([NewRecord(0, None, b"%d" % n) for n in range(4)], base_offset=2, leader_epoch=4)
    follower_log.append(across, 3, 3)
    log = cluster[3].log()
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (3, 3, 6)
    assert [change.cause for change in cluster[3].said(StateChangeKind.TRUNCATED)] == [
        "fully, the leader's log starts at 3"
    ]


def test_the_log_start_of_an_empty_follower_is_durable_before_its_next_fetch() -> None:
    cluster = BrokerCluster((1, 3))
    cluster.cuts.add((3, 1))
    cluster.decide(1, 4, (1,), (1, 3), is_new=True)
    for value in (b"a", b"b", b"c"):
        cluster[1].produce(value)
    cluster.time.run_for(50)
    leader = cluster[1].node.replica_manager.hosted.online[TP]
    leader.delete_records(3)
    cluster.cuts.clear()
    cluster.time.run_until(lambda: leader.followers[3].log_end_offset == 3, 20_000)
    cluster.restart(3)
    assert (cluster[3].log().log_start_offset, cluster[3].log().log_end_offset) == (3, 3)


def test_a_follower_truncated_below_its_log_start_keeps_the_lower_start_after_a_crash() -> None:
    cluster = BrokerCluster((1, 2))
    cluster.decide(2, 0, (2,), to=(2,), is_new=True)
    cluster.time.run_for(10)
    for number in range(6):
        cluster[2].produce(b"%d" % number)
    delete(cluster, 5, broker_id=2)
    assert cluster[2].log().log_start_offset == 5
    unclean = cluster.decide(1, 2, (1,), to=(1,))
    cluster.time.run_for(10)
    cluster[1].produce(b"a")
    cluster[1].produce(b"b")
    cluster.send(2, unclean)
    cluster.time.run_until(lambda: cluster.state().isr == (1, 2), 20_000)
    cluster.restart(2)
    assert (cluster[2].log().log_start_offset, cluster[2].values()) == (0, [b"a", b"b"])


def test_a_follower_joins_the_isr_only_with_the_leaders_log_start() -> None:
    """It was down while records were deleted; as leader it would serve them again."""
    cluster = BrokerCluster((1, 2))
    cluster.decide(1, 0, (1, 2), is_new=True)
    for number in range(4):
        cluster[1].produce(b"%d" % number)
    cluster.until_in_sync(1, 2)
    cluster.cuts |= {(2, 1), (1, 2)}
    cluster.decide(1, 1, (1,))
    cluster[1].node.replica_manager.hosted.online[TP].delete_records(3)
    joined_at: list[int] = []
    emit = cluster[1].node._on_state_change

    def watch(change: StateChange) -> None:
        if change.kind is StateChangeKind.ISR_PROPOSED:
            joined_at.append(cluster[2].log().log_start_offset)
        emit(change)

    cluster[1].node.replica_manager.hosted._on_state_change = watch
    cluster.cuts.clear()
    cluster.time.run_until(lambda: cluster.state().isr == (1, 2), 60_000)
    assert joined_at == [3]
