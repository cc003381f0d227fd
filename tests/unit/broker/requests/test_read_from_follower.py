"""Consumers that read from a follower (KIP-392): the replica named to them, and the records visible there."""

from dataclasses import replace

import pytest

from paceline.model.client_io import FetchRequest, FetchResponse, FetchResult
from paceline.model.errors import ErrorCode
from paceline.model.fetch_position import FetchPosition
from tests.support.batches import decode_records
from tests.support.broker_cluster import TP, BrokerCluster

RACKS = {1: "a", 2: "b", 3: "b"}


def racks(selector: str = "rack-aware", **config: object) -> BrokerCluster:
    """Three brokers in two racks; 1 leads, all are in sync."""
    cluster = BrokerCluster((), replica_selector_class=selector, **config)
    for broker_id, rack in RACKS.items():
        cluster.boot(broker_id, broker_rack=rack)
    cluster.time.run_until(lambda: all(one.node.ready for one in cluster.brokers.values()), 10_000)
    cluster.update_metadata()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(100)
    return cluster


def produced(cluster: BrokerCluster, *values: bytes, leader: int = 1) -> None:
    """Produce one batch and wait until it is committed."""
    answer = cluster[leader].produce(*values)
    cluster.time.run_until(lambda: bool(answer), 5_000)
    assert answer[0].failure is None


def only(answers: list[FetchResponse]) -> FetchResult:
    ((result,),) = (answer.results for answer in answers)
    return result


def values(result: FetchResult) -> list[bytes]:
    assert result.failure is None, result.failure
    return [record.value or b"" for record in decode_records(result.batches)]


def code(result: FetchResult) -> ErrorCode:
    assert result.failure is not None
    return result.failure.code


# the replica named by the leader


def test_the_leader_names_a_follower_in_the_consumers_rack_and_reads_nothing() -> None:
    cluster = racks()
    produced(cluster, b"x")
    result = only(cluster[1].consume(0, rack="b"))
    assert (result.preferred_read_replica, result.batches, result.failure) == (2, b"", None)


@pytest.mark.parametrize("rack", ["", "a", "c"])
def test_a_consumer_in_the_leaders_rack_or_one_without_a_replica_reads_from_the_leader(rack: str) -> None:
    cluster = racks()
    produced(cluster, b"x")
    result = only(cluster[1].consume(0, rack=rack))
    assert (result.preferred_read_replica, values(result)) == (None, [b"x"])


def test_without_a_rack_aware_selector_consumers_read_from_the_leader() -> None:
    cluster = racks("leader")
    produced(cluster, b"x")
    result = only(cluster[1].consume(0, rack="b"))
    assert (result.preferred_read_replica, values(result)) == (None, [b"x"])


def test_a_follower_that_is_out_of_sync_or_dead_is_not_named() -> None:
    cluster = racks()
    produced(cluster, b"x")
    cluster.decide(1, 1, (1, 3))
    assert only(cluster[1].consume(0, rack="b")).preferred_read_replica == 3
    cluster[3].crash()
    cluster.update_metadata()
    assert only(cluster[1].consume(0, rack="b")).preferred_read_replica is None
    cluster.time.run_for(1_000)
    assert only(cluster[1].consume(0, rack="b")).preferred_read_replica == 2


def test_a_consumer_that_stays_at_the_leader_gets_the_follower_with_every_fetch() -> None:
    cluster = racks()
    produced(cluster, b"x")
    position = FetchPosition(TP, None, 0, 1 << 20, None, None)
    answers: list[FetchResponse] = []
    request = FetchRequest(0, 1, 1 << 20, [position], rack="b", session_epoch=0)
    cluster[1].node.fetch(request, answers.append)
    for epoch in (1, 2):
        request = replace(request, partitions=[], session_id=answers[0].session_id, session_epoch=epoch)
        cluster[1].node.fetch(request, answers.append)
    assert answers[0].session_id
    assert [only([answer]).preferred_read_replica for answer in answers] == [2, 2, 2]
    cluster[1].node.fetch(replace(request, rack="", session_epoch=3), answers.append)
    assert values(only(answers[3:])) == [b"x"]


def test_a_waiting_consumer_is_answered_when_a_follower_in_its_rack_joins_the_isr() -> None:
    cluster = racks()
    cluster.decide(1, 1, (1,))
    answers = cluster[1].consume(0, max_wait_ms=20_000, rack="b")
    cluster.time.run_until(lambda: bool(answers), 15_000)
    assert only(answers).preferred_read_replica in (2, 3)


def test_the_leader_itself_answers_an_offset_out_of_range() -> None:
    cluster = racks()
    produced(cluster, b"x")
    assert code(only(cluster[1].consume(7, rack="b"))) is ErrorCode.OFFSET_OUT_OF_RANGE


# records visible at a follower


def test_a_follower_serves_committed_records() -> None:
    cluster = racks()
    produced(cluster, b"x", b"y")
    produced(cluster, b"z")
    cluster.time.run_for(1_000)
    result = only(cluster[2].consume(1, rack="b"))
    assert values(result) == [b"x", b"y", b"z"]
    assert result.high_watermark == 3


def test_a_follower_refuses_consumers_without_a_rack() -> None:
    cluster = racks()
    produced(cluster, b"x")
    result = only(cluster[2].consume(0))
    assert code(result) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert result.failure is not None and result.failure.leader is not None and result.failure.leader.leader_id == 1


def test_a_follower_does_not_serve_uncommitted_records() -> None:
    cluster = racks()
    produced(cluster, b"x")
    cluster.time.run_for(1_000)
    cluster.cuts = {(3, 1)}
    cluster[1].produce(b"y")
    cluster.time.run_for(2_000)
    assert cluster[2].values() == [b"x", b"y"]
    assert values(only(cluster[2].consume(0, rack="b"))) == [b"x"]
    assert values(only(cluster[2].consume(1, rack="b"))) == []


def test_a_fetch_above_the_followers_high_watermark_waits_and_one_beyond_its_log_is_not_available() -> None:
    cluster = racks()
    produced(cluster, b"x")
    cluster.time.run_for(1_000)
    cluster[2].transport.hold = lambda _leader, _answer: True
    cluster.decide(1, 1, (1, 3), to=(1, 3))
    produced(cluster, b"y")
    waiting = cluster[2].consume(1, rack="b", max_wait_ms=300)
    assert not waiting
    assert code(only(cluster[2].consume(2, rack="b"))) is ErrorCode.OFFSET_NOT_AVAILABLE
    cluster.time.run_for(400)
    assert values(only(waiting)) == []


def test_an_uncommitted_tail_of_another_epoch_is_no_divergence_for_a_consumer() -> None:
    cluster = racks()
    produced(cluster, b"x")
    cluster.time.run_for(1_000)
    cluster.cuts = {(2, 1), (3, 1)}
    cluster[1].produce(b"lost")
    cluster[1].transport.hold = lambda _leader, _answer: True
    cluster.decide(2, 1, (2, 3))
    produced(cluster, b"kept", leader=2)
    assert cluster[1].values() == [b"x", b"lost"]
    result = only(cluster[1].consume(2, rack="a", leader_epoch=1, last_epoch=1))
    assert (result.failure, result.diverging_epoch, result.batches) == (None, None, b"")
    assert values(only(cluster[1].consume(0, rack="a", leader_epoch=1))) == [b"x"]


@pytest.mark.parametrize(("epoch", "error"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_a_leader_epoch_that_differs_from_the_followers_is_refused(epoch: int, error: ErrorCode) -> None:
    cluster = racks()
    cluster.decide(1, 1, (1, 2, 3))
    cluster.time.run_for(100)
    assert code(only(cluster[2].consume(0, rack="b", leader_epoch=epoch))) is error


def test_a_follower_without_fetch_responses_for_long_sends_consumers_back_to_the_leader() -> None:
    cluster = racks(replica_lag_time_max_ms=2_000)
    produced(cluster, b"x")
    cluster.time.run_for(1_000)
    cluster.cuts = {(2, 1)}
    cluster.time.run_for(1_900)
    assert values(only(cluster[2].consume(0, rack="b"))) == [b"x"]
    cluster.time.run_for(3_000)
    assert code(only(cluster[2].consume(0, rack="b"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_stopped_follower_sends_consumers_back_to_the_leader() -> None:
    cluster = racks()
    produced(cluster, b"x")
    cluster.time.run_for(1_000)
    cluster[2].node.replica_manager.fetchers.stop([TP])
    assert code(only(cluster[2].consume(0, rack="b"))) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_after_a_crash_a_follower_serves_only_when_it_knows_all_that_it_served_before() -> None:
    cluster = racks()
    produced(cluster, b"x")
    produced(cluster, b"y")
    cluster.time.run_for(1_000)
    assert only(cluster[2].consume(0, rack="b")).high_watermark == 2
    cluster.cuts = {(2, 1)}
    cluster.restart(2)
    cluster.update_metadata()
    cluster.decide(1, 1, (1, 2, 3))
    assert cluster[2].log().high_watermark == 0, "the checkpoint is older than the crash"
    assert code(only(cluster[2].consume(0, rack="b"))) is ErrorCode.OFFSET_NOT_AVAILABLE
    cluster.cuts = set()
    cluster.time.run_until(lambda: cluster[2].log().high_watermark == 2, 5_000)
    assert only(cluster[2].consume(0, rack="b")).high_watermark == 2


# delay


def test_a_waiting_consumer_receives_a_record_before_the_followers_next_regular_fetch() -> None:
    cluster = racks(replica_fetch_wait_max_ms=500)
    produced(cluster, b"x")
    cluster.time.run_for(1_000)
    cluster[2].consume(1, rack="b", max_wait_ms=600)
    cluster.time.run_for(1_000)
    for number in range(5):
        waiting = cluster[2].consume(1 + number, rack="b", max_wait_ms=5_000)
        produced(cluster, b"%d" % number)
        committed_ms = cluster.time.now_ms()
        cluster.time.run_until(lambda waiting=waiting: bool(waiting), 100)
        assert values(only(waiting)) == [b"%d" % number]
        assert cluster.time.now_ms() - committed_ms <= 20


def test_a_follower_without_consumers_requests_no_high_watermarks() -> None:
    cluster = racks()
    produced(cluster, b"x")
    cluster.time.run_for(1_000)
    assert not any(request.wants_high_watermark for _, request in cluster[2].transport.fetches)
    cluster[2].consume(0, rack="b")
    cluster.time.run_for(2_000)
    assert cluster[2].transport.fetches[-1][1].wants_high_watermark
    sent = len(cluster[2].transport.fetches)
    cluster.time.run_for(20_000)
    assert not cluster[2].transport.fetches[-1][1].wants_high_watermark
    assert len(cluster[2].transport.fetches) - sent <= 20_000 // 500 + 1, "an idle follower fetches no more than before"


def test_a_consumer_that_waits_at_a_follower_is_answered_at_a_role_change() -> None:
    cluster = racks()
    produced(cluster, b"x")
    cluster.time.run_for(1_000)
    waiting = cluster[2].consume(1, rack="b", max_wait_ms=30_000, leader_epoch=0)
    cluster.decide(2, 1, (1, 2, 3))
    cluster.time.run_until(lambda: bool(waiting), 100)
    assert code(only(waiting)) is ErrorCode.FENCED_LEADER_EPOCH
