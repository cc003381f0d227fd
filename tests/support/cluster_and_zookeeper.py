"""A small cluster of processes with one topic, and a client of its ZooKeeper that reads partition states."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline_client import Admin


class ZooKeeperView:
    """Reads a cluster's nodes in ZooKeeper."""

    def __init__(self, client: KazooClient, topic: str) -> None:
        self._client = client
        self._topic = topic

    def state(self, partition: int = 0) -> dict[str, Any]:
        """Return the state node of a partition."""
        data, _ = self._client.get(f"/brokers/topics/{self._topic}/partitions/{partition}/state")
        found: dict[str, Any] = json.loads(data)
        return found

    def broker_epoch(self, broker_id: int) -> int | None:
        """Return the czxid of a broker's registration, None when it has none."""
        stat = self._client.exists(f"/brokers/ids/{broker_id}")
        return None if stat is None else int(stat.czxid)


@contextmanager
def cluster_and_zookeeper(
    directory: Path, brokers: int, settings: Mapping[str, str], topic: str, partitions: int, min_isr: int
) -> Iterator[tuple[LocalCluster, ZooKeeperView]]:
    """Run one controller and ``brokers`` brokers with a topic that has a replica on each of them."""
    cluster = LocalCluster(
        directory,
        CONFIG_FILE,
        brokers=brokers,
        controllers=1,
        settings=settings,
        ports=free_plan(1, brokers),
        heap_mib=64,
    )
    zookeeper = None
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({topic: (partitions, brokers, {"min.insync.replicas": str(min_isr)})})
        zookeeper = KazooClient(cluster.zookeeper_connect, timeout=30.0)
        zookeeper.start(timeout=60)
        yield cluster, ZooKeeperView(zookeeper, topic)
    finally:
        if zookeeper is not None:
            zookeeper.stop()
            zookeeper.close()
        cluster.stop()
