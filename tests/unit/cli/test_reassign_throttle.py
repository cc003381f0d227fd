"""The throttle of a reassignment, and its progress in bytes."""

from types import SimpleNamespace, TracebackType
from typing import Any

import pytest
from click.testing import CliRunner

import paceline_client
from paceline.cli import reassign
from paceline.cli.commands import cli
from paceline.cli.reassign_throttle import Throttle, plan_throttle
from paceline.model.errors import RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline.operations.reassign_progress import Progress, Speed, sizes_of
from paceline_client import (
    AwaitedReplica,
    BrokerLogDirs,
    ConfigEntry,
    LogDirDescription,
    Reassignment,
    ReassignmentResult,
    ReplicaOnDisk,
)

A0 = TopicPartition("a", 0)


def move(leader: int | None = 1, waits_for: tuple[int, ...] = (3,)) -> Reassignment:
    awaited = tuple(AwaitedReplica(broker, "NOT_CAUGHT_UP", "") for broker in waits_for)
    return Reassignment(A0, (2, 3, 1), (3,), (1,), (1, 2), leader, awaited)


def test_old_replicas_are_throttled_as_leaders_and_new_ones_as_followers() -> None:
    present = {("a", 0): [1, 2], ("a", 1): [2, 3], ("b", 0): [1]}
    targets = {("a", 0): (2, 3), ("a", 1): (3, 1), ("b", 0): (4,)}
    assert plan_throttle(present, targets) == Throttle(
        {"a": ("0:1,0:2,1:2,1:3", "0:3,1:1"), "b": ("0:1", "0:4")}, (1, 2, 3, 4)
    )


def test_a_new_order_of_the_same_replicas_copies_nothing_and_is_not_throttled() -> None:
    assert plan_throttle({("a", 0): [1, 2]}, {("a", 0): (2, 1)}) == Throttle({}, ())


def test_the_remaining_bytes_are_those_that_the_new_replica_lacks() -> None:
    progress = Progress()
    assert progress.look([move()], {("a", 0, 1): 1_000, ("a", 0, 3): 400}, 0.0) == {A0: Speed(600, None, None)}
    assert progress.look([move()], {("a", 0, 1): 1_100, ("a", 0, 3): 500}, 2.0) == {A0: Speed(600, 50, 12)}


def test_a_reassignment_without_progress_has_no_estimated_end() -> None:
    progress = Progress()
    progress.look([move()], {("a", 0, 1): 1_000, ("a", 0, 3): 400}, 0.0)
    assert progress.look([move()], {("a", 0, 1): 1_000, ("a", 0, 3): 400}, 1.0) == {A0: Speed(600, 0, None)}


def test_a_reassignment_without_an_answering_leader_has_no_remaining_bytes() -> None:
    assert Progress().look([move(leader=None)], {}, 0.0) == {A0: Speed(None, None, None)}
    assert Progress().look([move()], {("a", 0, 3): 1}, 0.0) == {A0: Speed(None, None, None)}


def test_a_reassignment_without_awaited_replicas_has_no_remaining_bytes_left() -> None:
    assert Progress().look([move(waits_for=())], {}, 0.0) == {A0: Speed(0, None, 0)}


def test_sizes_are_summed_over_directories_without_copies_in_progress() -> None:
    directories = (
        LogDirDescription("/x", None, (ReplicaOnDisk(A0, 5, 0),)),
        LogDirDescription("/y", None, (ReplicaOnDisk(A0, 3, 0, is_future=True),)),
    )
    assert sizes_of([BrokerLogDirs(1, None, directories)]) == {("a", 0, 1): 5}


class ThrottlingAdmin:
    """A cluster with one throttled reassignment, whose new broker, 3, has died; 1 and 2 live."""

    def __init__(self) -> None:
        self.moves = [move()]
        self.throttled = {1, 2, 3}

    def __enter__(self) -> "ThrottlingAdmin":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def list_partition_reassignments(self, among: Any = None) -> list[Reassignment]:
        return [each for each in self.moves if among is None or each.topic_partition in among]

    def alter_partition_reassignments(self, targets: Any, **_: bool) -> list[ReassignmentResult]:
        self.moves = [each for each in self.moves if each.topic_partition not in targets]
        return [ReassignmentResult(TopicPartition(*each)) for each in targets]

    def describe_configs(self, topic: str, _keys: Any) -> dict[str, list[ConfigEntry]]:
        return {topic: []}

    def describe_cluster(self) -> Any:
        return SimpleNamespace(brokers=[SimpleNamespace(broker_id=1), SimpleNamespace(broker_id=2)])

    def describe_broker_configs(self, brokers: list[int]) -> dict[int, list[ConfigEntry]]:
        rate = [ConfigEntry("leader.replication.throttled.rate", "5", "broker")]
        return {broker: rate if broker in self.throttled else [] for broker in brokers}

    def alter_broker_configs(self, changes: Any) -> None:
        self.throttled -= set(changes)


@pytest.mark.parametrize("which", ["a/0", "--all", "--plan"])
def test_the_end_of_the_last_reassignment_removes_the_throttle_of_dead_brokers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, which: str
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "a", "partition": 0, "replicas": [2, 3]}]}')
    admin = ThrottlingAdmin()
    monkeypatch.setattr(paceline_client, "Admin", lambda *_, **__: admin)
    ended = CliRunner().invoke(cli, ["reassign", "cancel", which, *([str(plan)] if which == "--plan" else [])])
    assert (ended.exit_code, admin.throttled) == (0, set()), ended.stderr


def test_a_plan_without_reassignments_cancels_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": []}')
    admin = ThrottlingAdmin()
    monkeypatch.setattr(paceline_client, "Admin", lambda *_, **__: admin)
    ended = CliRunner().invoke(cli, ["reassign", "cancel", "--plan", str(plan)])
    assert (ended.exit_code, len(admin.moves)) == (0, 1), ended.stderr


class SilentAdmin(ThrottlingAdmin):
    """A cluster whose controller answers the second question only; no move runs."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = []
        self.questions = 0

    def list_partition_reassignments(self, among: Any = None) -> list[Reassignment]:
        self.questions += 1
        if self.questions == 1:
            raise RequestTimedOutError("no controller has answered for 30 s")
        return super().list_partition_reassignments(among)


@pytest.mark.parametrize(("seconds", "exit_code"), [("60", 0), ("0", 68)])
def test_a_watched_reassignment_outlives_a_silent_controller_until_its_timeout(
    monkeypatch: pytest.MonkeyPatch, seconds: str, exit_code: int
) -> None:
    admin = SilentAdmin()
    monkeypatch.setattr(paceline_client, "Admin", lambda *_, **__: admin)
    monkeypatch.setattr(reassign, "_WATCH_EVERY_S", 0.0)
    ended = CliRunner().invoke(cli, ["reassign", "status", "--watch", "--timeout", seconds])
    assert ended.exit_code == exit_code, ended.stderr
    assert "REQUEST_TIMED_OUT: no controller has answered for 30 s" in ended.stderr
