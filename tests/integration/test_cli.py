"""The `paceline` command, run as a process against a real cluster."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.dev.detached_cluster import running_clusters
from paceline.dev.local_cluster import LocalCluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

PACELINE = Path(sys.executable).with_name("paceline")
LONG_S = 120.0
"""Upper bound on each wait, far longer than any operation takes, because a busy machine slows everything."""


def run(cluster: LocalCluster, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(PACELINE), *arguments, "-b", cluster.bootstrap],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


def test_a_topic_from_create_to_delete(local_cluster: LocalCluster) -> None:
    made = run(local_cluster, "topic", "create", "cli", "--partitions", "2", "--replication-factor", "3")
    assert (made.returncode, made.stdout) == (0, "created cli\n"), made.stderr

    def listed() -> list[tuple[int, int]]:
        """Return partition counts of the topic at one broker, which learns of it shortly after CreateTopics returns."""
        rows = json.loads(run(local_cluster, "topic", "list", "-o", "json").stdout)
        return [(row["partitions"], row["offline"]) for row in rows if row["topic"] == "cli"]

    eventually(lambda: listed() == [(2, 0)], LONG_S, "the topic is listed with two partitions online")
    sent = run(local_cluster, "produce", "cli", "--key-separator", ":", stdin="a:1\nb:2\na:3\n")
    assert sent.returncode == 0, sent.stderr
    read = run(local_cluster, "consume", "cli", "--exit-at-end", "-f", "%k=%v\\n")
    assert sorted(read.stdout.splitlines()) == ["a=1", "a=3", "b=2"]
    records = [
        json.loads(line) for line in run(local_cluster, "consume", "cli", "-e", "-o", "ndjson").stdout.splitlines()
    ]
    assert [record["value"] for record in records if record["key"] == "a"] == ["1", "3"]
    assert sorted(run(local_cluster, "consume", "cli", "-e", "--from", "1h").stdout.split()) == ["1", "2", "3"]
    assert run(local_cluster, "consume", "cli", "-e", "--from", "2100-01-01").stdout == ""
    copy = "\n".join(json.dumps({**record, "partition": 1, "headers": {"copied": "yes"}}) for record in records)
    sent = run(local_cluster, "produce", "cli", "--input", "ndjson", stdin=copy)
    assert sent.stderr == "3 records: 3 to cli/1\n"
    copied = ["consume", "cli", "cli/1", "--to", "end", "--filter", "header.copied=yes", "--filter", "key=a"]
    assert (
        run(local_cluster, *copied, "-f", "%t/%p %k %s %h\\n").stdout == "cli/1 a 1 copied=yes\ncli/1 a 3 copied=yes\n"
    )
    shown = json.loads(run(local_cluster, "partition", "describe", "cli/0", "-o", "json").stdout)
    assert {row["replica"] for row in shown} == {1, 2, 3}
    assert len({row["hw"] for row in shown}) == 1
    assert sum(row["role"] == "leader" for row in shown) == 1
    described = run(local_cluster, "topic", "describe", "cli")
    assert described.returncode == 0
    gone = run(local_cluster, "topic", "delete", "cli", "--yes")
    assert (gone.returncode, gone.stdout) == (0, "deleted cli\n"), gone.stderr
    eventually(lambda: listed() == [], LONG_S, "the topic is not listed any more")


def test_a_refusal_has_a_reason_and_the_status_as_exit_code(local_cluster: LocalCluster) -> None:
    refused = run(local_cluster, "topic", "create", "a/b")
    assert refused.returncode == 64 + 3  # INVALID_ARGUMENT
    assert refused.stderr.startswith("INVALID_TOPIC: ")
    unknown = run(local_cluster, "topic", "describe", "never-was", "-o", "json")
    assert unknown.returncode == 64 + 5  # NOT_FOUND
    assert json.loads(unknown.stderr)["error"]["reason"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_dev_cluster_is_found_from_another_directory(local_cluster: LocalCluster) -> None:
    assert running_clusters()[local_cluster.directory] == local_cluster.bootstrap


def test_usage_errors_exit_with_2_and_name_the_nearest_command() -> None:
    wrong = subprocess.run([str(PACELINE), "topics"], capture_output=True, text=True, timeout=LONG_S, check=False)
    assert wrong.returncode == 2
    assert "Did you mean 'topic'?" in wrong.stderr


def test_a_closed_output_is_no_failure(local_cluster: LocalCluster) -> None:
    run(local_cluster, "topic", "create", "pipe", "--partitions", "1")
    assert run(local_cluster, "produce", "pipe", stdin="x" * 99 + "\n" + "y\n" * 20_000).returncode == 0
    command = f'set -o pipefail; "{PACELINE}" consume pipe -b {local_cluster.bootstrap} | head -n 1'
    read = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=LONG_S, check=False)
    assert (read.returncode, read.stdout, read.stderr) == (0, "x" * 99 + "\n", "")


def test_a_line_that_is_too_large_is_named_and_the_others_are_sent(local_cluster: LocalCluster) -> None:
    run(local_cluster, "topic", "create", "large", "--partitions", "1")
    sent = run(local_cluster, "produce", "large", stdin="a\n" + "x" * 2_000_000 + "\nb\n")
    assert sent.returncode == 1
    assert "line 2: MESSAGE_TOO_LARGE" in sent.stderr and "2 records: 2 to large/0" in sent.stderr
    assert run(local_cluster, "consume", "large", "-e").stdout == "a\nb\n"


def test_consume_ends_when_its_topic_is_deleted(local_cluster: LocalCluster) -> None:
    run(local_cluster, "topic", "create", "gone", "--partitions", "2")
    with subprocess.Popen(
        [str(PACELINE), "consume", "gone", "-b", local_cluster.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as reader:
        try:
            assert run(local_cluster, "topic", "delete", "gone", "--yes").returncode == 0
            _, stderr = reader.communicate(timeout=LONG_S)
        finally:
            reader.kill()
    assert reader.returncode == 64 + 5  # NOT_FOUND
    assert stderr.startswith("UNKNOWN_TOPIC_OR_PARTITION: ")


def test_an_unknown_topic_is_reported_soon(local_cluster: LocalCluster) -> None:
    begin = time.monotonic()
    assert run(local_cluster, "partition", "describe", "never-was/0").returncode == 64 + 5
    assert time.monotonic() - begin < LONG_S / 2
