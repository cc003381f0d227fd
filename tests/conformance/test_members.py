"""The checks of consumer groups detect wrong assignments, duplicate records and failed members."""

from typing import Any

import pytest

from tests.conformance import members
from tests.conformance.answers import ScenarioError
from tests.conformance.members import Members
from tests.conformance.processes import Processes


class Answering(Processes):
    """Answers with given states instead of those of a process."""

    def __init__(self, **states: Any) -> None:
        self.states = states

    def ask(self, command: Any, name: str = "") -> Any:
        return {"ok": self.states[command["member"]]}


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "PATIENCE_S", 0.0)
    monkeypatch.setattr(members, "_PAUSE_S", 0.0)


def state(member_id: str = "a", owned: tuple[int, ...] = (), generation: int = 1, **more: Any) -> Any:
    return {
        "member_id": member_id,
        "generation": generation,
        "assignment": {"t": list(owned)} if owned else {},
        "read": {},
        "events": [],
        "error": None,
        **more,
    }


BOTH = {"members": {"m1": ["t"], "m2": ["t"]}, "assignor": "range", "partitions": {"t": 3}}


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (state("a", (0, 1)), state("b", (2,)), ""),
        (state("b", (2,)), state("a", (0, 1)), ""),
        (state("a", (0, 2)), state("b", (1,)), "b should have"),
        (state("a", (0, 1)), state("b", (2,), generation=2), "generations differ"),
        (state("a", (0, 1)), state("b", ()), "b should have"),
        (state("a", (0, 1)), state("b", (2,), error={"code": "X"}), "polling of m2 has ended"),
    ],
)
def test_an_assignment_that_is_not_that_of_python_is_found(first: Any, second: Any, says: str) -> None:
    playing = Members(Answering(m1=first, m2=second))
    if not says:
        assert playing.step({"wait_assigned": BOTH})
        return
    with pytest.raises(ScenarioError, match=says):
        playing.step({"wait_assigned": BOTH})


def test_static_members_are_ordered_by_their_instance_ids() -> None:
    playing = Members(Answering(m1=state("x", (2,)), m2=state("y", (0, 1))))
    playing.step({"wait_assigned": {**BOTH, "static": {"m1": "b", "m2": "a"}}})


@pytest.mark.parametrize(
    ("first", "second", "once", "says"),
    [
        (["0", "1"], ["2"], True, ""),
        (["0", "1"], ["1", "2"], True, "read twice"),
        (["0", "1"], ["1", "2"], False, ""),
        (["0", "1"], [], True, "2 of 3 records"),
        (["0", "1", "2", "3"], [], True, "4 of 3 records"),
    ],
)
def test_lost_and_duplicate_records_are_found(first: list[str], second: list[str], once: bool, says: str) -> None:
    playing = Members(Answering(m1=state(read={"t/0": first}), m2=state(read={"t/0": second})))
    step = {"wait_read": {"members": ["m1", "m2"], "counts": {"t/0": 3}, "once": once}}
    if not says:
        playing.step(step)
        return
    with pytest.raises(ScenarioError, match=says):
        playing.step(step)


def test_a_member_that_has_changed_is_found() -> None:
    answering = Answering(m1=state())
    playing = Members(answering)
    playing.step({"remember": "m1"})
    check = {"check_unchanged": {"member": "m1", "fields": ["generation", "events"]}}
    playing.step(check)
    answering.states["m1"] = state(generation=2)
    with pytest.raises(ScenarioError, match="generation of m1 was 1 and is 2"):
        playing.step(check)


def test_a_wait_ends_at_an_error_that_is_not_expected() -> None:
    playing = Members(Answering(m1=state(error={"code": "FENCED_INSTANCE_ID"})))
    ask = {"command": "group_state", "member": "m1"}
    playing.step({"wait": ask, "until": {"ok": {"error": {"code": "FENCED_INSTANCE_ID"}}}})
    with pytest.raises(ScenarioError, match="polling of m1 has ended"):
        playing.step({"wait": ask, "until": {"ok": {"generation": 4}}})


def test_a_wait_that_timed_out_names_the_missing_events() -> None:
    playing = Members(Answering(m1=state()))
    with pytest.raises(ScenarioError, match=r"answer\.ok\.generation is 1, 4 was expected"):
        playing.step({"wait": {"command": "group_state", "member": "m1"}, "until": {"ok": {"generation": 4}}})
