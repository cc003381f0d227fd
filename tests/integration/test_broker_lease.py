"""A leader that is paused for longer than its lease, not its session (docs/decisions/0007-broker-lease.md)."""

import json
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline_client import Admin
from tests.support.waiting import eventually

TOPIC = "leased"
LEASE_MS = 8_000
"""Longer than a busy machine makes a broker that is well stand still."""
LONG_S = 120.0


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_silent_leader_is_replaced_while_registered_and_comes_back(tmp_path: Path) -> None:
    settings = {
        "controller.broker.lease.ms": str(LEASE_MS),
        "zookeeper.session.timeout.ms": "60000",
        "replica.lag.time.max.ms": "5000",
    }
    cluster = LocalCluster(
        tmp_path, CONFIG_FILE, brokers=2, controllers=1, settings=settings, ports=free_plan(1, 2), heap_mib=64
    )
    zookeeper = None
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (1, 2, {"min.insync.replicas": "1"})})
        zookeeper = KazooClient(cluster.zookeeper_connect, timeout=30.0)
        zookeeper.start(timeout=60)

        def state() -> dict[str, Any]:
            value: dict[str, Any] = json.loads(zookeeper.get(f"/brokers/topics/{TOPIC}/partitions/0/state")[0])
            return value

        eventually(lambda: len(state()["isr"]) == 2, LONG_S, "both replicas are in the ISR")
        before = state()
        old, new = before["leader"], 3 - before["leader"]
        registration = zookeeper.exists(f"/brokers/ids/{old}").czxid
        cluster.pause(cluster.broker(old))
        eventually(lambda: state()["leader"] == new, LONG_S, "the other replica leads")
        assert zookeeper.exists(f"/brokers/ids/{old}").czxid == registration, "the session is alive"
        cluster.resume(cluster.broker(old))
        eventually(lambda: len(state()["isr"]) == 2, LONG_S, "the old leader follows and has caught up")
        assert state()["leader"] == new
        # It may lead again only when its lease is back.
        cluster.terminate(cluster.broker(new))
        assert state()["leader"] == old
        assert zookeeper.exists(f"/brokers/ids/{old}").czxid == registration
    finally:
        if zookeeper is not None:
            zookeeper.stop()
            zookeeper.close()
        cluster.stop()
