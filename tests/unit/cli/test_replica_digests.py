"""Replicas are compared by digests: every class of difference, the leader's right in a tie, and the second look."""

from collections.abc import Callable

import pytest

from paceline.cli.replica_digests import Answer, Difference, compare, verify_partition
from paceline.model.errors import BrokerNotAvailableError, CorruptMessageError
from paceline_client import PartitionDescription, RangeDigest

GOOD = RangeDigest(0, 9, 10, 500, [1], 0xAA, 0xBB, 10, 0, 10, 10)
NOT_LIVE = BrokerNotAvailableError("broker 3 is not live")


def digest(**changes: object) -> RangeDigest:
    from dataclasses import replace

    return replace(GOOD, **changes)  # type: ignore[arg-type]


def classes(answers: dict[int, Answer], leader: int = 1) -> list[tuple[int, Difference]]:
    found = compare("t", PartitionDescription(0, leader, 0, (1, 2, 3)), 0, 10, answers)
    return [(each.broker, each.difference) for each in found]


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            digest(first_offset=None, last_offset=None, record_count=0, size_bytes=0, stored_crc32c=0),
            Difference.MISSING,
        ),
        (digest(last_offset=7, record_count=8, size_bytes=400, stored_crc32c=1, log_end_offset=8), Difference.GAP),
        (digest(record_count=9, size_bytes=450, stored_crc32c=1, content_crc32c=2), Difference.GAP),
        (digest(stored_crc32c=1, content_crc32c=2), Difference.DIVERGED),
        (digest(stored_crc32c=1, leader_epochs=[2]), Difference.OTHER_EPOCHS),
        (NOT_LIVE, Difference.MISSING),
        (CorruptMessageError("checksum"), Difference.DAMAGED),
    ],
)
def test_each_difference_has_its_class(other: Answer, difference: Difference) -> None:
    assert classes({1: GOOD, 2: GOOD, 3: other}) == [(3, difference)]


def test_equal_replicas_have_no_findings() -> None:
    assert classes({1: GOOD, 2: GOOD, 3: digest(log_start_offset=5, high_watermark=9)}) == []


def test_the_majority_of_replicas_is_right_and_in_a_tie_the_leader() -> None:
    other = digest(stored_crc32c=1, content_crc32c=2)
    assert classes({1: other, 2: GOOD, 3: GOOD}) == [(1, Difference.DIVERGED)]
    assert classes({1: GOOD, 2: other}, leader=2) == [(1, Difference.DIVERGED)]


class Stored:
    """Answers digests of ten records a range; ``wrong`` decides which answers differ."""

    def __init__(self, wrong: Callable[[int, int, int], bool], records: int = 30) -> None:
        self._wrong, self._records = wrong, records
        self.asked: list[tuple[int, int, int]] = []

    def __call__(self, broker_id: int, start: int, end: int) -> RangeDigest:
        self.asked.append((broker_id, start, end))
        if end == 0:
            return RangeDigest(log_start_offset=0, log_end_offset=self._records, high_watermark=self._records)
        stop = min(start + 10, end)
        crc = start + (1000 if self._wrong(broker_id, start, len(self.asked)) else 0)
        return RangeDigest(start, stop - 1, stop - start, 100, [0], crc, crc, stop, 0, self._records, self._records)


ITEM = PartitionDescription(0, 1, 0, (1, 2, 3))


def test_ranges_follow_each_other_up_to_the_smallest_high_watermark() -> None:
    verified = verify_partition("t", ITEM, Stored(lambda *_: False))
    assert (verified.findings, verified.ranges, verified.records) == ([], 3, 30)


def test_a_difference_that_stays_is_reported_with_its_range() -> None:
    verified = verify_partition("t", ITEM, Stored(lambda broker_id, start, _: broker_id == 3 and start == 10))
    (found,) = verified.findings
    assert (found.broker, found.start_offset, found.end_offset) == (3, 10, 20)
    assert found.difference is Difference.DIVERGED


def test_a_difference_that_disappears_at_the_second_comparison_is_not_reported() -> None:
    seen: set[tuple[int, int]] = set()

    def once(broker_id: int, start: int, _: int) -> bool:
        first = (broker_id, start) not in seen
        seen.add((broker_id, start))
        return first and broker_id == 3

    assert verify_partition("t", ITEM, Stored(once)).findings == []


def test_an_unreachable_broker_is_missing_and_the_others_are_compared() -> None:
    replicas = Stored(lambda *_: False)
    verified = verify_partition(
        "t", ITEM, lambda broker_id, *span: NOT_LIVE if broker_id == 3 else replicas(broker_id, *span)
    )
    (found,) = verified.findings
    assert found.difference is Difference.MISSING and verified.records == 30
