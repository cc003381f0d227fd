"""Refused connections move the leaders of a killed broker long before its ZooKeeper session expires."""

import time
from pathlib import Path

import pytest

from paceline_client import Producer
from tests.support.cluster_and_zookeeper import cluster_and_zookeeper
from tests.support.waiting import eventually

TOPIC = "suspected"
SESSION_MS = 60_000
LONG_S = 50.0
"""Shorter than session and lease, so that only refused connections can move the leader in this time."""


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_killed_leader_is_replaced_and_writes_succeed_before_its_session_ends(tmp_path: Path) -> None:
    settings = {"zookeeper.session.timeout.ms": str(SESSION_MS), "controller.broker.lease.ms": str(SESSION_MS)}
    with cluster_and_zookeeper(tmp_path, 3, settings, TOPIC, partitions=2, min_isr=2) as (cluster, zookeeper):
        state = zookeeper.state
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
        assert zookeeper.broker_epoch(dead) is not None, "the session has not ended"
