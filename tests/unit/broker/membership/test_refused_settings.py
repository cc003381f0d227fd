"""Settings that ZooKeeper refuses to read are read again, and the reason is logged once."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create
from tests.support.broker_cluster import BrokerCluster


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (znodes.broker_config_path(1), "dynamic settings not read, trying again: broker=1 error="),
        (znodes.CONFIG_CHANGES, "changes of settings not read, trying again: error="),
    ],
)
def test_settings_that_zookeeper_refuses_to_read_are_logged(
    path: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = BrokerCluster((1,))
    cluster.zk(Create(path, znodes.encode_config({})))  # /config/changes exists already
    cluster.server.tree.unreadable.add(path)
    cluster.server.expire(cluster[1].zookeeper.session_id)
    cluster.time.run_for(5_500)
    (line,) = [record.getMessage() for record in caplog.records if words in record.getMessage()]
    assert path in line
