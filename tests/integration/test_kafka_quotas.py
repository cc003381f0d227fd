"""Kafka 2.8's ``kafka-configs.sh --zookeeper`` at a cluster: it lists the quotas set here, and sets others."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline_client import Admin, NewTopic, Producer
from paceline_client.admin_quotas import Quota
from tests.integration.test_kafka_acls import jars
from tests.support.waiting import eventually

__all__ = ["jars"]
pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.cluster, pytest.mark.timeout(900)]
OBEYED_S = 10.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"default.replication.factor": "1", "min.insync.replicas": "1", "quota.window.num": "2"}
    cluster = LocalCluster(
        tmp_path_factory.mktemp("quotas") / "run", CONFIG_FILE, brokers=1, controllers=1, settings=settings
    )
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop(force=True)


def run(jars: Path, cluster: LocalCluster, *words: str) -> str:
    command = ["java", "-cp", f"{jars}/*", "kafka.admin.ConfigCommand", "--zookeeper", cluster.zookeeper_connect]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafkas_tool_sets_quotas_that_are_obeyed_and_lists_quotas_set_here(jars: Path, cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("rides", 1, 1)])
        names = ("--entity-type", "users", "--entity-name", "ANONYMOUS", "--entity-type", "clients",
                 "--entity-name", "a b*~ü/1")  # fmt: skip
        run(jars, cluster, "--alter", "--add-config", "producer_byte_rate=20000,request_percentage=150.5", *names)
        by_kafka = Quota("ANONYMOUS", "a b*~ü/1", {"producer_byte_rate": 20_000.0, "request_percentage": 150.5})
        eventually(lambda: admin.describe_client_quotas() == [by_kafka], OBEYED_S, "quotas of Kafka's tool are read")
        run(jars, cluster, "--alter", "--add-config", "producer_byte_rate=20000", "--entity-type", "clients",
            "--entity-default")  # fmt: skip
        eventually(lambda: len(admin.describe_client_quotas()) == 2, OBEYED_S, "the default of Kafka's tool is read")
        with Producer(cluster.bootstrap, client_id="any", batch_size=10_000) as producer:
            for future in [producer.send("rides", b"x" * 9_000) for _ in range(5)]:
                future.result(60)
            assert producer.throttle_time_ms > 0

        admin.alter_client_quotas({"consumer_byte_rate": 77, "controller_mutation_rate": 2.5}, user="al ice")
        admin.alter_client_quotas({"producer_byte_rate": 88}, user="<default>", client_id="<default>")
        listed = run(jars, cluster, "--describe", "--entity-type", "users", "--entity-name", "al ice")
        assert "consumer_byte_rate=77" in listed and "controller_mutation_rate=2.5" in listed
        pair = ("--entity-type", "users", "--entity-default", "--entity-type", "clients", "--entity-default")
        assert "producer_byte_rate=88" in run(jars, cluster, "--describe", *pair)
        run(jars, cluster, "--alter", "--delete-config", "producer_byte_rate", *pair)
        eventually(
            lambda: not [one for one in admin.describe_client_quotas() if one.user == "<default>"], OBEYED_S, "removed"
        )


def test_the_znodes_have_the_bytes_of_kafkas_tool(jars: Path, cluster: LocalCluster) -> None:
    zookeeper = KazooClient(cluster.zookeeper_connect)
    zookeeper.start(30)
    try:
        with Admin(cluster.bootstrap) as admin:
            run(jars, cluster, "--alter", "--add-config", "producer_byte_rate=1024", "--entity-type", "users",
                "--entity-name", "theirs")  # fmt: skip
            admin.alter_client_quotas({"producer_byte_rate": 1024}, user="ours")
        theirs, ours = (zookeeper.get(f"/config/users/{name}")[0] for name in ("theirs", "ours"))
        assert theirs == ours == b'{"version":1,"config":{"producer_byte_rate":"1024"}}'
        *_, before, latest = sorted(zookeeper.get_children("/config/changes"))
        notices = [zookeeper.get(f"/config/changes/{name}")[0] for name in (before, latest)]
        assert notices[0].replace(b"theirs", b"ours") == notices[1]
    finally:
        zookeeper.stop()
        zookeeper.close()
