"""A leader is paused longer than its lease but not its session (docs/decisions/0007-broker-lease.md)."""

from pathlib import Path

import pytest

from tests.support.cluster_and_zookeeper import cluster_and_zookeeper
from tests.support.waiting import eventually

TOPIC = "leased"
LEASE_MS = 8_000
"""Longer than a healthy broker stalls on a busy machine."""
LONG_S = 120.0


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_a_leader_without_heartbeats_is_replaced_while_registered_and_leads_again(tmp_path: Path) -> None:
    settings = {
        "controller.broker.lease.ms": str(LEASE_MS),
        "zookeeper.session.timeout.ms": "60000",
        "replica.lag.time.max.ms": "5000",
    }
    with cluster_and_zookeeper(tmp_path, 2, settings, TOPIC, partitions=1, min_isr=1) as (cluster, zookeeper):
        state = zookeeper.state
        eventually(lambda: len(state()["isr"]) == 2, LONG_S, "both replicas are in the ISR")
        before = state()
        old, new = before["leader"], 3 - before["leader"]
        registration = zookeeper.broker_epoch(old)
        cluster.pause(cluster.broker(old))
        eventually(lambda: state()["leader"] == new, LONG_S, "the other replica leads")
        assert zookeeper.broker_epoch(old) == registration, "the session is alive"
        cluster.resume(cluster.broker(old))
        eventually(lambda: len(state()["isr"]) == 2, LONG_S, "the old leader follows and has caught up")
        assert state()["leader"] == new
        # The controller elects the old leader again only if its lease is valid.
        cluster.terminate(cluster.broker(new))
        assert state()["leader"] == old
        assert zookeeper.broker_epoch(old) == registration
