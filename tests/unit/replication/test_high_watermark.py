"""The leader's rule for the high watermark: the table of docs/protocol/replication.md#leader-high-watermark."""

import pytest

from paceline.replication.follower_progress import FollowerProgress
from paceline.replication.high_watermark import follower_high_watermark, leader_high_watermark

NOW_MS = 1_000_000
LAG_MAX_MS = 30_000


def follower(broker_id: int, end: int | None, caught_up_ago_ms: int | None = None) -> FollowerProgress:
    found = FollowerProgress(broker_id)
    found.log_end_offset = end
    found.last_caught_up_ms = None if caught_up_ago_ms is None else NOW_MS - caught_up_ago_ms
    return found


def high_watermark(
    followers: list[FollowerProgress],
    isr: tuple[int, ...],
    current: int = 0,
    end: int = 10,
    maximal_isr: tuple[int, ...] | None = None,
    min_isr: int = 1,
    may_join: bool = True,
) -> int:
    return leader_high_watermark(
        current, end, followers, isr, maximal_isr or isr, min_isr, NOW_MS, LAG_MAX_MS, lambda _one: may_join
    )


def test_the_slowest_isr_member_sets_the_high_watermark() -> None:
    assert high_watermark([follower(2, 8), follower(3, 10)], (1, 2, 3)) == 8


def test_a_replica_caught_up_within_the_lag_limit_holds_the_high_watermark_back() -> None:
    assert high_watermark([follower(2, 7, 5_000)], (1,)) == 7


def test_a_replica_caught_up_before_the_lag_limit_does_not_hold_it_back() -> None:
    assert high_watermark([follower(2, 7, 31_000)], (1,)) == 10


def test_an_isr_member_with_an_unknown_end_offset_stops_the_high_watermark() -> None:
    assert high_watermark([follower(2, None)], (1, 2), current=6) == 6


@pytest.mark.parametrize(("age_ms", "expected"), [(29_999, 7), (30_000, 7), (30_001, 10)])
def test_caught_up_counts_up_to_and_including_the_lag_limit(age_ms: int, expected: int) -> None:
    assert high_watermark([follower(2, 7, age_ms)], (1,)) == expected


def test_the_high_watermark_never_moves_back() -> None:
    assert high_watermark([follower(2, 5)], (1, 2), current=8) == 8


def test_a_proposed_member_counts_before_the_proposal_is_committed() -> None:
    assert high_watermark([follower(2, 7)], isr=(1,), maximal_isr=(1, 2)) == 7


def test_a_member_counts_until_its_removal_is_committed() -> None:
    assert high_watermark([follower(2, 7)], isr=(1, 2), maximal_isr=(1, 2)) == 7


def test_the_high_watermark_does_not_advance_while_the_isr_is_below_the_minimum() -> None:
    followers = [follower(2, 10), follower(3, 10)]
    assert high_watermark(followers, isr=(1,), maximal_isr=(1, 2, 3), current=4, min_isr=2) == 4
    assert high_watermark(followers, isr=(1, 2), current=4, min_isr=2) == 10


def test_a_stopping_replica_outside_the_isr_does_not_hold_the_high_watermark_back() -> None:
    assert high_watermark([follower(2, 7, 100)], (1,), may_join=False) == 10


def test_a_leader_alone_in_the_isr_commits_its_whole_log() -> None:
    assert high_watermark([], (1,)) == 10


@pytest.mark.parametrize(
    ("current", "leader", "end", "start", "expected"),
    [(0, 7, 5, 0, 5), (0, 3, 5, 0, 3), (4, 3, 5, 0, 4), (0, 3, 9, 6, 6)],
)
def test_a_follower_takes_the_leaders_high_watermark_up_to_its_log_end_and_never_moves_back(
    current: int, leader: int, end: int, start: int, expected: int
) -> None:
    assert follower_high_watermark(current, leader, end, start) == expected
