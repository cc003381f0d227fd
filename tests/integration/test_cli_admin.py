"""The administrative commands of `paceline` against a real cluster."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.cli.reassign_plan import read_plan
from paceline.dev.local_cluster import LocalCluster
from paceline_client import Admin, NewTopic
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

DEADLINE_S = 180.0
REFUSED, NOT_FOUND, PRECONDITION = 64 + 3, 64 + 5, 64 + 9
NEGATIVE_VERDICT = 3


@dataclass
class Ended:
    """Exit code and output of a command, which runs in this process to save the start of dozens of processes."""

    returncode: int
    stdout: str
    stderr: str


def run(cluster: LocalCluster, *arguments: str) -> Ended:
    result = CliRunner().invoke(cli, [*arguments, "-b", cluster.bootstrap])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


def rows(cluster: LocalCluster, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = run(cluster, *arguments, "-o", "json")
    assert done.returncode == code, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def make(cluster: LocalCluster, name: str, *assignments: list[int]) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, assignments=assignments, configs={"min.insync.replicas": "1"})])
        eventually(lambda: admin.list_topics(), DEADLINE_S, "topics are listed")


def placed(cluster: LocalCluster, name: str) -> list[tuple[int, ...]]:
    with Admin(cluster.bootstrap) as admin:
        (topic,) = admin.describe_topics([name], from_controller=True)
        return [partition.replicas for partition in topic.partitions]


def test_a_configuration_is_shown_and_altered(local_cluster: LocalCluster) -> None:
    make(local_cluster, "cli-configs", [1])
    shown = {row["key"]: row for row in rows(local_cluster, "topic", "configs", "cli-configs")}
    assert shown["min.insync.replicas"]["source"] == "topic"
    assert shown["segment.bytes"].pop("documentation").startswith("Size in bytes")
    assert shown["segment.bytes"] == {
        "key": "segment.bytes",
        "value": "67108864",
        "source": "broker default",
        "default": "1073741824",
        "type": "integer",
    }
    assert shown["flush.messages"]["source"] == "built-in default"
    arguments = ("--set", "retention.ms=5", "--delete", "min.insync.replicas", "--append", "cleanup.policy=compact")
    altered = run(local_cluster, "topic", "alter", "cli-configs", *arguments)
    assert (altered.returncode, altered.stdout) == (0, "altered cli-configs\n"), altered.stderr
    keys = ("--key", "retention.ms", "--key", "min.insync.replicas", "--key", "cleanup.policy")
    assert {row["key"]: row["value"] for row in rows(local_cluster, "topic", "configs", "cli-configs", *keys)} == {
        "retention.ms": "5",
        "min.insync.replicas": "2",
        "cleanup.policy": "delete,compact",
    }
    changes = ("watch", "cli-configs", "--kind", "config", "--since", "all", "-n", "1", "-o", "ndjson")
    event = json.loads(run(local_cluster, *changes).stdout)
    assert (event["kind"], event["topic"]) == ("topic-configured", "cli-configs")
    wrong = run(local_cluster, "topic", "alter", "cli-configs", "--set", "retention=5")
    assert wrong.returncode == REFUSED
    assert wrong.stderr.startswith("INVALID_CONFIG: unknown topic configuration 'retention'")
    assert run(local_cluster, "topic", "alter", "cli-configs").returncode == 2


def test_the_settings_of_a_broker_that_is_not_live_are_shown_with_a_negative_verdict(
    local_cluster: LocalCluster,
) -> None:
    done = run(local_cluster, "broker", "configs", "99", "-o", "json")
    assert done.returncode == NEGATIVE_VERDICT and "broker 99 is not live" in done.stderr
    assert {row["source"] for row in json.loads(done.stdout)} == {"built-in default"}
    assert run(local_cluster, "broker", "configs", "1").returncode == 0


def test_a_created_topic_is_printed_as_json(local_cluster: LocalCluster) -> None:
    (row,) = rows(local_cluster, "topic", "create", "cli-json", "--partitions", "2", "--replication-factor", "3")
    assert row["topic"] == "cli-json" and [len(replicas) for replicas in row["assignments"]] == [3, 3]
    assert len(row["topic_id"]) == 22


def test_a_topic_grows(local_cluster: LocalCluster) -> None:
    make(local_cluster, "cli-grow", [1, 2])
    grown = run(local_cluster, "topic", "add-partitions", "cli-grow", "--count", "3")
    assert (grown.returncode, grown.stdout) == (0, "added partitions 1 to 2 to cli-grow\n"), grown.stderr
    assert len(placed(local_cluster, "cli-grow")) == 3
    again = run(local_cluster, "topic", "add-partitions", "cli-grow", "--count", "3")
    assert again.returncode == REFUSED
    assert again.stderr.startswith("INVALID_PARTITIONS: ")


def test_a_reassignment_runs_from_plan_to_completion(local_cluster: LocalCluster, tmp_path: Path) -> None:
    make(local_cluster, "cli-move", [1, 2], [2, 1])
    plan = str(tmp_path / "plan.json")
    made = run(local_cluster, "reassign", "plan", "--topic", "cli-move", "--brokers", "2,3", "--file", plan)
    assert made.returncode == 0, made.stderr
    assert "2 of 2 partitions change, 2 replicas are copied" in made.stderr
    assert all(sorted(replicas) == [2, 3] for replicas in read_plan(Path(plan)).values())
    assert [row["state"] for row in rows(local_cluster, "reassign", "status", plan, code=3)] == ["not started"] * 2
    started = run(local_cluster, "reassign", "start", plan)
    assert (started.returncode, started.stdout) == (0, "2 of 2 moves started\n"), started.stderr
    watched = run(local_cluster, "reassign", "status", plan, "--watch", "--timeout", "170", "-o", "ndjson")
    assert watched.returncode == 0, watched.stderr
    last = [json.loads(line) for line in watched.stdout.splitlines()[-2:]]
    assert [(row["partition"], row["state"]) for row in last] == [("cli-move/0", "done"), ("cli-move/1", "done")]
    assert [sorted(replicas) for replicas in placed(local_cluster, "cli-move")] == [[2, 3]] * 2
    nothing = run(local_cluster, "reassign", "cancel", "cli-move/0")
    assert nothing.returncode == PRECONDITION
    assert nothing.stderr.startswith("NO_REASSIGNMENT_IN_PROGRESS: ")
    assert run(local_cluster, "reassign", "cancel").returncode == 2


def test_deleted_partitions_of_a_plan_have_rows_and_keep_no_throttle(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    make(local_cluster, "cli-stays", [1])
    make(local_cluster, "cli-goes", [1])
    plan = tmp_path / "plan.json"
    moves = [("cli-stays", 0, [1, 2]), ("cli-goes", 0, [1, 2]), ("cli-stays", 7, [1])]
    rows_of_plan = [{"topic": topic, "partition": index, "replicas": replicas} for topic, index, replicas in moves]
    plan.write_text(json.dumps({"version": 1, "partitions": rows_of_plan}))
    started = run(local_cluster, "reassign", "start", str(plan), "--throttle", "90000000")
    assert started.stdout == "2 of 3 moves started, at 90000000 bytes a second\n", started.stderr
    assert run(local_cluster, "topic", "delete", "cli-goes", "--yes").returncode == 0

    def states() -> dict[str, tuple[str, str | None]]:
        shown = rows(local_cluster, "reassign", "status", str(plan), "--preserve-throttles", code=3)
        return {row["partition"]: (row["state"], row["reason"]) for row in shown}

    gone = ("gone", "the partition does not exist")
    expected = {"cli-goes/0": gone, "cli-stays/0": ("done", None), "cli-stays/7": gone}
    eventually(lambda: states() == expected, DEADLINE_S, "one reassignment is complete, two have no partition")
    again = run(local_cluster, "reassign", "start", str(plan), "--throttle", "70000000")
    assert again.stdout == "1 of 3 moves started; no records to copy, no throttle set\n"
    ended = run(local_cluster, "reassign", "status", str(plan), "--watch")
    assert ended.returncode == 3
    assert "throttle removed from brokers 1, 2 and topics cli-stays" in ended.stderr


def test_a_malformed_plan_file_is_wrong_usage(local_cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    wrong = run(local_cluster, "reassign", "start", str(path))
    assert wrong.returncode == 2
    assert "is not a plan" in wrong.stderr
    unknown = run(local_cluster, "reassign", "plan", "--topic", "never-was")
    assert unknown.returncode == NOT_FOUND


def test_leaders_are_elected(local_cluster: LocalCluster) -> None:
    make(local_cluster, "cli-elect", [1, 2])
    with Admin(local_cluster.bootstrap) as admin:
        admin.alter_partition_reassignments({("cli-elect", 0): [2, 1]})
    forecast = rows(local_cluster, "partition", "elect", "cli-elect/0", "--preferred", "--dry-run")
    assert forecast[0]["leader"] in (2, None)
    (elected,) = rows(local_cluster, "partition", "elect", "cli-elect", "--preferred")
    assert elected["error"] in (None, "ELECTION_NOT_NEEDED"), "the periodic rebalance may have been faster"
    described = rows(local_cluster, "topic", "describe", "cli-elect")
    eventually(
        lambda: rows(local_cluster, "topic", "describe", "cli-elect")[0]["leader"] == 2, DEADLINE_S, str(described)
    )
    (not_needed,) = rows(local_cluster, "partition", "elect", "cli-elect/0", "--unclean", "--yes")
    assert not_needed["error"] == "ELECTION_NOT_NEEDED"
    (unknown, *_) = json.loads(
        run(local_cluster, "partition", "elect", "cli-elect/7", "--preferred", "-o", "json").stdout
    )
    assert unknown["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert run(local_cluster, "partition", "elect", "cli-elect/0").returncode == 2
    assert run(local_cluster, "partition", "elect", "--preferred").returncode == 2


def test_brokers_are_listed_described_and_drained(local_cluster: LocalCluster, tmp_path: Path) -> None:
    make(local_cluster, "cli-drain", [3, 1], [3, 2])

    def replicas() -> dict[int, int]:
        return {row["broker"]: row["replicas"] for row in rows(local_cluster, "broker", "list")}

    eventually(lambda: replicas()[3] >= 2, DEADLINE_S, "broker 3 has the new replicas")
    assert sorted(replicas()) == [1, 2, 3]
    eventually(
        lambda: run(local_cluster, "broker", "describe", "3").returncode == 0, DEADLINE_S, "all replicas are in sync"
    )
    held = {row["partition"]: row for row in rows(local_cluster, "broker", "describe", "3")}
    assert held["cli-drain/0"]["role"] == "leader" and held["cli-drain/0"]["preferred"]
    dry = run(local_cluster, "broker", "drain", "3", "--dry-run")
    assert "would move off broker 3" in dry.stdout, dry.stderr
    assert placed(local_cluster, "cli-drain") == [(3, 1), (3, 2)]
    plan = tmp_path / "undo.json"
    assert run(local_cluster, "broker", "drain", "3", "--dry-run", "--save", str(plan)).returncode == 0
    assert not plan.exists(), "a dry run writes nothing"
    drained = run(local_cluster, "broker", "drain", "3", "--save", str(plan))
    assert drained.returncode == 0, drained.stderr
    assert placed(local_cluster, "cli-drain") == [(1, 3), (2, 3)]
    with Admin(local_cluster.bootstrap) as admin:
        (topic,) = admin.describe_topics(["cli-drain"], from_controller=True)
        assert [partition.leader for partition in topic.partitions] == [1, 2]
    assert read_plan(plan)["cli-drain", 0] == (3, 1)
    again = run(local_cluster, "broker", "drain", "3", "--save", str(plan))
    assert (again.returncode, "exists already" in again.stderr) == (1, True), again.stderr
    assert read_plan(plan)["cli-drain", 0] == (3, 1), "the saved order stays"
    assert run(local_cluster, "reassign", "start", str(plan)).returncode == 0
    assert placed(local_cluster, "cli-drain") == [(3, 1), (3, 2)]
    gone = run(local_cluster, "broker", "describe", "77")
    assert gone.returncode == 3


def test_brokers_that_are_not_live_are_named(local_cluster: LocalCluster) -> None:
    altered = run(local_cluster, "broker", "alter", "77", "--delete", "leader.replication.throttled.rate")
    assert (altered.returncode, altered.stderr) == (0, "broker 77 is not live; live brokers: 1, 2, 3\n")
    assert run(local_cluster, "broker", "configs", "77").stderr == "broker 77 is not live; live brokers: 1, 2, 3\n"
    assert run(local_cluster, "broker", "configs", "all").stderr == ""


def test_a_topic_that_accepts_no_acks_all_is_reported_at_its_creation(local_cluster: LocalCluster) -> None:
    made = run(local_cluster, "topic", "create", "cli-single", "--partitions", "1", "--replication-factor", "1")
    assert (made.returncode, made.stdout) == (0, "created cli-single\n")
    assert "cli-single has 1 replicas and min.insync.replicas=2 (broker default)" in made.stderr
    fine = ("--replication-factor", "1", "--config", "min.insync.replicas=1")
    assert run(local_cluster, "topic", "create", "cli-single-fine", *fine).stderr == ""


def test_the_controller_is_described(local_cluster: LocalCluster) -> None:
    (row,) = rows(local_cluster, "controller", "describe")
    assert row["controller"] >= 1_000_000
    assert row["epoch"] >= 1
    assert ":" in row["address"]
