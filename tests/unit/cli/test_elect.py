"""Unclean elections: what is asked, and that nothing else is elected."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import pytest
from click.testing import CliRunner, Result

import paceline_client
from paceline.cli.commands import cli
from paceline.model.errors import EligibleLeadersNotAvailableError
from paceline.model.identifiers import TopicPartition
from paceline_client import ElectionResult

DARK, DEAD, LATER = (TopicPartition("t", number) for number in range(3))


class ElectingAdmin:
    """A cluster in which one partition can be elected, one cannot, and another goes dark after the first look."""

    def __init__(self) -> None:
        self.offline = [DARK, DEAD]
        self.elected: list[TopicPartition] = []

    def __enter__(self) -> "ElectingAdmin":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def describe_cluster(self) -> None:
        """Somebody answers."""

    def elect_leaders(
        self, _election: str, partitions: Sequence[TopicPartition] | None, *, validate_only: bool, **_: bool
    ) -> list[ElectionResult]:
        results = []
        for each in self.offline if partitions is None else partitions:
            if each == DEAD:
                results.append(ElectionResult(each, EligibleLeadersNotAvailableError("no replica qualifies")))
                continue
            results.append(ElectionResult(each, None, 1, 5, unclean=True))
            if not validate_only:
                self.elected.append(each)
        self.offline = [DARK, DEAD, LATER]
        return results

    def describe_topics(self, *_: Any, **__: Any) -> list[Any]:
        return []


def run(monkeypatch: pytest.MonkeyPatch, admin: ElectingAdmin, answer: str) -> Result:
    monkeypatch.setattr(paceline_client, "Admin", lambda *_: admin)
    return CliRunner().invoke(cli, ["partition", "elect", "--unclean", "--all"], input=answer)


def test_an_unclean_election_elects_what_was_shown_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = ElectingAdmin()
    ended = run(monkeypatch, admin, "y\n")
    assert admin.elected == [DARK], "the third partition went dark after the question had been asked"
    assert "t/0: broker 1 would lead" in ended.stderr and "for these 1 partitions?" in ended.stderr
    assert (ended.exit_code, "t/1" in ended.stdout) == (64 + 9, True), "what cannot be elected is said, too"


def test_nobody_is_asked_about_an_election_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = ElectingAdmin()
    admin.offline = []
    ended = run(monkeypatch, admin, "")
    assert (ended.exit_code, ended.stderr, admin.elected) == (0, "nothing to show\n", [])
