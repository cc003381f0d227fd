"""Fetch on the leader: visibility, waiting, limits, epochs and sessions (docs/protocol/replication.md)."""

from collections.abc import Sequence

import pytest

from paceline.log import batch_file, record_batch
from paceline.log.log_config import LogConfig
from paceline.model.client_io import (
    EpochQuery,
    FetchRequest,
    FetchResponse,
    OffsetKind,
    OffsetQuery,
    RequiredAcks,
)
from paceline.model.errors import ErrorCode
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import EpochEnd, ReplicaFetchRequest
from paceline.model.state_change import StateChangeKind
from paceline.rpc.convert.partition_replicas import partition_replicas_to_proto
from tests.support.batches import decode_records
from tests.support.broker_cluster import TP, BrokerCluster

OTHER = TopicPartition("payments", 0)


@pytest.fixture
def cluster() -> BrokerCluster:
    found = BrokerCluster()
    for tp in (TP, OTHER):
        found.decide(1, 0, (1, 2, 3), tp=tp, is_new=True)
    found.time.run_for(50)
    return found


def values(response: FetchResponse, index: int = 0) -> list[bytes]:
    return [record.value or b"" for record in decode_records(response.results[index].batches)]


def code(response: FetchResponse, index: int = 0) -> ErrorCode:
    failure = response.results[index].failure
    return ErrorCode.NONE if failure is None else failure.code


def follower_fetch(cluster: BrokerCluster, replica_id: int, leader_epoch: int) -> None:
    """Let broker 1 answer a fetch of a follower that believes in this leader epoch."""
    wanted = FetchPosition(TP, None, 0, 100, leader_epoch, None, 0)
    epoch = cluster[replica_id].node.broker_epoch
    request = ReplicaFetchRequest(replica_id, epoch, 0, 1, 100, 0, -1, [wanted], [])
    cluster[1].node.handle_replica_fetch(request, lambda _answer: None)


def fetch(
    cluster: BrokerCluster,
    *partitions: FetchPosition,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Sequence[TopicPartition] = (),
) -> list[FetchResponse]:
    answers: list[FetchResponse] = []
    request = FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        list(partitions),
        session_id,
        session_epoch,
        list(forgotten),
    )
    cluster[1].node.fetch(request, answers.append)
    return answers


def at(offset: int, tp: TopicPartition = TP, max_bytes: int = 1 << 20, **extra: int) -> FetchPosition:
    return FetchPosition(tp, None, offset, max_bytes, **extra)


def test_a_consumer_reads_up_to_the_high_watermark_only(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    cluster.cuts |= {(2, 1), (3, 1)}
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    (response,) = fetch(cluster, at(0))
    assert values(response) == [b"a"]
    result = response.results[0]
    assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (1, 1, 0)


@pytest.mark.parametrize("offset", [1, 2])
def test_a_fetch_between_high_watermark_and_log_end_is_empty_and_no_error(cluster: BrokerCluster, offset: int) -> None:
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    cluster.cuts |= {(2, 1), (3, 1)}
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    (response,) = fetch(cluster, at(offset))
    assert code(response) is ErrorCode.NONE and values(response) == []


def test_an_offset_outside_the_log_is_out_of_range_and_answered_at_once(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    (response,) = fetch(cluster, at(2), max_wait_ms=10_000)
    assert code(response) is ErrorCode.OFFSET_OUT_OF_RANGE
    failure = response.results[0].failure
    assert failure is not None and failure.log_start_offset == 0


def test_a_waiting_consumer_is_answered_when_the_record_is_committed(cluster: BrokerCluster) -> None:
    answers = fetch(cluster, at(0), max_wait_ms=10_000)
    cluster.cuts.add((3, 1))
    cluster[1].produce(b"a", acks=RequiredAcks.LEADER)
    cluster.time.run_for(500)
    assert not answers
    cluster.cuts.clear()
    cluster.time.run_until(lambda: bool(answers), 5_000)
    assert values(answers[0]) == [b"a"]


def test_a_waiting_consumer_gets_an_empty_answer_after_max_wait(cluster: BrokerCluster) -> None:
    answers = fetch(cluster, at(0), max_wait_ms=700)
    cluster.time.run_for(699)
    assert not answers
    cluster.time.run_for(1)
    assert len(answers) == 1 and values(answers[0]) == []
    assert cluster[1].node.metrics_snapshot()["fetch_expirations_total"] >= 1


def test_a_waiting_consumer_waits_for_min_bytes(cluster: BrokerCluster) -> None:
    answers = fetch(cluster, at(0), at(0, OTHER), max_wait_ms=10_000, min_bytes=200)
    cluster[1].produce(b"x" * 50)
    cluster.until_in_sync(1, 2, 3)
    assert not answers
    cluster[1].produce(b"y" * 50, tp=OTHER)
    cluster.until_in_sync(1, 2, 3, tp=OTHER)
    assert len(answers) == 1
    assert (values(answers[0], 0), values(answers[0], 1)) == ([b"x" * 50], [b"y" * 50])


def reads(cluster: BrokerCluster) -> int:
    return cluster[1].files.operations.count(("read_at", f"{cluster[1].log().path}/{0:020d}.log"))


def test_appends_do_not_read_the_log_for_waiting_fetches() -> None:
    cluster = BrokerCluster((1,))
    for tp in (TP, OTHER):
        cluster.decide(1, 0, (1,), tp=tp, is_new=True)
    for _ in range(50):
        cluster[1].produce(b"x" * 100)
    whole = sum(len(cluster[1].log().read(offset, 1, 50)) for offset in range(50))
    waits = [
        fetch(cluster, at(offset), at(0, OTHER), max_wait_ms=10_000, min_bytes=whole + 400) for offset in range(30)
    ]
    assert fetch(cluster, at(0), at(0, OTHER), max_wait_ms=10_000, session_epoch=0, min_bytes=whole + 400) == []
    cluster[1].produce(b"x" * 100)  # the session's fetch finds its place once
    before = reads(cluster)
    cluster[1].produce(b"x" * 100)
    assert reads(cluster) == before and not any(waits)
    cluster[1].produce(b"x" * 100)
    # Only the fetch from offset 0 has enough bytes now; it and the session's fetch read once each.
    assert [len(answers) for answers in waits] == [1] + [0] * 29
    assert sum(len(values(answers[0])) for answers in waits if answers) == 53


def test_a_fetch_that_must_wait_checks_no_batch(cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        cluster[1].produce(b"x" * 600)
    cluster.until_in_sync(1, 2, 3)
    checked: list[int] = []

    def crc_of(data: bytes, at: int, size: int) -> int:
        checked.append(at)
        return record_batch.crc_of(data, at, size)

    monkeypatch.setattr(batch_file, "crc_of", crc_of)
    waits = [fetch(cluster, at(0), at(0, OTHER), max_wait_ms=1_000, min_bytes=1 << 20) for _ in range(30)]
    assert not checked and not any(waits)
    cluster.time.run_for(1_000)
    assert [len(values(answer)) for (answer,) in waits] == [20] * 30 and checked
    (enough,) = fetch(cluster, at(3), max_wait_ms=1_000, min_bytes=1_000)
    assert len(values(enough)) == 17


def test_committed_bytes_are_counted_once_for_all_waiting_fetches(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    size = cluster[1].log().size_bytes

    def reads_of(count: int) -> int:
        waits = [fetch(cluster, at(0), max_wait_ms=60_000, min_bytes=1_000 * size) for _ in range(count)]
        before = reads(cluster)
        for _ in range(5):
            cluster[1].produce(b"a")
            cluster.until_in_sync(1, 2, 3)
        assert not any(waits)
        return reads(cluster) - before

    assert reads_of(40) <= reads_of(0) + 5


def test_a_wait_ends_when_its_segment_is_complete() -> None:
    """A read never crosses a segment boundary, so more bytes never come; Kafka answers then, too."""
    cluster = BrokerCluster((1,), LogConfig(segment_bytes=400))
    cluster.decide(1, 0, (1,), is_new=True)
    cluster[1].produce(b"x" * 100)
    (answers,) = [fetch(cluster, at(0), max_wait_ms=10_000, min_bytes=1_000)]
    (at_the_end,) = [fetch(cluster, at(1), max_wait_ms=10_000, min_bytes=100)]
    cluster[1].produce(b"y" * 300)
    assert len(answers) + len(at_the_end) == 1, "each fetch is answered in a turn of its own"
    cluster.time.run_for(1)
    assert cluster[1].log().segment_count == 2
    assert (values(answers[0]), values(at_the_end[0])) == ([b"x" * 100], [b"y" * 300])


def test_a_wait_ends_when_its_records_are_deleted(cluster: BrokerCluster) -> None:
    for _ in range(2):
        cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    answers = fetch(cluster, at(0), max_wait_ms=10_000, min_bytes=10_000)
    cluster[1].log().increment_log_start_offset(1)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    assert code(answers[0]) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_waiting_consumer_gets_an_error_when_the_leader_changes(cluster: BrokerCluster) -> None:
    answers = fetch(cluster, at(0), max_wait_ms=10_000)
    cluster.decide(2, 1, (2, 3))
    assert code(answers[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_first_batch_is_returned_whole_despite_the_limits(cluster: BrokerCluster) -> None:
    for tp in (TP, OTHER):
        cluster[1].produce(b"x" * 500, tp=tp)
        cluster.until_in_sync(1, 2, 3, tp=tp)
    (response,) = fetch(cluster, at(0, max_bytes=10), at(0, OTHER, max_bytes=10), max_bytes=10)
    assert (values(response, 0), values(response, 1)) == ([b"x" * 500], [])


def test_a_client_gets_no_more_than_fetch_max_bytes() -> None:
    cluster = BrokerCluster((1,), fetch_max_bytes=1_200)
    for tp in (TP, OTHER):
        cluster.decide(1, 0, (1,), tp=tp, is_new=True)
        for _ in range(3):
            cluster[1].produce(b"x" * 500, tp=tp)
    big = 1 << 20
    (response,) = fetch(cluster, at(0, max_bytes=big), at(0, OTHER, max_bytes=big), max_bytes=big)
    assert [len(values(response, index)) for index in (0, 1)] == [2, 0]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (None, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_the_leader_epoch_is_checked(cluster: BrokerCluster, epoch: int | None, expected: ErrorCode) -> None:
    cluster.decide(1, 5, (1, 2, 3))
    (response,) = fetch(cluster, FetchPosition(TP, None, 0, 100, current_leader_epoch=epoch))
    assert code(response) is expected
    (answer,) = cluster[1].epoch_ends(EpochQuery(TP, 0, epoch))
    assert (ErrorCode.NONE if answer.failure is None else answer.failure.code) is expected


def test_the_leader_epoch_is_checked_before_the_leadership(cluster: BrokerCluster) -> None:
    answers: list[FetchResponse] = []
    for epoch in (9, 0):
        request = FetchRequest(0, 1, 100, [FetchPosition(TP, None, 0, 100, current_leader_epoch=epoch)])
        cluster[2].node.fetch(request, answers.append)
    assert [code(answer) for answer in answers] == [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]


def test_a_diverging_consumer_is_answered_at_once(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.decide(1, 3, (1, 2, 3))
    cluster[1].produce(b"b")
    cluster.until_in_sync(1, 2, 3)
    (response,) = fetch(cluster, at(2, last_fetched_epoch=0), max_wait_ms=10_000)
    assert response.results[0].diverging_epoch == EpochEnd(0, 1)


def test_a_session_answers_only_changed_partitions(cluster: BrokerCluster) -> None:
    (first,) = fetch(cluster, at(0), at(0, OTHER), session_epoch=0)
    assert first.session_id != 0 and len(first.results) == 2
    (second,) = fetch(cluster, session_id=first.session_id, session_epoch=1)
    assert second.results == [] and second.session_id == first.session_id
    cluster[1].produce(b"a", tp=OTHER)
    cluster.until_in_sync(1, 2, 3, tp=OTHER)
    (third,) = fetch(cluster, session_id=first.session_id, session_epoch=2)
    assert [one.topic_partition for one in third.results] == [OTHER] and values(third) == [b"a"]


def test_a_session_returns_the_same_data_again_to_a_reader_at_the_same_offset(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    (first,) = fetch(cluster, at(0), session_epoch=0)
    (second,) = fetch(cluster, session_id=first.session_id, session_epoch=1)
    assert values(first) == values(second) == [b"a"]
    (third,) = fetch(cluster, at(1), session_id=first.session_id, session_epoch=2)
    assert third.results == []


def test_a_waiting_session_is_completed_by_any_of_its_partitions(cluster: BrokerCluster) -> None:
    (first,) = fetch(cluster, at(0), at(0, OTHER), session_epoch=0)
    waiting = fetch(cluster, session_id=first.session_id, session_epoch=1, max_wait_ms=10_000)
    assert not waiting
    cluster[1].produce(b"a", tp=OTHER)
    cluster.time.run_until(lambda: bool(waiting), 1_000)
    assert [one.topic_partition for one in waiting[0].results] == [OTHER]


def test_a_partition_omitted_because_of_a_limit_comes_first_in_the_next_answer(cluster: BrokerCluster) -> None:
    for tp in (TP, OTHER):
        cluster[1].produce(b"x" * 500, tp=tp)
        cluster.until_in_sync(1, 2, 3, tp=tp)
    (first,) = fetch(cluster, at(0), at(0, OTHER), session_epoch=0, max_bytes=100)
    assert [bool(one.batches) for one in first.results] == [True, False]
    (second,) = fetch(cluster, session_id=first.session_id, session_epoch=1, max_bytes=100)
    assert [one.topic_partition for one in second.results if one.batches] == [OTHER]


def test_a_partition_omitted_while_its_session_waits_is_returned_by_the_next_fetches(cluster: BrokerCluster) -> None:
    for size, tp in ((500, TP), (500, TP), (800, OTHER)):
        cluster[1].produce(b"x" * size, tp=tp)
        cluster.until_in_sync(1, 2, 3, tp=tp)
    (first,) = fetch(cluster, at(0), at(0, OTHER), session_epoch=0, max_bytes=1_000)
    assert [bool(one.batches) for one in first.results] == [True, False]
    # Only the other partition's batch has room, and it is smaller than the reader's min_bytes.
    second = fetch(
        cluster, at(1), session_id=first.session_id, session_epoch=1, max_bytes=1_000, min_bytes=990, max_wait_ms=100
    )
    assert not second
    cluster.time.run_until(lambda: bool(second), 1_000)
    assert [one.topic_partition for one in second[0].results if one.batches] == [OTHER]
    third = fetch(cluster, at(1, OTHER), session_id=first.session_id, session_epoch=2, max_wait_ms=100)
    cluster.time.run_until(lambda: bool(third), 1_000)
    assert [one.topic_partition for one in third[0].results if one.batches] == [TP]


def test_a_partition_removed_from_a_session_is_not_answered(cluster: BrokerCluster) -> None:
    (first,) = fetch(cluster, at(0), at(0, OTHER), session_epoch=0)
    fetch(cluster, session_id=first.session_id, session_epoch=1, forgotten=[TP])
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    (third,) = fetch(cluster, session_id=first.session_id, session_epoch=2)
    assert third.results == []


def test_an_unknown_session_and_a_wrong_epoch_are_refused_as_a_whole(cluster: BrokerCluster) -> None:
    (first,) = fetch(cluster, at(0), session_epoch=0)
    (unknown,) = fetch(cluster, session_id=first.session_id + 1, session_epoch=1)
    (wrong,) = fetch(cluster, session_id=first.session_id, session_epoch=7)
    assert unknown.failure is not None and unknown.failure.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert wrong.failure is not None and wrong.failure.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_an_error_is_repeated_in_a_session_until_its_cause_ends(cluster: BrokerCluster) -> None:
    unknown = TopicPartition("not-yet", 0)
    (first,) = fetch(cluster, at(0, unknown), session_epoch=0)
    (second,) = fetch(cluster, session_id=first.session_id, session_epoch=1)
    assert [code(one) for one in (first, second)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    cluster.decide(1, 0, (1,), (1,), tp=unknown, is_new=True)
    cluster[1].produce(b"a", tp=unknown)
    (third,) = fetch(cluster, session_id=first.session_id, session_epoch=2)
    assert values(third) == [b"a"]


def test_a_session_reports_a_new_leader_epoch(cluster: BrokerCluster) -> None:
    (first,) = fetch(cluster, at(0, current_leader_epoch=0), session_epoch=0)
    waiting = fetch(cluster, session_id=first.session_id, session_epoch=1, max_wait_ms=10_000)
    cluster.decide(1, 1, (1, 2, 3))
    assert code(waiting[0]) is ErrorCode.FENCED_LEADER_EPOCH


def test_list_offsets_returns_readable_offsets(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a", b"b")
    cluster.until_in_sync(1, 2, 3)
    cluster.cuts |= {(2, 1), (3, 1)}
    cluster[1].produce(b"c", acks=RequiredAcks.LEADER)
    queries = [OffsetQuery(TP, kind) for kind in (OffsetKind.EARLIEST, OffsetKind.LATEST)]
    queries += [OffsetQuery(TP, OffsetKind.TIMESTAMP, timestamp) for timestamp in (1001, 5_000)]
    answers = cluster[1].list_offsets(*queries)
    assert [one.offset for one in answers] == [0, 2, 1, None]
    assert answers[2].timestamp_ms == 1001


def test_an_offset_is_answered_with_the_epoch_of_its_record(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.decide(1, 4, (1, 2, 3))
    cluster[1].produce(b"b")
    cluster.until_in_sync(1, 2, 3)
    queries = [OffsetQuery(TP, kind) for kind in (OffsetKind.EARLIEST, OffsetKind.LATEST)]
    queries.append(OffsetQuery(TP, OffsetKind.TIMESTAMP, 1_000))
    answers = cluster[1].list_offsets(*queries)
    assert [(one.offset, one.leader_epoch) for one in answers] == [(0, 0), (2, 4), (0, 0)]


def test_a_new_leader_does_not_answer_offsets_before_its_epoch_start_is_committed(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.time.run_until(lambda: cluster[1].log().high_watermark == 1, 100)
    assert cluster[2].log().high_watermark == 0
    cluster.cuts.add((3, 2))
    cluster.decide(2, 1, (2, 3), to=[2, 3])
    query = [OffsetQuery(TP, OffsetKind.LATEST)]
    (answer,) = cluster[2].list_offsets(*query)
    assert answer.failure is not None and answer.failure.code is ErrorCode.OFFSET_NOT_AVAILABLE
    cluster.cuts.clear()
    cluster.time.run_until(lambda: cluster[2].log().high_watermark == 1, 5_000)
    (answer,) = cluster[2].list_offsets(*query)
    assert (answer.offset, answer.leader_epoch) == (1, 1)


def test_a_leader_describes_its_replicas(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    cluster.time.run_for(1_200)
    (view,) = cluster[1].node.describe_replicas("orders", [0])
    assert (view.leader, view.isr, view.high_watermark) == (1, (1, 2, 3), 1)
    assert [one.broker_id for one in view.replicas] == [1, 2, 3]
    assert all(one.log_end_offset == 1 and one.in_sync for one in view.replicas)
    ago = view.replicas[1].last_caught_up_ago_ms
    assert ago is not None and 0 <= ago <= 600
    assert [one.topic_partition for one in cluster[1].node.describe_replicas("orders", [])] == [TP]


def test_a_follower_describes_its_own_replica_beside_its_refusal(cluster: BrokerCluster) -> None:
    cluster[1].produce(b"a")
    cluster.decide(1, 3, (1, 2, 3))
    cluster[1].produce(b"b")
    cluster.time.run_until(lambda: cluster[2].log().high_watermark == 2, 5_000)
    (led,) = cluster[1].node.describe_replicas("orders", [0])
    assert [list(one.leader_epochs) for one in led.replicas] == [[(0, 0), (3, 1)], [], []]
    (followed,) = cluster[2].node.describe_replicas("orders", [0])
    assert followed.failure is not None and followed.failure.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (followed.leader, followed.leader_epoch, followed.high_watermark) == (1, 3, 2)
    (own,) = followed.replicas
    assert (own.broker_id, own.log_end_offset, own.high_watermark) == (2, 2, 2)
    assert list(own.leader_epochs) == [(0, 0), (3, 1)]
    assert (own.last_fetch_ago_ms, own.last_caught_up_ago_ms, own.in_sync) == (None, None, False)
    message = partition_replicas_to_proto(followed)
    assert message.HasField("error") and message.replicas[0].leader_epochs[1].start_offset == 1
    many = cluster[2].node.describe_replicas("orders", range(600))
    assert list(many[0].replicas[0].leader_epochs) == [(3, 1)], "a long response has the latest epoch alone"
    (unknown,) = cluster[2].node.describe_replicas("orders", [77])
    assert unknown.failure is not None and not unknown.replicas


def test_a_refused_epoch_of_a_follower_is_reported_once_per_leader_epoch(cluster: BrokerCluster) -> None:
    cluster.decide(1, 5, (1, 2, 3))
    cluster.cuts |= {(2, 1), (3, 1)}
    for epoch in (4, 4, 6):
        follower_fetch(cluster, 2, epoch)
    follower_fetch(cluster, 3, 4)
    fetch(cluster, FetchPosition(TP, None, 0, 100, current_leader_epoch=4))
    said = cluster[1].said(StateChangeKind.FETCH_FENCED)
    assert [(one.replica, one.leader_epoch) for one in said] == [(2, 5), (3, 5)]
    assert said[0].cause == "the leader refused the fetch of broker 2: leader epoch of orders/0 is 5, not 4"
    cluster.decide(1, 7, (1, 2, 3))
    follower_fetch(cluster, 2, 6)
    assert len(cluster[1].said(StateChangeKind.FETCH_FENCED)) == 3


@pytest.mark.origin("S2-1")
def test_a_partition_without_metadata_is_unknown_and_one_hosted_elsewhere_has_another_leader(
    cluster: BrokerCluster,
) -> None:
    cluster.boot(4)
    cluster.time.run_until(lambda: cluster[4].node.ready, 5_000)
    assert code(cluster[4].consume(0)[0]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.update_metadata()
    assert code(cluster[4].consume(0)[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_restarted_leader_returns_no_lower_high_watermark_than_before() -> None:
    """Its checkpoint is older than the value it sent; it waits for fetches of its followers (KIP-207)."""
    cluster = BrokerCluster()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].logs.checkpoint_high_watermarks()
    for number in range(5):
        cluster[1].produce(b"%d" % number)
    cluster.until_in_sync(1, 2, 3)
    (response,) = cluster[1].consume(0)
    shown = response.results[0].high_watermark
    assert shown >= 5
    cluster.restart(1)
    cluster.cuts |= {(2, 1), (3, 1)}
    cluster.decide(1, 9, (1, 2, 3))
    cluster.time.run_for(100)
    assert cluster[1].log().high_watermark < shown, "precondition of this test"
    for offset in (0, shown):
        assert code(only_response(cluster, offset)) is ErrorCode.OFFSET_NOT_AVAILABLE
    cluster.cuts.clear()
    cluster.time.run_until(lambda: cluster[1].log().high_watermark == shown, 20_000)
    (response,) = cluster[1].consume(0)
    assert response.results[0].failure is None and response.results[0].high_watermark == shown


def only_response(cluster: BrokerCluster, offset: int) -> FetchResponse:
    (response,) = cluster[1].consume(offset)
    return response
