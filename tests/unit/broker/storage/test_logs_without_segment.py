"""A log that lacks a middle segment after a restart is replaced before the replica leads or joins the ISR."""

import pytest

from paceline.log.log_config import LogConfig
from paceline.model.errors import ErrorCode
from tests.support.broker_cluster import TP, BrokerCluster

VALUES = [b"value-%d" % number for number in range(12)]
LOG = LogConfig(segment_bytes=200)
"""Two batches to a segment."""


@pytest.fixture(params=[True, False], ids=["clean stop", "kill"])
def cluster(request: pytest.FixtureRequest) -> BrokerCluster:
    """Twelve committed batches on three brokers; broker 1 was stopped, lost a middle segment, and restarted."""
    found = BrokerCluster(log_config=LOG, controlled_shutdown_enable=False)
    found.decide(1, 4, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    for value in VALUES:
        found[1].produce(value)
        found.time.run_for(20)
    found.until_in_sync(1, 2, 3)
    broker = found[1]
    path = broker.log().segments[2].log_path
    if request.param:
        stopped: list[bool] = []
        broker.node.stop(lambda: stopped.append(True))
        found.time.run_until(lambda: bool(stopped), 5_000)
    else:
        broker.crash()
    del broker.files.contents[path]
    back = found.boot(1, broker.files)
    found.time.run_until(lambda: back.node.ready, 60_000)
    found.update_metadata()
    return found


def test_it_does_not_lead_while_other_isr_members_exist(cluster: BrokerCluster) -> None:
    answer = cluster.send(1, cluster.partition(1, 5, (1, 2, 3)))
    assert answer.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    cluster.decide(2, 6, (2, 3), to=(2, 3))
    cluster.time.run_for(50)
    answer = cluster.send(1, cluster.partition(2, 6, (2, 3)), live_leaders=cluster.live([2]))
    assert answer.partition_errors == {TP: ErrorCode.NONE}
    cluster.until_in_sync(1, 2, 3)
    (path,) = cluster[1].logs.set_aside
    assert path.endswith("-damaged") and cluster[1].values() == VALUES
    assert cluster[1].node.metrics_snapshot()["damaged_logs"] == 0


def test_a_follower_outside_the_isr_is_rebuilt_before_it_joins(cluster: BrokerCluster) -> None:
    cluster.decide(2, 5, (2, 3))
    cluster.until_in_sync(1, 2, 3)
    assert cluster[1].values() == VALUES and len(cluster[1].logs.set_aside) == 1


def test_a_follower_in_the_isr_is_refused_until_it_has_left_the_isr(cluster: BrokerCluster) -> None:
    answer = cluster.send(1, cluster.partition(2, 5, (1, 2, 3)), live_leaders=cluster.live([2]))
    assert answer.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}


def test_the_last_isr_member_leads_with_its_remaining_records_until_another_member_joins(
    cluster: BrokerCluster,
) -> None:
    cluster.decide(1, 5, (1,))
    assert cluster[1].node.metrics_snapshot()["damaged_logs"] == 1
    assert cluster[1].log().log_end_offset == 12 and cluster[1].logs.set_aside == []
    cluster.time.run_until(lambda: set(cluster.state().isr) == {1, 2, 3}, 60_000)
    cluster.time.run_for(60_000)
    assert TP not in cluster[1].node.replica_manager.hosted.online, "the followers still have all records"
