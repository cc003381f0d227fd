"""Progress of followers from their fetches; fetches of idle sessions record it without naming a partition."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.replication.follower_progress import FetchClock, FollowerProgress


def started(leader_end: int = 0, now_ms: int = 0, in_isr: bool = False) -> FollowerProgress:
    found = FollowerProgress(2)
    found.start_epoch(leader_end, now_ms, in_isr, was_leader=False)
    return found


def fetch(follower: FollowerProgress, now_ms: int, offset: int, leader_end: int) -> bool:
    return follower.record_fetch(offset, 0, leader_end, now_ms, 7)


def test_reaching_the_end_of_the_previous_fetch_counts_as_caught_up_at_that_time() -> None:
    # The example of docs/protocol/replication.md#follower-progress: t=100 f=50 e=60; t=200 f=60 e=75.
    follower = started()
    fetch(follower, 100, 50, 60)
    fetch(follower, 200, 60, 75)
    assert follower.last_caught_up_ms == 100


def test_a_follower_that_is_always_one_batch_behind_stays_in_sync() -> None:
    follower = started()
    for step in range(1, 50):
        fetch(follower, step * 100, step * 10, (step + 1) * 10)
        assert step == 1 or follower.last_caught_up_ms == (step - 1) * 100


def test_a_follower_at_the_leaders_end_is_caught_up_now() -> None:
    follower = started()
    fetch(follower, 300, 60, 60)
    assert follower.last_caught_up_ms == 300


def test_caught_up_time_never_moves_back() -> None:
    follower = started()
    fetch(follower, 300, 60, 60)
    fetch(follower, 400, 10, 80)
    assert follower.last_caught_up_ms == 300


def test_a_repeated_fetch_of_the_same_offset_is_no_change() -> None:
    follower = started()
    assert fetch(follower, 100, 5, 9)
    assert not fetch(follower, 200, 5, 9)


def test_a_new_leader_has_no_end_offsets_and_starts_the_clock_of_isr_members_only() -> None:
    member, other = started(10, 500, in_isr=True), started(10, 500, in_isr=False)
    assert (member.log_end_offset, member.last_caught_up_ms) == (None, 500)
    assert (other.log_end_offset, other.last_caught_up_ms) == (None, None)


def test_a_new_epoch_of_the_same_leader_keeps_end_offsets_and_resets_caught_up_times() -> None:
    follower = started()
    fetch(follower, 100, 8, 8)
    follower.start_epoch(9, 700, in_isr=False, was_leader=True)
    assert (follower.log_end_offset, follower.last_caught_up_ms) == (8, None)
    assert not follower.fetched_in_epoch


@given(st.lists(st.tuples(st.integers(1, 500), st.sampled_from(["fetch", "append", "stall"])), max_size=60))
def test_an_idle_session_records_the_same_progress_as_a_fetch_of_every_partition(steps: list[tuple[int, str]]) -> None:
    # `eager` records every fetch, `lazy` only fetches for partitions that the session names or has marked.
    eager, lazy = started(0, 0, in_isr=True), started(0, 0, in_isr=True)
    clock = FetchClock(0)
    now_ms = leader_end = follower_end = 0
    named, marked = True, False
    for elapsed_ms, step in steps:
        now_ms += elapsed_ms
        if step == "append":
            lazy.settle(leader_end)
            leader_end += 1
            marked = True
        else:
            clock.last_fetch_ms = now_ms
            eager.record_fetch(follower_end, 0, leader_end, now_ms, 7)
            if named or marked:
                lazy.record_fetch(follower_end, 0, leader_end, now_ms, 7)
                lazy.clock = clock
            marked = follower_end < leader_end
            named = False
            if step == "fetch" and follower_end < leader_end:
                follower_end = leader_end
                named = True
        assert lazy.caught_up_ms(leader_end) == eager.caught_up_ms(leader_end)
        assert lazy.log_end_offset == eager.log_end_offset
    lazy.leave_session(leader_end, forgotten=False)
    assert lazy.caught_up_ms(leader_end) == eager.caught_up_ms(leader_end)
