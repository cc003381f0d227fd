"""Moves between log directories: what the command line plans, and the directories in a plan of Kafka's tool."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click import BadParameter
from click.testing import CliRunner, Result

import paceline_client
from paceline.cli.commands import cli
from paceline.cli.log_dir_moves import balancing_moves, named_moves, parse_move, plan_rows
from paceline.cli.reassign_plan import read_log_dirs
from paceline.model.errors import KafkaStorageError, LogDirNotFoundError, PacelineError, ReplicaNotAvailableError
from paceline.model.identifiers import TopicPartition
from paceline_client import ReassignmentResult
from paceline_client.admin_log_dirs import BrokerLogDirs, LogDirDescription, ReplicaLogDirResult, ReplicaOnDisk


def directory(path: str, *sizes: int, first: int = 0, future: bool = False) -> LogDirDescription:
    replicas = (ReplicaOnDisk(TopicPartition("t", first + i), size, 0, future) for i, size in enumerate(sizes))
    return LogDirDescription(path, None, tuple(replicas))


def test_a_move_names_a_partition_and_a_directory() -> None:
    assert parse_move("t/3=/disk=2") == (("t", 3), "/disk=2")
    for text in ("t=/disk2", "t/3", "t/3=", "t/x=/disk2"):
        with pytest.raises(BadParameter):
            parse_move(text)


def test_a_named_move_concerns_every_broker_with_a_replica() -> None:
    found = [BrokerLogDirs(1, None, (directory("/a", 5),)), BrokerLogDirs(2, None, (directory("/a", 7),))]
    moves = named_moves(found, {("t", 0): "/b"})
    assert moves == {("t", 0, 1): "/b", ("t", 0, 2): "/b"}
    assert [row["bytes"] for row in plan_rows(found, moves)] == [5, 7]
    with pytest.raises(ValueError, match="t/9"):
        named_moves(found, {("t", 9): "/b"})


def test_balancing_moves_few_replicas_until_the_sizes_are_alike() -> None:
    broker = BrokerLogDirs(1, None, (directory("/a", 40, 30, 20, 10), directory("/b")))
    moves = balancing_moves(broker)
    assert set(moves.values()) == {"/b"}
    moved = sum(size for size, tp in zip((40, 30, 20, 10), range(4), strict=True) if ("t", tp, 1) in moves)
    assert moved == 50 and len(moves) == 2


def test_balanced_directories_are_left_alone() -> None:
    assert balancing_moves(BrokerLogDirs(1, None, (directory("/a", 100), directory("/b", 99, first=1)))) == {}
    assert balancing_moves(BrokerLogDirs(1, None, (directory("/a", 100),))) == {}
    assert balancing_moves(BrokerLogDirs(1, None, (directory("/a", 100), directory("/b")))) == {}, "it would only swap"


def test_balancing_uses_no_failed_directory_and_counts_running_moves() -> None:
    failed = LogDirDescription("/c", KafkaStorageError("failed"), ())
    broker = BrokerLogDirs(1, None, (directory("/a", 50, 50), directory("/b"), failed))
    assert set(balancing_moves(broker).values()) == {"/b"}
    copying = BrokerLogDirs(1, None, (directory("/a", 50, 50), directory("/b", 50, future=True)))
    assert balancing_moves(copying) == {}


def test_a_plan_of_kafkas_tool_may_name_a_directory_for_each_replica(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(
        '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["/a", "any"]},'
        '{"topic": "t", "partition": 1, "replicas": [1]}]}'
    )
    assert read_log_dirs(plan) == {("t", 0, 1): "/a"}
    for wrong in ('["/a"]', '["/a", 2]', '"any"'):
        entry = f'{{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":{wrong}}}'
        plan.write_text(f'{{"version":1,"partitions":[{entry}]}}')
        with pytest.raises(ValueError, match="log_dirs"):
            read_log_dirs(plan)


class DiskAdmin:
    """An `Admin` of a broker with two directories; records the requests in order."""

    def __init__(self, *_: object) -> None:
        self.asked: list[tuple[str, object]] = []
        self.errors: dict[tuple[str, int, int], PacelineError] = {}

    def __enter__(self) -> "DiskAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe_cluster(self) -> None:
        """Return an answer."""

    def describe_log_dirs(self, *_: object) -> list[BrokerLogDirs]:
        return [BrokerLogDirs(1, None, (directory("/a", 40, 20), directory("/b")))]

    def alter_replica_log_dirs(
        self, log_dirs: Mapping[tuple[str, int, int], str], **_: bool
    ) -> list[ReplicaLogDirResult]:
        self.asked.append(("directories", dict(log_dirs)))
        return [ReplicaLogDirResult(one[2], TopicPartition(*one[:2]), self.errors.get(one)) for one in log_dirs]

    def alter_partition_reassignments(
        self, targets: Mapping[tuple[str, int], Sequence[int] | None], **_: bool
    ) -> list[ReassignmentResult]:
        self.asked.append(("replicas", dict(targets)))
        return [ReassignmentResult(TopicPartition(*one)) for one in targets]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> DiskAdmin:
    admin = DiskAdmin()
    monkeypatch.setattr(paceline_client, "Admin", lambda *_, **__: admin)
    return admin


def run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=answer)


def test_moves_are_printed_and_start_only_after_a_yes(admin: DiskAdmin) -> None:
    refused = run("broker", "logdirs", "1", "--move", "t/0=/b", answer="n\n")
    assert refused.exit_code == 1 and admin.asked == []
    assert all(word in refused.stdout for word in ("t/0", "/a", "/b", "40"))
    assert run("broker", "logdirs", "1", "--move", "t/0=/b", answer="y\n").exit_code == 0
    assert admin.asked == [("directories", {("t", 0, 1): "/b"})]


def test_a_balance_without_a_question_starts_its_moves(admin: DiskAdmin) -> None:
    ended = run("broker", "logdirs", "--balance", "--yes")
    assert (ended.exit_code, ended.stdout) == (0, "1 of 1 moves started\n")
    assert run("broker", "logdirs", "--balance", "--move", "t/0=/b").exit_code == 2


def test_a_refused_move_is_reported(admin: DiskAdmin) -> None:
    admin.errors["t", 0, 1] = LogDirNotFoundError("no such directory")
    ended = run("broker", "logdirs", "--move", "t/0=/c", "--yes")
    assert ended.exit_code == 3
    assert ended.stderr == "LOG_DIR_NOT_FOUND: t/0 on broker 1: no such directory\n"


def test_the_directories_of_a_plan_are_requested_before_its_moves(admin: DiskAdmin, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(
        '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["/b", "/x"]}]}'
    )
    wanted = {("t", 0, 1): "/b", ("t", 0, 2): "/x"}
    admin.errors["t", 0, 2] = ReplicaNotAvailableError("not yet")
    assert run("reassign", "start", str(plan)).exit_code == 0
    assert admin.asked == [("directories", wanted), ("replicas", {("t", 0): (1, 2)})]
    admin.asked.clear()
    admin.errors["t", 0, 2] = LogDirNotFoundError("no such directory")
    assert run("reassign", "start", str(plan)).exit_code != 0
    assert admin.asked == [("directories", wanted)], "no move starts"
