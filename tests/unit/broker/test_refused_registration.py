"""A registration that ZooKeeper refuses."""

import pytest

from paceline.coordination import znodes
from tests.support.broker_cluster import BrokerCluster


def test_a_registration_that_zookeeper_refuses_is_logged_once_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    cluster = BrokerCluster((1,))
    cluster.server.tree.read_only.add(znodes.broker_path(2))
    broker = cluster.boot(2)
    cluster.time.run_for(5_500)
    (line,) = [record.getMessage() for record in caplog.records if "not registered" in record.getMessage()]
    assert line.startswith("not registered, trying again: broker=2 error=") and znodes.broker_path(2) in line
    cluster.server.tree.read_only.clear()
    cluster.time.run_until(lambda: broker.node.ready, 5_000)
