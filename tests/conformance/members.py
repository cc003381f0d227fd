"""Steps about members of consumer groups: waiting for what they own and have read.

* `{"wait": COMMAND, "until": PART}` sends a command until its answer contains PART. It fails at once when the answer is
  about a member whose polling has ended with an error that PART does not name.
* `{"wait_assigned": {"members": {"m1": ["t"]}, "assignor": "range", "partitions": {"t": 4}}}` waits until all
  members are in one generation and each has exactly the partitions that the Python assignor gives it.
* `{"wait_read": {"members": ["m1"], "counts": {"t/0": 5}}}` waits until the members together have read the offsets 0 to
  4 of the partition; with `"once": true` it fails when one of them was read twice.
* `{"remember": "m1"}` keeps the state of a member; `{"check_unchanged": {"member": "m1", "fields": ["events"]}}` fails
  when the fields of its state have changed since then.
"""

import time
from collections import Counter
from typing import Final

from paceline_client.assignors import GroupMember, assignors_of
from tests.conformance.answers import ScenarioError, difference
from tests.conformance.driver import Message
from tests.conformance.processes import Processes
from tests.conformance.scenarios import Step

PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.03


class Members:
    """Plays the steps for members of consumer groups."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._remembered: dict[str, Message] = {}

    def step(self, step: Step) -> bool:
        """Play a step about members; return False when it is about something else.

        Raises:
            ScenarioError: the members are not, or not in time, as the step says.
        """
        if "wait" in step:
            self._wait(step["wait"], step["until"])
        elif "wait_assigned" in step:
            self._wait_assigned(step["wait_assigned"])
        elif "wait_read" in step:
            self._wait_read(step["wait_read"])
        elif "remember" in step:
            self._remembered[step["remember"]] = self._state(step["remember"])
        elif "check_unchanged" in step:
            self._check_unchanged(step["check_unchanged"])
        else:
            return False
        return True

    def _state(self, member: str) -> Message:
        answer = self._processes.ask({"command": "group_state", "member": member})
        if "ok" not in answer:
            raise ScenarioError(f"group_state of {member}: {answer}")
        state: Message = answer["ok"]
        if state.get("error") is not None:
            raise ScenarioError(f"polling of {member} has ended: {state['error']}")
        return state

    def _wait(self, command: Message, wanted: Message) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._processes.ask(command)
            problem = difference(wanted, answer)
            if not problem:
                return
            failed = answer.get("ok", {}).get("error")
            if failed is not None and "error" not in wanted.get("ok", {}):
                raise ScenarioError(f"polling of {command.get('member')} has ended: {failed}")
            _pause(deadline, f"{command['command']}: {problem}")

    def _wait_assigned(self, wanted: Message) -> None:
        deadline = time.monotonic() + PATIENCE_S
        (assignor,) = assignors_of([wanted["assignor"]])
        while True:
            states = {name: self._state(name) for name in wanted["members"]}
            expected = assignor.assign(
                [
                    GroupMember(
                        states[name]["member_id"],
                        frozenset(topics),
                        group_instance_id=wanted.get("static", {}).get(name, ""),
                    )
                    for name, topics in wanted["members"].items()
                ],
                wanted["partitions"],
            )
            problem = ""
            if len({state["generation"] for state in states.values()}) > 1:
                problem = "generations differ"
            for state in states.values():
                found = {(topic, index) for topic, indexes in state["assignment"].items() for index in indexes}
                if found != set(expected[state["member_id"]]):
                    problem = f"{state['member_id']} should have {sorted(expected[state['member_id']])}"
            if not problem:
                return
            _pause(deadline, f"{problem}: {states}")

    def _wait_read(self, wanted: Message) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            states = [self._state(name) for name in wanted["members"]]
            problem = ""
            for partition, count in wanted["counts"].items():
                read = Counter(offset for state in states for offset in state["read"].get(partition, []))
                twice = [offset for offset, times in read.items() if times > 1]
                if twice and wanted.get("once", False):
                    raise ScenarioError(f"offsets of {partition} that were read twice: {twice}")
                if set(read) != {str(offset) for offset in range(count)}:
                    problem = f"{partition}: {len(read)} of {count} records were read"
            if not problem:
                return
            _pause(deadline, problem)

    def _check_unchanged(self, wanted: Message) -> None:
        before, now = self._remembered[wanted["member"]], self._state(wanted["member"])
        for field in wanted["fields"]:
            if before[field] != now[field]:
                raise ScenarioError(f"{field} of {wanted['member']} was {before[field]} and is {now[field]}")


def _pause(deadline: float, problem: str) -> None:
    if time.monotonic() > deadline:
        raise ScenarioError(f"not within {PATIENCE_S:g} s: {problem}")
    time.sleep(_PAUSE_S)
