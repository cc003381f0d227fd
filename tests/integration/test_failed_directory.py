"""A log directory that fails is taken back without a restart; a topic deleted meanwhile does not come back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.errors import RequestTimedOutError
from paceline.runtime.embedded_zookeeper import java_path
from paceline.testing import PATIENT
from paceline_client import Admin, NewTopic, Producer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]
LONG_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    settings = {
        **PATIENT,
        "log.segment.delete.delay.ms": "100",
        "replica.high.watermark.checkpoint.interval.ms": "500",
    }
    running = LocalCluster(
        tmp_path, CONFIG_FILE, brokers=2, controllers=1, settings=settings, ports=free_plan(1, 2), heap_mib=64
    )
    running.start()
    node = running.broker(1)
    (tmp_path / "broker-1" / "data2").mkdir(mode=0o700)
    node.argv = [f"{one},{one[11:]}2" if one.startswith("--log-dirs=") else one for one in node.argv]
    running.terminate(node)
    running.restart(node)
    yield running
    running.stop()


def state_of(admin: Admin, path: Path) -> str:
    (broker,) = admin.describe_log_dirs([1])
    (found,) = (one for one in broker.log_dirs if one.path == str(path))
    return "online" if found.error is None else "failed"


def test_a_failed_directory_returns_without_a_topic_that_was_deleted_meanwhile(cluster: LocalCluster) -> None:
    directory = cluster.directory / "broker-1" / "data2"
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        config = {"min.insync.replicas": "1"}
        topics = [NewTopic(name, assignments=((1, 2),), configs=config) for name in ("kept", "dropped")]
        admin.create_topics(topics)
        for topic in ("kept", "dropped"):
            producer.send(topic, b"first", partition=0).result(LONG_S)
        admin.alter_replica_log_dirs({(topic, 0, 1): str(directory) for topic in ("kept", "dropped")})
        eventually(lambda: len(list(directory.glob("*-0"))) == len(topics), LONG_S, "both logs are in the directory")

        obstacle = directory / "replication-offset-checkpoint.tmp"
        obstacle.mkdir()
        eventually(lambda: state_of(admin, directory) == "failed", LONG_S, "the directory fails")
        (waits,) = admin.delete_topics(["dropped"], timeout_ms=1_000, raise_errors=False)
        assert isinstance(waits.error, RequestTimedOutError)
        producer.send("kept", b"second", partition=0).result(LONG_S)
        assert (directory / "dropped-0").exists()
        obstacle.rmdir()
        retry = ["broker", "logdirs", "1", "--retry", str(directory), "-b", cluster.bootstrap]
        answer = CliRunner().invoke(cli, retry)
        assert answer.exit_code == 0, answer.output
        assert state_of(admin, directory) == "online"
        eventually(
            lambda: sorted(admin.describe_topics(["kept"])[0].partitions[0].isr) == [1, 2], LONG_S, "it is in sync"
        )
        eventually(lambda: not list(directory.glob("dropped*")), LONG_S, "the deleted replica is removed")
        admin.create_topics([NewTopic("dropped", assignments=((1, 2),), configs=config)])
        assert producer.send("dropped", b"again", partition=0).result(LONG_S).offset == 0
    assert [node.name for node in cluster.nodes.values() if not node.running] == []
