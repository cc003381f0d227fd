"""A broker killed long before its ZooKeeper session ends: its leaders move on refused connects."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline_client import Admin, Producer
from tests.support.waiting import eventually

TOPIC = "suspected"
SESSION_MS = 60_000
LONG_S = 50.0
"""Less than the session: nothing else than a suspicion can move the leader by then."""


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_killed_leader_is_replaced_and_writes_succeed_before_its_session_ends(tmp_path: Path) -> None:
    settings = {"zookeeper.session.timeout.ms": str(SESSION_MS), "controller.broker.lease.ms": str(SESSION_MS)}
    cluster = LocalCluster(
        tmp_path, CONFIG_FILE, brokers=3, controllers=1, settings=settings, ports=free_plan(1, 3), heap_mib=64
    )
    zookeeper = None
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (2, 3, {"min.insync.replicas": "2"})})
        zookeeper = KazooClient(cluster.zookeeper_connect, timeout=30.0)
        zookeeper.start(timeout=60)

        def state(partition: int) -> dict[str, Any]:
            value: dict[str, Any] = json.loads(
                zookeeper.get(f"/brokers/topics/{TOPIC}/partitions/{partition}/state")[0]
            )
            return value

        eventually(lambda: all(len(state(p)["isr"]) == 3 for p in (0, 1)), LONG_S, "every replica is in the ISR")
        dead = state(0)["leader"]
        assert state(1)["leader"] != dead, "the other partition is one that the dead broker follows"
        killed_s = time.monotonic()
        cluster.kill(cluster.broker(dead))
        eventually(lambda: state(0)["leader"] not in (dead, -1), LONG_S, "another in-sync replica leads")
        eventually(lambda: dead not in state(1)["isr"], LONG_S, "the dead follower left the ISR")
        print(f"leader replaced {time.monotonic() - killed_s:.2f} s after the kill")
        with Producer(cluster.bootstrap, acks="all") as producer:
            sent = [producer.send(TOPIC, b"value", partition=partition) for partition in (0, 1)]
            producer.flush(LONG_S)
            assert all(future.result(0).offset == 0 for future in sent)
        assert zookeeper.exists(f"/brokers/ids/{dead}") is not None, "the session has not ended"
    finally:
        if zookeeper is not None:
            zookeeper.stop()
            zookeeper.close()
        cluster.stop()


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_killed_controller_is_replaced_before_its_session_ends(tmp_path: Path) -> None:
    settings = {"zookeeper.session.timeout.ms": str(SESSION_MS)}
    cluster = LocalCluster(
        tmp_path, CONFIG_FILE, brokers=1, controllers=2, settings=settings, ports=free_plan(2, 1), heap_mib=64
    )
    zookeeper = None
    try:
        cluster.start()
        zookeeper = KazooClient(cluster.zookeeper_connect, timeout=30.0)
        zookeeper.start(timeout=60)

        def active() -> int:
            return int(json.loads(zookeeper.get("/controller")[0])["brokerid"])

        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (1, 1, {})})
            dead = active()
            index = next(i for i in (0, 1) if cluster.controller(i).node_id == dead)
            killed_s = time.monotonic()
            cluster.kill(cluster.controller(index))
            eventually(lambda: active() != dead, LONG_S, "the standby is the active controller")
            print(f"controller replaced {time.monotonic() - killed_s:.2f} s after the kill")
            admin.create_topics({"after": (1, 1, {})})
    finally:
        if zookeeper is not None:
            zookeeper.stop()
            zookeeper.close()
        cluster.stop()


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_killed_broker_registers_again_before_its_old_session_ends(tmp_path: Path) -> None:
    settings = {"zookeeper.session.timeout.ms": str(SESSION_MS), "controller.broker.lease.ms": str(SESSION_MS)}
    cluster = LocalCluster(
        tmp_path, CONFIG_FILE, brokers=3, controllers=1, settings=settings, ports=free_plan(1, 3), heap_mib=64
    )
    zookeeper = None
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({TOPIC: (1, 3, {"min.insync.replicas": "2"})})
        zookeeper = KazooClient(cluster.zookeeper_connect, timeout=30.0)
        zookeeper.start(timeout=60)

        def isr() -> list[int]:
            state = json.loads(zookeeper.get(f"/brokers/topics/{TOPIC}/partitions/0/state")[0])
            return sorted(state["isr"])

        eventually(lambda: len(isr()) == 3, LONG_S, "every replica is in the ISR")
        dead = cluster.broker(2)
        before = zookeeper.get("/brokers/ids/2")[1]
        killed_s = time.monotonic()
        cluster.kill(dead)
        eventually(lambda: isr() == [1, 3], LONG_S, "the dead broker left the ISR")
        cluster.restart(dead)
        ready_s = time.monotonic() - killed_s
        eventually(lambda: isr() == [1, 2, 3], LONG_S, "the broker is in the ISR again")
        print(f"ready {ready_s:.2f} s, full ISR {time.monotonic() - killed_s:.2f} s after the kill")
        after = zookeeper.get("/brokers/ids/2")[1]
        assert after.czxid > before.czxid and after.ephemeralOwner != before.ephemeralOwner
        assert time.monotonic() - killed_s < SESSION_MS / 1000, "the old session has not ended"
    finally:
        if zookeeper is not None:
            zookeeper.stop()
            zookeeper.close()
        cluster.stop()
