"""Plans that are larger than the limit of one request."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from click.testing import CliRunner

import paceline_client
from paceline.cli.commands import cli
from paceline.cli.reassign_requests import PARTITIONS_PER_REQUEST, elect_leaders, list_moves
from paceline.model.errors import InvalidReplicaAssignmentError, InvalidRequestError, NotControllerError
from paceline.model.identifiers import TopicPartition
from paceline_client import ElectionResult, ReassignmentResult

MOVES, LIMIT = 15_000, 10_000
REFUSED = TopicPartition("t", MOVES - 5)


class BoundedAdmin:
    """An `Admin` whose controller limits requests, as a real one does."""

    def __init__(self, *_: object) -> None:
        self.asked: list[TopicPartition] = []
        self.fails_at = 2 * MOVES
        self.running = [TopicPartition("t", 3), TopicPartition("u", 0)]

    def __enter__(self) -> "BoundedAdmin":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def describe_cluster(self) -> None:
        """Return an answer."""

    def _ask(self, partitions: Sequence[tuple[str, int]]) -> list[TopicPartition]:
        if len(partitions) > LIMIT:
            raise InvalidRequestError(f"more than {LIMIT} fields in one request")
        if len(self.asked) >= self.fails_at:
            raise NotControllerError("no controller is active")
        found = [TopicPartition(*each) for each in partitions]
        self.asked += found
        return found

    def alter_partition_reassignments(
        self, targets: Mapping[tuple[str, int], Sequence[int] | None], **_: bool
    ) -> list[ReassignmentResult]:
        refusal = InvalidReplicaAssignmentError("not live: [9]")
        return [ReassignmentResult(each, refusal if each == REFUSED else None) for each in self._ask(list(targets))]

    def elect_leaders(
        self, _election: str, partitions: Sequence[tuple[str, int]] | None, **_: bool
    ) -> list[ElectionResult]:
        return [ElectionResult(each) for each in self._ask(partitions or [("all", 0)])]

    def list_partition_reassignments(self, partitions: Sequence[tuple[str, int]] | None = None) -> list[Any]:
        if partitions is not None:
            self._ask(partitions)
        return [ReassignmentResult(each) for each in self.running if partitions is None or each in partitions]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> BoundedAdmin:
    admin = BoundedAdmin()
    monkeypatch.setattr(paceline_client, "Admin", lambda *_, **__: admin)
    return admin


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    rows = [{"topic": "t", "partition": number, "replicas": [1, 2]} for number in range(MOVES)]
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def test_a_large_plan_is_started_in_several_requests_and_every_refusal_is_reported(
    admin: BoundedAdmin, plan: str
) -> None:
    ended = CliRunner().invoke(cli, ["reassign", "start", plan])
    assert admin.asked == [TopicPartition("t", number) for number in range(MOVES)]
    assert f"{MOVES - 1} of {MOVES} moves started" in ended.stdout
    assert (ended.exit_code, ended.stderr) == (
        64 + 3,
        f"INVALID_REPLICA_ASSIGNMENT: t/{REFUSED.partition}: not live: [9]\n",
    )


def test_a_large_plan_is_cancelled_in_several_requests(admin: BoundedAdmin, plan: str) -> None:
    ended = CliRunner().invoke(cli, ["reassign", "cancel", "--plan", plan, "--preserve-throttles"])
    assert ended.exit_code == 0, ended.stderr
    assert admin.asked == [TopicPartition("t", 3)], "only the running part of the plan"


def test_results_from_before_a_failed_request_are_reported(admin: BoundedAdmin, plan: str) -> None:
    admin.fails_at = 2 * PARTITIONS_PER_REQUEST
    ended = CliRunner().invoke(cli, ["reassign", "start", plan])
    assert ended.exit_code == 64 + 9, ended.stderr
    first, second, hint = ended.stderr.splitlines()
    assert first.startswith(f"{admin.fails_at} of {MOVES} partitions were answered before this, {admin.fails_at} of")
    assert second == "NOT_CONTROLLER: no controller is active" and " is the default address" in hint


def test_elections_are_sent_in_several_requests_unless_for_all_partitions() -> None:
    admin: Any = BoundedAdmin()
    wanted = [TopicPartition("t", number) for number in range(MOVES)]
    assert [each.topic_partition for each in elect_leaders(admin, "preferred", wanted)] == wanted
    assert [each.topic_partition for each in elect_leaders(admin, "preferred", None)] == [("all", 0)]


def test_few_partitions_are_requested_by_name_and_many_are_filtered_from_the_list() -> None:
    admin: Any = BoundedAdmin()
    assert [move.topic_partition for move in list_moves(admin, [("u", 0)])] == [("u", 0)]
    assert admin.asked == [("u", 0)]
    many = [("t", number) for number in range(MOVES)]
    assert [move.topic_partition for move in list_moves(admin, many)] == [("t", 3)]
    assert len(list_moves(admin)) == 2
