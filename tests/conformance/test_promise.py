"""The checks of what a gateway promises find lost, late, doubled and reordered records."""

import pytest

from tests.conformance.answers import ScenarioError
from tests.conformance.promise import check_deliveries, check_log
from tests.conformance.samples import Read

SENT = [b"a", b"b", b"c", b"d"]


def log(**partitions: str) -> dict[tuple[int, int], bytes]:
    return {
        (int(name[1:]), offset): value.encode()
        for name, values in partitions.items()
        for offset, value in enumerate(values)
    }


@pytest.mark.parametrize(
    ("found", "doubles", "says"),
    [
        (log(p0="ac", p1="bd"), 0, ""),
        (log(p0="acac", p1="bd"), 2, ""),
        (log(p0="acac", p1="bd"), 1, "2 values twice"),
        (log(p0="a", p1="bd"), 0, "1 of 4 values lost"),
        (log(p0="acx", p1="bd"), 0, "1 never sent"),
        (log(p0="ca", p1="bd"), 0, "comes after a later value"),
    ],
)
def test_lost_doubled_and_reordered_values_are_found(
    found: dict[tuple[int, int], bytes], doubles: int, says: str
) -> None:
    if not says:
        assert check_log(found, SENT, doubles) == doubles
        return
    with pytest.raises(ScenarioError, match=says):
        check_log(found, SENT, doubles)


def reads(text: str) -> list[Read]:
    """Return deliveries, as in "0@1.5": offset 0 at 1.5 seconds, all of partition 0."""
    return [Read(0, int(one.split("@")[0]), b"v", float(one.split("@")[1])) for one in text.split()]


@pytest.mark.parametrize(
    ("text", "doubles", "says"),
    [
        ("0@1 1@2 2@3", 0, ""),
        ("0@1 2@2 1@3", 0, ""),  # Two subscribers, whose lines were read in another order.
        ("0@1 2@2 3@5", 0, "2 was delivered, 1 was not"),
        ("0@1 1@2 3@3", 0, "never delivered: {0: 2}"),
        ("0@1 1@2 0@3 1@4 2@5", 2, ""),  # Nothing was committed.
        ("0@1 1@2 2@3 2@20 3@21", 1, ""),
        ("0@1 1@2 2@3 1@20 2@21", 0, "again below the committed position 2"),
        ("0@1 1@2 2@3 1@11", 1, ""),  # Committed at 10, perhaps after the delivery.
    ],
)
def test_skipped_records_and_doubles_below_a_commit_are_found(text: str, doubles: int, says: str) -> None:
    committed = [(0.0, {0: 0}), (10.0, {0: 2})]
    if not says:
        assert check_deliveries(reads(text), committed) == doubles
        return
    with pytest.raises(ScenarioError, match=says):
        check_deliveries(reads(text), committed)
