"""The `paceline` command as its user calls it, against a real cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.dev.local_cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

PACELINE = Path(sys.executable).with_name("paceline")


def run(cluster: LocalCluster, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(PACELINE), *arguments, "-b", cluster.bootstrap],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_topic_from_create_to_delete(local_cluster: LocalCluster) -> None:
    made = run(local_cluster, "topic", "create", "cli", "--partitions", "2", "--replication-factor", "3")
    assert (made.returncode, made.stdout) == (0, "created cli\n"), made.stderr
    listed = json.loads(run(local_cluster, "topic", "list", "-o", "json").stdout)
    assert [(row["partitions"], row["offline"]) for row in listed if row["topic"] == "cli"] == [(2, 0)]
    sent = run(local_cluster, "produce", "cli", "--key-separator", ":", stdin="a:1\nb:2\na:3\n")
    assert sent.returncode == 0, sent.stderr
    read = run(local_cluster, "consume", "cli", "--exit-at-end", "-f", "%k=%v\\n")
    assert sorted(read.stdout.splitlines()) == ["a=1", "a=3", "b=2"]
    records = [
        json.loads(line) for line in run(local_cluster, "consume", "cli", "-e", "-o", "ndjson").stdout.splitlines()
    ]
    assert [record["value"] for record in records if record["key"] == "a"] == ["1", "3"]
    shown = json.loads(run(local_cluster, "partition", "describe", "cli/0", "-o", "json").stdout)
    assert {row["replica"] for row in shown} == {1, 2, 3}
    assert len({row["hw"] for row in shown}) == 1
    assert sum(row["role"] == "leader" for row in shown) == 1
    described = run(local_cluster, "topic", "describe", "cli")
    assert described.returncode == 0
    gone = run(local_cluster, "topic", "delete", "cli", "--yes")
    assert (gone.returncode, gone.stdout) == (0, "deleted cli\n"), gone.stderr
    assert "cli" not in run(local_cluster, "topic", "list").stdout.split()


def test_a_refusal_has_a_reason_and_the_status_as_exit_code(local_cluster: LocalCluster) -> None:
    refused = run(local_cluster, "topic", "create", "a/b")
    assert refused.returncode == 64 + 3  # INVALID_ARGUMENT
    assert refused.stderr.startswith("INVALID_TOPIC: ")
    unknown = run(local_cluster, "topic", "describe", "never-was", "-o", "json")
    assert unknown.returncode == 64 + 5  # NOT_FOUND
    assert json.loads(unknown.stderr)["error"]["reason"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_usage_errors_exit_with_2_and_name_the_nearest_command() -> None:
    wrong = subprocess.run([str(PACELINE), "topics"], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2
    assert "Did you mean 'topic'?" in wrong.stderr
