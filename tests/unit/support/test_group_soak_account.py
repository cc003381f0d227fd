"""The account of the group soak reports each broken rule."""

import pytest

from tests.soak.groups.account import check, read, rebalance_seconds

GOOD = """\
J a 1.0
A a 2.0 1 0,1
P a 3.0 0 0 5
P a 3.0 1 0 3
C a 4.0 0 5
J b 5.0
A a 6.0 2 0
A b 6.5 2 1
P a 7.0 0 5 8
P b 7.0 1 0 4
C a 8.0 0 8
C b 8.0 1 4
"""
ENDS = {0: 8, 1: 4}


def problems(*changed: tuple[str, str], committed: dict[int, int] | None = None) -> list[str]:
    text = GOOD
    for old, new in changed:
        assert old in text
        text = text.replace(old, new)
    return check(read(text.splitlines(keepends=True)), ENDS, committed or ENDS)


def test_history_without_a_broken_rule_has_no_problems() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("A b 6.5 2 1", "A b 6.5 2 0,1", "own partition 0"),
        ("P a 7.0 0 5 8", "P a 7.0 0 6 8", "offset 5 of 8 was never processed"),
        ("P b 7.0 1 0 4\n", "", "offset 3 of 4 was never processed"),
        ("P a 7.0 0 5 8", "P a 7.0 0 4 8", "began at 4, 5 had been acknowledged"),
    ],
)
def test_broken_rule_is_reported(old: str, new: str, expected: str) -> None:
    found = problems((old, new))
    assert len(found) == 1 and expected in found[0]


def test_lost_commit_is_reported() -> None:
    found = problems(committed={0: 7, 1: 4})
    assert found == ["partition 0: 7 is committed, 8 was acknowledged"]


def test_line_truncated_by_a_kill_is_ignored() -> None:
    account = read([*GOOD.splitlines(keepends=True), "C a 9.0 0 99"])
    assert check(account, ENDS, ENDS) == []


def test_rebalance_lasts_until_the_last_member_has_its_partitions() -> None:
    account = read(GOOD.splitlines(keepends=True))
    assert rebalance_seconds(account, 5.0, 2) == 1.5
    assert rebalance_seconds(account, 5.0, 3) is None
    assert account.generations == 2
