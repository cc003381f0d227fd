"""Commands that change something print their outcome, and their errors, as JSON with `-o json`."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import paceline_client
from paceline.cli.commands import cli
from paceline.model.errors import (
    NoReassignmentInProgressError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from paceline_client import TopicPartition, TopicResult

LIVE = (SimpleNamespace(broker_id=1), SimpleNamespace(broker_id=2))
PARTITION = SimpleNamespace(
    partition=0, leader=1, leader_epoch=0, replicas=(1, 2), isr=(1, 2), offline_replicas=(), adding_replicas=()
)


class Cluster:
    """An `Admin` of a cluster with two brokers and the topic `orders`, which broker 1 leads."""

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe_cluster(self) -> Any:
        return SimpleNamespace(brokers=LIVE)

    def describe_topics(self, names: Any = None, from_controller: bool = False) -> list[Any]:
        if names is not None and list(names) != ["orders"]:
            raise UnknownTopicOrPartitionError("no such topic")
        return [SimpleNamespace(name="orders", topic_id="id", partitions=(PARTITION,))]

    def create_topics(self, topics: Any, validate_only: bool) -> Any:
        raise TopicAlreadyExistsError(f"topic {topics[0].name} exists")

    def delete_topics(self, names: Any, raise_errors: bool) -> list[TopicResult]:
        unknown = UnknownTopicOrPartitionError("no such topic")
        return [TopicResult(name, None if name == "orders" else unknown) for name in names]

    def alter_configs(self, changes: Any, validate_only: bool) -> None:
        pass

    def alter_broker_configs(self, changes: Any, validate_only: bool) -> None:
        pass

    def create_partitions(self, counts: Any, validate_only: bool) -> list[Any]:
        return [SimpleNamespace(first_partition=1)]

    def list_partition_reassignments(self, among: Any = None) -> list[Any]:
        return []

    def alter_partition_reassignments(self, moves: Any, validate_only: bool, raise_errors: bool) -> list[Any]:
        refused = NoReassignmentInProgressError("nothing to cancel")
        return [
            SimpleNamespace(topic_partition=TopicPartition(*where), error=refused if target is None else None)
            for where, target in moves.items()
        ]

    def elect_leaders(self, election: Any, partitions: Any, validate_only: bool, raise_errors: bool) -> list[Any]:
        return [SimpleNamespace(topic_partition=TopicPartition(*each), error=None, leader=2) for each in partitions]


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paceline_client, "Admin", lambda *_, **__: Cluster())
    plan = {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [2, 1]}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    monkeypatch.chdir(tmp_path)


NO_ERROR = {"error": None, "message": None}
UNKNOWN = {"error": "UNKNOWN_TOPIC_OR_PARTITION", "message": "no such topic"}


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("topic alter orders --set a=b", [{"topic": "orders", "altered": True}]),
        ("topic alter orders --set a=b --validate-only", [{"topic": "orders", "altered": False}]),
        (
            "topic add-partitions orders --count 4",
            [{"topic": "orders", "first_added": 1, "partitions": 4, "added": True}],
        ),
        ("topic delete orders --yes", [{"topic": "orders", "deleted": True, **NO_ERROR}]),
        ("topic delete none --yes --if-exists", [{"topic": "none", "deleted": False, **UNKNOWN}]),
        (
            "topic create orders --if-not-exists",
            [{"topic": "orders", "topic_id": "id", "assignments": [[1, 2]]}],
        ),
        ("broker alter 1 --set a=b", [{"broker": 1, "altered": True}]),
        ("broker alter all --set a=b", [{"broker": None, "altered": True}]),
        ("broker drain 1", [{"partition": "orders/0", "leader": "moved", "reason": None}]),
        ("broker drain 1 --dry-run", [{"partition": "orders/0", "leader": "would move", "reason": None}]),
        ("broker undrain 1", []),
        ("reassign start plan.json", [{"partition": "orders/0", "started": True, **NO_ERROR}]),
        ("reassign start plan.json --validate-only", [{"partition": "orders/0", "started": False, **NO_ERROR}]),
    ],
)
def test_the_outcome_of_a_change_is_printed_as_json(command: str, rows: list[Any]) -> None:
    ended = CliRunner().invoke(cli, [*command.split(), "-o", "json"])
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == rows


def test_a_refused_change_is_a_row_and_its_error_an_object() -> None:
    ended = CliRunner().invoke(cli, ["reassign", "cancel", "orders/0", "--preserve-throttles", "-o", "json"])
    error = {"error": "NO_REASSIGNMENT_IN_PROGRESS", "message": "nothing to cancel"}
    assert json.loads(ended.stdout) == [{"partition": "orders/0", "cancelled": False, **error}]
    assert json.loads(ended.stderr)["error"]["reason"] == "NO_REASSIGNMENT_IN_PROGRESS"
    assert ended.exit_code == 64 + 9


@pytest.mark.parametrize("command", ["topic create orders", "topic delete none --yes"])
def test_a_topic_that_exists_or_does_not_is_an_error_unless_the_command_allows_it(command: str) -> None:
    refused = CliRunner().invoke(cli, command.split())
    assert refused.exit_code in (64 + 5, 64 + 6)


def test_people_read_which_topic_was_not_changed() -> None:
    existing = CliRunner().invoke(cli, ["topic", "create", "orders", "--if-not-exists"])
    assert (existing.exit_code, existing.stdout) == (0, "orders exists already, nothing was changed\n")
    absent = CliRunner().invoke(cli, ["topic", "delete", "none", "orders", "--yes", "--if-exists"])
    assert (absent.exit_code, absent.stdout, absent.stderr) == (0, "deleted orders\n", "does not exist: none\n")


def test_people_read_the_partition_of_each_refused_change() -> None:
    refused = CliRunner().invoke(cli, ["reassign", "cancel", "orders/0", "orders/1", "--preserve-throttles"])
    lines = [f"NO_REASSIGNMENT_IN_PROGRESS: orders/{index}: nothing to cancel\n" for index in (0, 1)]
    assert (refused.exit_code, refused.stderr) == (64 + 9, "".join(lines))


def test_the_offsets_of_all_groups_are_not_deleted_by_the_way() -> None:
    words = ["topic", "delete", "orders", "__consumer_offsets", "--yes"]
    refused = CliRunner().invoke(cli, words)
    assert (refused.exit_code, "add --internal" in refused.stderr, refused.stdout) == (2, True, "")
    assert CliRunner().invoke(cli, [*words, "--internal", "--if-exists"]).exit_code == 0


def test_a_question_without_an_answer_names_the_option_that_confirms() -> None:
    ended = CliRunner().invoke(cli, ["topic", "delete", "orders"], input="")
    assert (ended.exit_code, "--yes confirms" in ended.stderr) == (1, True), ended.stderr


def test_deletion_of_a_topic_that_does_not_exist_asks_nothing_with_if_exists(cluster: Cluster) -> None:
    ended = CliRunner().invoke(cli, ["topic", "delete", "none", "--if-exists"], input="")
    assert (ended.exit_code, ended.stderr) == (0, "does not exist: none\n")
    asked = CliRunner().invoke(cli, ["topic", "delete", "none", "orders", "--if-exists"], input="n\n")
    assert asked.exit_code == 1 and "delete orders with all records?" in asked.stderr


def test_a_topic_with_a_similar_name_is_refused() -> None:
    refused = CliRunner().invoke(cli, ["topic", "create", "or.ders", "--if-not-exists"])
    assert (refused.exit_code, refused.stderr) == (64 + 6, "TOPIC_ALREADY_EXISTS: topic or.ders exists\n")
