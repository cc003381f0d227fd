"""A registration that ZooKeeper refuses, or whose cluster id cannot be compared with that of the log directories."""

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


@pytest.mark.parametrize("problem", ["cannot be read", "damaged"])
def test_a_broker_ends_when_it_cannot_read_the_ids_of_its_log_directory_at_a_new_registration(problem: str) -> None:
    cluster = BrokerCluster((1,))
    files, path = cluster[1].files, "/data/meta.properties"
    if problem == "damaged":
        files.contents[path] = bytearray(b"broker.id=1\n")
    else:
        files.fails = lambda operation, name: operation == "read_at" and name == path
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_until(lambda: bool(cluster[1].fatal), 5_000)
    assert path in str(cluster[1].fatal[0])
