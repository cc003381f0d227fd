"""`paceline group` and `consume --group` against real processes."""

import json
import subprocess
import sys

import pytest

from paceline.dev.local_cluster import LocalCluster
from paceline_client import Admin, NewTopic, Producer

pytestmark = pytest.mark.timeout(120)


def paceline(cluster: LocalCluster, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from paceline.cli.main import main; main()", *arguments, "-b", cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def rows(cluster: LocalCluster, *arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(paceline(cluster, *arguments, "-o", "json"))
    return found


def test_a_groups_life_on_the_command_line(local_cluster: LocalCluster) -> None:
    cluster = local_cluster
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", partitions=2, replication_factor=3)])
    with Producer(cluster.bootstrap) as producer:
        for value in range(10):
            producer.send("orders", b"%d" % value, partition=value % 2)
        producer.flush()

    first = paceline(cluster, "consume", "orders", "--group", "tills", "-n", "4").split()
    rest = paceline(cluster, "consume", "orders", "--group", "tills", "-n", "6").split()
    assert sorted(first + rest, key=int) == [str(value) for value in range(10)]

    (listed,) = [row for row in rows(cluster, "group", "list") if row["group"] == "tills"]
    assert (listed["state"], listed["members"], listed["type"]) == ("Empty", 0, "consumer")
    (described,) = rows(cluster, "group", "describe", "tills")
    assert (described["state"], described["coordinator"]) == ("Empty", listed["coordinator"])
    assert [(row["partition"], row["lag"]) for row in rows(cluster, "group", "lag", "tills")] == [
        ("orders/0", 0),
        ("orders/1", 0),
    ]

    planned = rows(cluster, "group", "reset", "tills", "orders/0", "--to", "-2", "--dry-run")
    assert [(row["before"], row["after"]) for row in planned] == [(5, 3)]
    assert [row["lag"] for row in rows(cluster, "group", "lag", "tills")] == [0, 0]
    paceline(cluster, "group", "reset", "tills", "--to", "start")
    assert [row["lag"] for row in rows(cluster, "group", "lag", "tills")] == [5, 5]
    paceline(cluster, "group", "reset", "tills", "--to", "99")
    assert [row["committed"] for row in rows(cluster, "group", "lag", "tills")] == [5, 5]

    paceline(cluster, "group", "delete", "tills")
    assert "tills" not in paceline(cluster, "group", "list")
    assert "no such group: tills" in paceline(cluster, "group", "describe", "tills", code=3)
    assert "GROUP_ID_NOT_FOUND" in paceline(cluster, "group", "delete", "tills", code=64 + 5)
    assert "start, end" in paceline(cluster, "group", "reset", "tills", "--to", "soon", code=2)
