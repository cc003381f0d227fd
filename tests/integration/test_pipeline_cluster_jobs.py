"""Jobs over a real cluster that publishes its events: `pipeline analyse` of a killed leader, `verify` of replicas."""

import json
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.pipeline.jobs.analyse import job as analyse
from paceline_client import Admin, NewTopic, Producer
from paceline_client.process_channels import close_channels
from tests.support.spark import spark  # noqa: F401
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(
        tmp_path_factory.mktemp("cluster"),
        CONFIG_FILE,
        brokers=3,
        controllers=1,
        settings={"cluster.events.topic.enable": "true"},
    )
    running.start(timeout_s=240)
    yield running
    close_channels()
    running.stop(force=True)


def leader_of(admin: Admin, topic: str) -> int | None:
    (described,) = admin.describe_topics([topic])
    return described.partitions[0].leader


@pytest.mark.origin("S1-12")
@pytest.mark.slow
def test_the_events_of_a_killed_leader_become_the_spans_of_a_failover(
    spark: Any,  # noqa: F811
    cluster: LocalCluster,
    record_property: Callable[[str, object], None],
) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, linger_ms=0) as producer:
        admin.create_topics([NewTopic("orders", partitions=1, replication_factor=3)])
        producer.send("orders", b"before").result(60)
        # Wait for heartbeats of the leader: the time since the last heartbeat is the first span.
        time.sleep(4)
        old = leader_of(admin, "orders")
        assert old is not None
        cluster.kill(cluster.broker(old))
        try:
            producer.send("orders", b"after").result(120)
            config = analyse.AnalyseConfig(tuple(cluster.bootstrap.split(",")))
            found: dict[str, Any] = {}

            def analysed() -> bool:
                found.update(analyse.run(spark, config).summary)
                moves = [each for each in found["details"]["failovers"] if each["where"] == "orders/0"]
                return any(each["recover_ms"] is not None for each in moves)

            eventually(analysed, 180, "the events of the failover are in the topic", pause_s=1.0)
            (move,) = [each for each in found["details"]["failovers"] if each["where"] == "orders/0"]
            assert move["cause"] == "broker failure"
            assert 0 <= move["detect_ms"] < 60_000
            assert all(0 <= move[f"{phase}_ms"] < 30_000 for phase in ("elect", "propagate", "recover"))
            assert set(found["failover_ms"]["broker failure"]) == {"detect", "elect", "propagate", "recover"}
            assert found["failovers"] >= 1 and found["negative_spans"] == 0
            for phase in ("detect", "elect", "propagate", "recover"):
                record_property(f"real processes, {phase} (ms)", move[f"{phase}_ms"])
        finally:
            cluster.restart(cluster.broker(old))


def verify(cluster: LocalCluster) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the summary of the command."""
    ended = CliRunner().invoke(cli, ["verify", "--topic", "checked", "-b", cluster.bootstrap, "-o", "json"])
    assert ended.exit_code in (0, 3), ended.stderr
    return ended.exit_code, json.loads(ended.stdout)


def test_replicas_that_differ_are_found_and_named(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        admin.create_topics([NewTopic("checked", partitions=2, replication_factor=3)])
        for number in range(200):
            producer.send("checked", b"value %d" % number, partition=number % 2)
        producer.flush()

        def equal() -> bool:
            code, summary = verify(cluster)
            return code == 0 and summary["records"] == 200

        eventually(equal, 120, "every replica has every record", pause_s=0.5)
        (described,) = admin.describe_topics(["checked"])
        leader = described.partitions[1].leader
        follower = next(b for b in described.partitions[1].replicas if b != leader)
    node = cluster.broker(follower)
    assert cluster.terminate(node) == 0
    (segment,) = cluster.directory.glob(f"**/*{follower}*/**/checked-1/00000000000000000000.log")
    log = bytearray(segment.read_bytes())
    at = log.index(b"value 1", 61)
    log[at] ^= 1
    # Replace a batch by another valid batch: its checksum is correct, so only a comparison of replicas finds it.
    size = struct.unpack_from(">i", log, 8)[0] + 12
    assert at < size
    struct.pack_into(">I", log, 17, google_crc32c.value(bytes(log[21:size])))
    segment.write_bytes(log)
    cluster.restart(node)

    def found() -> bool:
        _, summary = verify(cluster)
        return summary["differences"] == {"diverged-bytes": 1} and summary["findings"][0]["broker"] == follower

    eventually(found, 120, "the changed replica is found", pause_s=0.5)
    code, summary = verify(cluster)
    assert code == 3 and summary["findings"][0]["partition"] == 1
