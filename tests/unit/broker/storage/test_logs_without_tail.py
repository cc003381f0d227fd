"""A log that lost its tail after a clean stop leads only when no other ISR member exists."""

from dataclasses import replace

import pytest

from paceline.model.errors import ErrorCode
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest

VALUES = [b"value-%d" % number for number in range(6)]


@pytest.fixture
def cluster() -> BrokerCluster:
    """Six committed batches on three brokers; broker 1 was stopped cleanly, lost two of them, and restarted."""
    found = BrokerCluster(controlled_shutdown_enable=False)
    found.decide(1, 4, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    for value in VALUES:
        found[1].produce(value)
        found.time.run_for(20)
    found.until_in_sync(1, 2, 3)
    broker = found[1]
    stopped: list[bool] = []
    broker.node.stop(lambda: stopped.append(True))
    found.time.run_until(lambda: bool(stopped), 5_000)
    damage_tail(broker)
    back = found.boot(1, broker.files)
    found.time.run_until(lambda: back.node.ready, 60_000)
    found.update_metadata()
    return found


def damage_tail(broker: BrokerUnderTest) -> None:
    """Change the magic byte of the last but one batch."""
    data = broker.files.contents["/data/orders-0/00000000000000000000.log"]
    data[data.index(VALUES[4]) - 51] = 9


def test_a_log_without_its_tail_does_not_lead_while_other_isr_members_exist(cluster: BrokerCluster) -> None:
    assert cluster[1].log().log_end_offset == 4
    answer = cluster.send(1, replace(cluster.partition(1, 5, (1, 2, 3))))
    assert answer.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    cluster.decide(2, 6, (2, 3), to=(2, 3))
    cluster.time.run_for(50)
    answer = cluster.send(1, cluster.partition(2, 6, (2, 3)), live_leaders=cluster.live([2]))
    assert answer.partition_errors == {TP: ErrorCode.NONE}
    cluster.until_in_sync(1, 2, 3)
    assert cluster[1].values() == VALUES and cluster[1].logs.set_aside == [], "the remaining records are intact"
    assert cluster[1].node.metrics_snapshot()["damaged_logs"] == 0


def test_a_follower_outside_the_isr_catches_up(cluster: BrokerCluster) -> None:
    cluster.decide(2, 5, (2, 3))
    cluster.until_in_sync(1, 2, 3)
    assert cluster[1].values() == VALUES


def test_a_follower_in_the_isr_is_refused_until_it_has_left_the_isr(cluster: BrokerCluster) -> None:
    answer = cluster.send(1, cluster.partition(2, 5, (1, 2, 3)), live_leaders=cluster.live([2]))
    assert answer.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}


def test_the_last_isr_member_leads_with_its_remaining_records(cluster: BrokerCluster) -> None:
    answer = cluster.send(1, cluster.partition(1, 5, (1,)))
    assert answer.partition_errors == {TP: ErrorCode.NONE}
    assert cluster[1].values() == VALUES[:4]
