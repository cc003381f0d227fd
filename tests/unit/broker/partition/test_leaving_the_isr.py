"""When a follower leaves the ISR, and requests that waited for it."""

import pytest

from paceline.model.client_io import RequiredAcks
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import BrokerCluster
from tests.unit.broker.isr_cluster import LAG_MAX_MS, fetch_by_hand, lag, leader, make


def test_an_idle_follower_stays_in_the_isr_after_a_late_copy_of_its_first_fetch() -> None:
    cluster = make()
    end = leader(cluster).log.log_end_offset
    cluster.time.run_for(LAG_MAX_MS)
    # The copy opens a session that follower 3 never uses; the follower keeps fetching in the session it has.
    fetch_by_hand(cluster, 3, end, session_epoch=0)
    cluster.time.run_for(4 * LAG_MAX_MS)
    assert not cluster[1].said(StateChangeKind.ISR_SHRUNK)
    assert leader(cluster).followers[3].caught_up_ms(end) > cluster.time.now_ms() - LAG_MAX_MS


@pytest.mark.origin("S2-8")
def test_a_lagging_follower_leaves_between_one_and_one_and_a_half_times_the_limit() -> None:
    cluster = make()
    caught_up_ms = lag(cluster, 3)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    silent_ms = cluster.time.now_ms() - caught_up_ms
    assert LAG_MAX_MS < silent_ms <= LAG_MAX_MS * 1.5 + 20
    assert cluster.state().isr == (1, 2)
    (shrunk,) = cluster[1].said(StateChangeKind.ISR_SHRUNK)
    assert (shrunk.old_isr, shrunk.isr) == ((1, 2, 3), (1, 2))


@pytest.mark.origin("S2-8")
def test_the_timeline_of_the_specification_in_tenths() -> None:
    # lag limit 30 s, checks at 14.9, 29.9 and 44.9 s after the follower was last caught up; here in tenths.
    cluster = BrokerCluster(replica_lag_time_max_ms=3_000)
    origin_ms = cluster[1].node.replica_manager.hosted.now_ms()
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(50)
    cluster[1].produce(b"a")
    cluster.until_in_sync(1, 2, 3)
    cluster.cuts.add((3, 1))
    cluster.time.run_for(1_600)
    # A fetch sent by the test, 10 ms after a check of the leader: the follower's last caught-up time.
    checks = 1_500
    start_ms = 1_000_000
    now_ms = cluster.time.now_ms()
    next_check_ms = start_ms + ((now_ms - start_ms) // checks + 1) * checks
    assert origin_ms >= start_ms
    cluster.time.run_for(next_check_ms - now_ms + 10)
    follower = leader(cluster).followers[3]
    follower.clock = None
    follower.record_fetch(1, 0, 1, cluster.time.now_ms(), follower.broker_epoch)
    caught_up_ms = cluster.time.now_ms()
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    cluster.time.run_for(2_990)
    assert cluster.time.now_ms() - caught_up_ms == 2_990 and leader(cluster).isr == (1, 2, 3)
    assert leader(cluster).proposal is None
    cluster.time.run_for(1_499)
    assert leader(cluster).isr == (1, 2, 3) and leader(cluster).proposal is None
    cluster.time.run_for(2)
    assert leader(cluster).isr == (1, 2)


@pytest.mark.origin("S2-8")
@pytest.mark.parametrize("lag_max_ms", [200, 333])
def test_a_follower_leaves_between_one_and_one_and_a_half_times_the_limit_whenever_it_stops(
    lag_max_ms: int,
) -> None:
    cluster = BrokerCluster(replica_lag_time_max_ms=lag_max_ms, replica_fetch_wait_max_ms=20)
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_until(lambda: leader(cluster).followers[3].fetched_in_epoch, 1_000)
    cluster.cuts.add((3, 1))
    begin_ms, period_ms = cluster.time.now_ms(), lag_max_ms // 2
    delays: list[int] = []
    for round_number in range(period_ms):
        # Sent by the test at a known time: every possible time between two checks of the leader.
        cluster.time.run_for((round_number - (cluster.time.now_ms() - begin_ms)) % period_ms)
        fetch_by_hand(cluster, 3, cluster[1].log().log_end_offset)
        stopped_ms = cluster.time.now_ms()
        cluster.time.run_until(lambda: leader(cluster).isr == (1, 2, 3), 100)
        assert cluster.time.now_ms() - stopped_ms <= 1
        cluster[1].produce(b"lacking", acks=RequiredAcks.LEADER)
        cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 2 * lag_max_ms)
        proposed = cluster[1].said(StateChangeKind.ISR_PROPOSED)[-1]
        assert proposed.isr == (1, 2)
        delays.append(proposed.wall_ms - (cluster.time.wall_ms() - cluster.time.now_ms()) - stopped_ms)
        assert cluster.state().isr == (1, 2)
    assert lag_max_ms < min(delays) <= lag_max_ms + 1, "the best case is just above the limit"
    assert lag_max_ms * 3 // 2 - 1 <= max(delays) <= lag_max_ms * 1.5, (
        "the worst case is one and a half times the limit"
    )
    assert len(set(delays)) == period_ms, "every case between them occurs"


@pytest.mark.origin("S2-8")
def test_a_follower_that_repeats_the_same_offset_leaves_like_one_that_stops_fetching() -> None:
    cluster = make()
    caught_up_ms = lag(cluster, 3)
    while 3 in leader(cluster).isr:
        assert cluster.time.now_ms() - caught_up_ms <= 1.5 * LAG_MAX_MS
        # The follower is at the high watermark, which waits for it: only the log end shows that it lags.
        assert cluster[1].log().high_watermark == 1
        fetch_by_hand(cluster, 3, 1)
        cluster.time.run_for(50)
    assert cluster.time.now_ms() - caught_up_ms > LAG_MAX_MS


@pytest.mark.origin("S2-8")
def test_a_follower_always_one_batch_behind_stays() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    end = cluster[1].log().log_end_offset
    for _ in range(5 * LAG_MAX_MS // 100):
        cluster[1].produce(b"more", acks=RequiredAcks.LEADER)
        fetch_by_hand(cluster, 3, end)
        end = cluster[1].log().log_end_offset
        cluster.time.run_for(100)
    assert leader(cluster).isr == (1, 2, 3) and not cluster[1].said(StateChangeKind.ISR_PROPOSED)


def test_an_idle_follower_at_the_log_end_is_not_removed() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    cluster.time.run_for(20 * LAG_MAX_MS)
    assert leader(cluster).isr == (1, 2, 3)


def test_an_idle_follower_is_not_removed_when_records_arrive_after_a_long_pause() -> None:
    cluster = make()
    cluster.time.run_for(20 * LAG_MAX_MS)
    cluster[1].produce(b"b")
    cluster.until_in_sync(1, 2, 3)
    assert not cluster[1].said(StateChangeKind.ISR_SHRUNK, StateChangeKind.ISR_PROPOSED)


def test_an_idle_follower_counts_as_caught_up_until_its_last_fetch() -> None:
    cluster = make()
    cluster.time.run_for(20 * LAG_MAX_MS)
    cluster.cuts.add((3, 1))
    begin_ms = cluster.time.now_ms()
    cluster[1].produce(b"b", acks=RequiredAcks.LEADER)
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    # Its last fetch came within the half second before.
    assert cluster.time.now_ms() - begin_ms > LAG_MAX_MS - 510


def test_the_lag_clock_starts_with_the_leadership() -> None:
    cluster = make()
    cluster.time.run_for(LAG_MAX_MS // 2 + 100)
    lag(cluster, 3)
    cluster.decide(1, 1, (1, 2, 3))
    begin_ms = cluster.time.now_ms()
    cluster.time.run_until(lambda: 3 not in leader(cluster).isr, 10_000)
    assert cluster.time.now_ms() - begin_ms > LAG_MAX_MS


@pytest.mark.origin("S2-9")
def test_a_produce_that_waits_for_a_removed_follower_completes_without_more_traffic() -> None:
    cluster = make()
    cluster.cuts.add((3, 1))
    answer = cluster[1].produce(b"b")
    cluster.time.run_for(LAG_MAX_MS // 2)
    assert not answer
    cluster.time.run_until(lambda: leader(cluster).isr == (1, 2), 2 * LAG_MAX_MS)
    assert answer and answer[0].failure is None
