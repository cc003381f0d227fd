"""Leaving and joining the ISR (docs/protocol/replication.md#joining-the-isr)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.replication.follower_progress import FollowerProgress
from paceline.replication.isr import JoinRefusal, out_of_sync_replicas, why_not_join

LAG_MAX_MS = 30_000


def follower(broker_id: int, end: int | None, caught_up_ms: int | None) -> FollowerProgress:
    found = FollowerProgress(broker_id)
    found.log_end_offset = end
    found.last_caught_up_ms = caught_up_ms
    return found


def late(
    followers: list[FollowerProgress], now_ms: int, isr: tuple[int, ...] = (1, 2, 3), end: int = 10
) -> tuple[int, ...]:
    return out_of_sync_replicas(isr, 1, end, {one.broker_id: one for one in followers}, now_ms, LAG_MAX_MS)


@pytest.mark.origin("S2-8")
@pytest.mark.parametrize(
    ("now_ms", "expected"), [(14_900, ()), (29_900, ()), (30_000, ()), (30_001, (2,)), (44_900, (2,))]
)
def test_a_follower_is_out_of_sync_only_beyond_the_lag_limit(now_ms: int, expected: tuple[int, ...]) -> None:
    assert late([follower(2, 8, 0), follower(3, 10, 0)], now_ms) == expected


def test_a_follower_at_the_leaders_end_that_stops_fetching_stays() -> None:
    assert late([follower(2, 10, 0), follower(3, 10, None)], 10**9) == ()


def test_a_follower_that_never_fetched_in_this_epoch_is_out_of_sync_after_the_lag_limit() -> None:
    assert late([follower(2, None, 0), follower(3, None, 20_000)], 30_001) == (2,)


def test_the_leader_itself_and_replicas_outside_the_isr_are_never_removed() -> None:
    assert late([follower(2, 1, 0), follower(3, 1, 0)], 10**9, isr=(1, 3)) == (3,)


def test_removal_keeps_the_order_of_the_isr() -> None:
    assert late([follower(2, 1, 0), follower(3, 1, 0)], 10**9, isr=(3, 1, 2)) == (3, 2)


def candidate(end: int | None = 20, broker_epoch: int | None = 5, fetched: bool = True) -> FollowerProgress:
    found = follower(2, end, None)
    found.broker_epoch = broker_epoch
    found.fetched_in_epoch = fetched
    return found


def refusal(
    one: FollowerProgress, hw: int = 15, start: int = 10, registered: int | None = 5, stopping: bool = False
) -> JoinRefusal | None:
    return why_not_join(one, hw, start, registered, stopping)


def test_a_follower_at_the_high_watermark_and_the_epoch_start_may_join() -> None:
    assert refusal(candidate(end=15)) is None
    assert refusal(candidate(end=14)) is JoinRefusal.BELOW_HIGH_WATERMARK


def test_a_follower_at_the_high_watermark_may_not_join_below_the_epoch_start() -> None:
    # Leader: end 160, HW 120 lagging, epoch start 160. A replica at 130 may lack committed records.
    assert refusal(candidate(end=130), hw=120, start=160) is JoinRefusal.BELOW_EPOCH_START
    assert refusal(candidate(end=160), hw=120, start=160) is None


def test_a_joining_follower_must_have_fetched_in_this_epoch() -> None:
    assert refusal(candidate(fetched=False)) is JoinRefusal.NOT_FETCHED_IN_EPOCH
    assert refusal(candidate(end=None)) is JoinRefusal.NOT_FETCHED_IN_EPOCH


def test_a_joining_followers_broker_epoch_must_be_the_registered_epoch() -> None:
    assert refusal(candidate(broker_epoch=4)) is JoinRefusal.OLD_BROKER_EPOCH
    assert refusal(candidate(), registered=None) is JoinRefusal.NOT_REGISTERED
    # The cache may lag behind a registration; ZooKeeper confirms it when the ISR is written.
    assert refusal(candidate(broker_epoch=6)) is None
    assert refusal(candidate(), registered=-1) is None


def test_a_stopping_broker_may_not_join() -> None:
    assert refusal(candidate(), stopping=True) is JoinRefusal.SHUTTING_DOWN


@pytest.mark.origin("S2-8")
@given(st.integers(0, 10**6), st.integers(1, 60_000), st.integers(0, 200_000))
def test_removal_falls_between_one_and_one_and_a_half_times_the_limit(
    caught_up_ms: int, lag_max_ms: int, first_check_ms: int
) -> None:
    period_ms = max(1, lag_max_ms // 2)
    one = follower(2, 5, caught_up_ms)
    check_ms = caught_up_ms - (caught_up_ms - first_check_ms) % period_ms
    while not out_of_sync_replicas((1, 2), 1, 10, {2: one}, check_ms, lag_max_ms):
        check_ms += period_ms
    assert lag_max_ms < check_ms - caught_up_ms <= lag_max_ms + period_ms
