"""Former members and unclean members of an ISR: how the two lists change from one state to the next."""

import pytest

from paceline.coordination.isr_history import NO_HISTORY, IsrHistory, history_of, next_extra
from paceline.coordination.znodes.json_codec import JsonValue

STEPS = [
    # former, unclean, old ISR, new ISR, lost, former afterwards, unclean afterwards
    ("", "", "1 2 3", "1 2", "", "", ""),
    ("", "", "1 2", "1", "", "2", ""),
    ("", "", "1 2 3", "1", "", "2 3", ""),
    ("2", "", "1", "1", "", "2", ""),
    ("2", "", "1", "1 2", "", "", ""),
    ("2", "", "1", "1 3", "", "", ""),
    ("", "", "1 2", "2", "1", "", ""),
    ("", "", "1", "1", "1", "", "1"),
    ("2", "", "1", "1", "1", "2", "1"),
    ("2 3", "1", "1", "1", "2", "3", "1"),
    ("2 3", "1", "1", "2", "", "3", ""),
    ("", "", "1 2", "1 2", "1 2", "", "1 2"),
]


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def extra_of(former: str, unclean: str) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {"theirs": {"kept": True}}
    if former:
        found["former_members"] = list(ids(former))
    if unclean:
        found["unclean_members"] = list(ids(unclean))
    return found


@pytest.mark.parametrize(("former", "unclean", "old", "new", "lost", "former_after", "unclean_after"), STEPS)
def test_former_and_unclean_members_follow_the_isr(
    former: str, unclean: str, old: str, new: str, lost: str, former_after: str, unclean_after: str
) -> None:
    found = next_extra(extra_of(former, unclean), ids(old), ids(new), lost=ids(lost))
    assert found == extra_of(former_after, unclean_after)


def test_an_unclean_election_clears_both_lists() -> None:
    assert next_extra(extra_of("2", "1"), (1,), (3,), forget=True) == extra_of("", "")


def test_a_former_member_that_is_unassigned_or_on_a_failed_disk_is_removed() -> None:
    assert next_extra(extra_of("2 3", ""), (1,), (1,), assigned=(1, 3)) == extra_of("3", "")
    assert next_extra(extra_of("2 3", ""), (1,), (1,), failed=(3,)) == extra_of("2", "")
    assert next_extra(None, (1,), (1,), failed=(1,)) is None, "the last member stays, although its disk failed"


def test_states_without_a_history_are_unchanged() -> None:
    foreign: dict[str, JsonValue] = {"elr": [1]}
    assert next_extra(foreign, (1, 2, 3), (1, 2)) is foreign
    assert next_extra(None, (1,), (1,)) is None


@pytest.mark.parametrize("value", ["1", [1, "2"], [True], [-1], {"1": 1}, None, [2**31]])
def test_a_malformed_list_counts_as_empty(value: JsonValue) -> None:
    assert history_of({"former_members": value, "unclean_members": value}) == IsrHistory()
    assert history_of(None) is NO_HISTORY
