"""A reassignment plan computed from the measured load of a real cluster, run by `paceline reassign start`."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline_client import Admin, NewTopic, Producer

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

PARTITIONS = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path_factory.mktemp("cluster"), CONFIG_FILE, brokers=3, controllers=1)
    running.start(timeout_s=240)
    yield running
    running.stop(force=True)


def paceline(cluster: LocalCluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "paceline.cli", *arguments, "-b", cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def replicas(admin: Admin, topic: str) -> list[tuple[int, ...]]:
    (described,) = admin.describe_topics([topic])
    return [tuple(partition.replicas) for partition in described.partitions]


def test_a_plan_empties_a_broker_and_reassign_runs_it(cluster: LocalCluster, tmp_path: Path) -> None:
    with Admin(cluster.bootstrap) as admin:
        brokers = [broker.broker_id for broker in admin.describe_cluster().brokers]
        victim = brokers[0]
        uneven = {n: [victim, brokers[1 + n % 2]] for n in range(PARTITIONS)}
        admin.create_topics([NewTopic("moved", assignments=[uneven[n] for n in range(PARTITIONS)])])
        with Producer(cluster.bootstrap) as producer:
            for n in range(PARTITIONS):
                producer.send("moved", bytes(1000 * (n + 1)), partition=n)
        file = tmp_path / "plan.json"
        rest = ",".join(map(str, brokers[1:]))
        plan = ("reassign", "plan", "--all-topics", "--brokers", rest, "--by-load")
        planned = paceline(cluster, *plan, "0.5", "--file", str(file))
        assert planned.returncode == 0, planned.stderr
        assert f"{PARTITIONS} of {PARTITIONS} partitions change, {PARTITIONS} replicas" in planned.stderr
        assert "disk: " in planned.stderr and "\n0 bytes" not in planned.stderr
        moves = json.loads(file.read_text())["partitions"]
        assert {move["topic"] for move in moves} == {"moved"} and len(moves) == PARTITIONS
        started = paceline(cluster, "reassign", "start", str(file))
        assert started.returncode == 0, started.stderr
        deadline = time.monotonic() + 180
        while any(victim in each for each in replicas(admin, "moved")):
            assert time.monotonic() < deadline, "the broker is not empty yet"
            time.sleep(0.2)
        assert all(set(each) == set(brokers[1:]) for each in replicas(admin, "moved"))
        # The load of the other two brokers is even, so that a second plan moves nothing.
        again = paceline(cluster, *plan, "0")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout) == {"version": 1, "partitions": []}


def test_an_impossible_plan_is_a_usage_error_and_writes_no_file(cluster: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    with Admin(cluster.bootstrap) as admin:
        brokers = [broker.broker_id for broker in admin.describe_cluster().brokers]
        admin.create_topics([NewTopic("everywhere", assignments=[brokers])])
    rest = ",".join(map(str, brokers[1:]))
    plan = ("reassign", "plan", "--topic", "everywhere", "--by-load", "0", "--file", str(file))
    refused = paceline(cluster, *plan, "--brokers", rest)
    assert refused.returncode != 0 and "do not fit" in refused.stderr and not file.exists()
    unknown = paceline(cluster, *plan, "--brokers", "4711")
    assert unknown.returncode != 0 and "4711" in unknown.stderr
