"""Unclean elections: the question to the user, and that only confirmed partitions are elected."""

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
    """A cluster with a partition that can be elected, one that cannot, and one that loses its leader later."""

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
        """Return an answer."""

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
    monkeypatch.setattr(paceline_client, "Admin", lambda *_, **__: admin)
    return CliRunner().invoke(cli, ["partition", "elect", "--unclean", "--all"], input=answer)


def test_an_unclean_election_elects_only_the_partitions_that_were_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = ElectingAdmin()
    ended = run(monkeypatch, admin, "y\n")
    assert admin.elected == [DARK], "the third partition lost its leader after the question"
    assert "t/0: broker 1 would lead" in ended.stderr and "for these 1 partitions?" in ended.stderr
    assert (ended.exit_code, "t/1" in ended.stdout) == (64 + 9, True), (
        "partitions that cannot be elected are named, too"
    )


def test_no_question_is_asked_when_no_partition_can_be_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = ElectingAdmin()
    admin.offline = []
    ended = run(monkeypatch, admin, "")
    assert (ended.exit_code, ended.stderr, admin.elected) == (0, "no partition needs an unclean election\n", [])
