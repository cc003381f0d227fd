"""The processes of a scenario: the driver under test, further processes of it, and Python drivers."""

from dataclasses import replace
from typing import Final

from tests.conformance.answers import UnsupportedError
from tests.conformance.driver import Driver, Message, known_drivers

COMMAND_TIMEOUT_S: Final = 120.0
PYTHON: Final = "python"


class Processes:
    """Starts a process at its first command; sends a member's commands to the process that opened it."""

    def __init__(self, first: Driver) -> None:
        self._first = first
        self._others: dict[str, Driver] = {}
        self._places: dict[str, Driver] = {}
        """Process by the name of each member opened in it."""

    def ask(self, command: Message, name: str = "") -> Message:
        """Send a command to the process that has its member, else to the named one, and return the answer.

        Raises:
            UnsupportedError: the driver does not know the command.
            DriverError: no answer in time, or one that is against the protocol.
        """
        member = command.get("member")
        if command["command"] == "group_open":
            self._places[command["member"]] = self._process(name)
        process = self._process(name) if name or member is None else self._places.get(member, self._first)
        answer = process.ask(command, COMMAND_TIMEOUT_S)
        if "unsupported" in answer:
            raise UnsupportedError(answer["unsupported"])
        return answer

    def kill(self, name: str) -> None:
        """Kill a process other than the first."""
        self._others.pop(name).kill()

    def kill_all(self) -> None:
        """Kill every process except the first."""
        for process in self._others.values():
            process.kill()
        self._others.clear()

    def _process(self, name: str) -> Driver:
        if not name:
            return self._first
        if name not in self._others:
            spec = known_drivers()[PYTHON] if name.startswith(PYTHON) else self._first.spec
            self._others[name] = Driver(replace(spec, build=()))
        return self._others[name]
