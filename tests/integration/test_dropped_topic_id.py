"""A topic id that a tool removed while no controller ran is restored from the replicas' files."""

import json
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline_client import Admin
from tests.support.stub_client import StubClient
from tests.support.waiting import eventually

TOPIC = "orders"
LONG_S = 120.0


def node_of(zookeeper: KazooClient) -> dict[str, object]:
    value: dict[str, object] = json.loads(zookeeper.get(f"/brokers/topics/{TOPIC}")[0])
    return value


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_dropped_topic_id_is_restored_from_partition_metadata(tmp_path: Path) -> None:
    """The controller restores the old id; with a new id, both brokers would set their logs and records aside."""
    cluster = LocalCluster(tmp_path, CONFIG_FILE, brokers=2, controllers=1, ports=free_plan(1, 2), heap_mib=64)
    zookeeper = None
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (1, 2, {"min.insync.replicas": "2"})})
        with StubClient(cluster.bootstrap.split(",")) as client:
            client.produce(TOPIC, 0, [b"one", b"two"])
            zookeeper = KazooClient(cluster.zookeeper_connect, timeout=30.0)
            zookeeper.start(timeout=LONG_S)
            before = node_of(zookeeper)
            cluster.kill(cluster.controller(0))
            rewritten = {"version": 1, "partitions": before["partitions"]}
            zookeeper.set(f"/brokers/topics/{TOPIC}", json.dumps(rewritten).encode())
            cluster.restart(cluster.controller(0))

            eventually(lambda: "topic_id" in node_of(zookeeper), LONG_S, "the topic has an id again")
            assert node_of(zookeeper) == before
            # A restarted follower joins the ISR only after it received the topic id, so no log was set aside.
            cluster.terminate(cluster.broker(2))
            cluster.restart(cluster.broker(2))
            assert client.produce(TOPIC, 0, [b"three"]) == 2
            there = client.read_all(TOPIC, 0, 3, LONG_S)
            assert [there[offset] for offset in range(3)] == [b"one", b"two", b"three"]
        for broker_id in (1, 2):
            folders = {path.name for path in (tmp_path / f"broker-{broker_id}" / "data").glob(f"{TOPIC}*")}
            assert folders == {f"{TOPIC}-0"}, "no log was set aside"
            written = (tmp_path / f"broker-{broker_id}" / "data" / f"{TOPIC}-0" / "partition.metadata").read_text()
            assert f"topic_id: {before['topic_id']}" in written
    finally:
        if zookeeper is not None:
            zookeeper.stop()
            zookeeper.close()
        cluster.stop()
