"""Where a follower truncates: docs/protocol/replication.md#truncation-point and #truncation-examples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.model.errors import OffsetOutOfRangeError
from paceline.model.replica_fetch import EpochEnd
from paceline.replication.truncation import divergence, truncation_point


class EpochLog:
    """A log as the list of its records' epochs; `EpochLog("0:0 1:0 2:1")` reads offset:epoch."""

    def __init__(self, text: str = "", epochs: list[int] | None = None) -> None:
        self.records = list(epochs or [])
        for record in text.split():
            offset, epoch = record.split(":")
            assert int(offset) == len(self.records)
            self.records.append(int(epoch))
        self.starts: dict[int, int] = {}
        for offset, epoch in enumerate(self.records):
            self.starts.setdefault(epoch, offset)

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def latest(self) -> int | None:
        return max(self.starts, default=None)

    def lead(self, epoch: int) -> "EpochLog":
        self.starts[epoch] = self.end
        return self

    def end_offset(self, epoch: int) -> tuple[int, int] | None:
        known = sorted(self.starts)
        if epoch < 0 or not known or epoch > known[-1]:
            return None
        if epoch == known[-1]:
            return epoch, self.end
        larger = next(one for one in known if one > epoch)
        floor = max((one for one in known if one <= epoch), default=epoch)
        return floor, self.starts[larger]

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.starts = {epoch: start for epoch, start in self.starts.items() if start < offset}


def follow(follower: EpochLog, leader: EpochLog) -> list[int]:
    """Truncate by fetching until the leader sees a prefix; return the offsets truncated to."""
    steps = []
    for _ in range(100):
        end = divergence(follower.end, follower.latest, 0, leader.end, leader.end_offset)
        if end is None:
            return steps
        offset = truncation_point(end, follower.end, follower.end_offset)
        follower.truncate(offset)
        steps.append(offset)
    raise AssertionError("no end to the truncation")


def test_a_known_epoch_ends_at_the_smaller_of_both_end_offsets() -> None:
    assert truncation_point(EpochEnd(3, 8), 10, lambda _epoch: (3, 9)) == 8
    assert truncation_point(EpochEnd(3, 12), 10, lambda _epoch: (3, 9)) == 9


def test_an_epoch_above_all_own_epochs_ends_at_the_smaller_log_end() -> None:
    assert truncation_point(EpochEnd(3, 12), 10, lambda _epoch: None) == 10
    assert truncation_point(EpochEnd(3, 8), 10, lambda _epoch: None) == 8


def test_an_unknown_epoch_truncates_to_the_next_lower_epoch() -> None:
    assert truncation_point(EpochEnd(1, 4), 4, lambda _epoch: (0, 2)) == 2


def test_x4_fast_failover_with_fetches() -> None:
    leader = EpochLog("0:0 1:0 2:1 3:1 4:3")
    follower = EpochLog("0:0 1:0 2:2 3:2")
    assert divergence(4, 2, 0, leader.end, leader.end_offset) == EpochEnd(1, 4)
    assert follow(follower, leader) == [2]
    assert divergence(2, 0, 0, leader.end, leader.end_offset) is None


def test_x6_an_unclean_leader_makes_the_old_leader_truncate_below_its_high_watermark() -> None:
    old = EpochLog(epochs=[3] * 10)
    unclean = EpochLog(epochs=[3] * 6 + [4, 4])
    assert follow(old, unclean) == [6]


def test_x7_an_epoch_without_records_removes_its_entry_but_no_record() -> None:
    follower = EpochLog(epochs=[3] * 10).lead(4)
    leader = EpochLog(epochs=[3] * 10 + [5])
    assert divergence(10, 4, 0, leader.end, leader.end_offset) == EpochEnd(3, 10)
    assert follow(follower, leader) == [10]
    assert follower.end == 10 and follower.latest == 3


def test_a_fetch_with_an_epoch_unknown_to_the_leader_is_out_of_range() -> None:
    with pytest.raises(OffsetOutOfRangeError):
        divergence(0, 5, 0, 10, lambda _epoch: None)


@pytest.mark.parametrize("offset", [4, 11])
def test_an_offset_outside_the_log_is_out_of_range(offset: int) -> None:
    with pytest.raises(OffsetOutOfRangeError) as caught:
        divergence(offset, None, 5, 10, lambda _epoch: None)
    assert (caught.value.log_start_offset, caught.value.end_offset) == (5, 10)


epochs = st.lists(st.integers(0, 6), max_size=12).map(sorted)


@given(epochs, epochs, st.integers(0, 12))
def test_after_truncation_the_follower_is_a_prefix_of_the_leader_and_keeps_the_common_records(
    ours: list[int], theirs: list[int], common: int
) -> None:
    # Histories as replication makes them: equal up to a point, and no epoch written by two leaders.
    common = min(common, len(ours))
    shared = ours[:common]
    last = shared[-1] if shared else 0
    follower = EpochLog(epochs=shared + [last + 1 + 2 * epoch for epoch in ours[common:]])
    leader = EpochLog(epochs=shared + [last + 2 + 2 * epoch for epoch in theirs]).lead(100)
    follow(follower, leader)
    assert follower.records == leader.records[: follower.end]
    assert follower.end >= common
