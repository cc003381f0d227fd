"""The replica that a consumer should fetch from, by rack."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.replication.replica_selector import Candidate, nearest_replica

OFFSET = 50


def follower(broker_id: int, rack: str | None, end: int = 100, start: int = 0) -> Candidate:
    return Candidate(broker_id, rack, start, end)


def test_a_follower_in_the_readers_rack_is_chosen() -> None:
    assert nearest_replica("b", "a", OFFSET, [follower(2, "a"), follower(3, "b")]) == 3


def test_a_leader_in_the_readers_rack_is_chosen() -> None:
    assert nearest_replica("a", "a", OFFSET, [follower(2, "a")]) is None


def test_the_leader_is_chosen_without_a_rack_or_without_a_replica_in_it() -> None:
    assert nearest_replica("", "a", OFFSET, [follower(2, None), follower(3, "")]) is None
    assert nearest_replica("c", "a", OFFSET, [follower(2, "b"), follower(3, None)]) is None


def test_a_follower_without_the_offset_is_not_chosen() -> None:
    assert nearest_replica("b", "a", OFFSET, [follower(2, "b", end=49), follower(3, "b", start=51)]) is None
    assert nearest_replica("b", "a", OFFSET, [follower(2, "b", end=50)]) == 2


@given(st.permutations([follower(4, "b", 90), follower(3, "b", 100), follower(2, "b", 100)]))
def test_the_follower_with_the_highest_end_offset_is_chosen_in_any_order(followers: list[Candidate]) -> None:
    assert nearest_replica("b", "a", OFFSET, followers) == 2
