"""A log that was stopped cleanly and has lost its tail since: nobody may rely on it while others have it all."""

from dataclasses import replace

import pytest

from paceline.model.errors import ErrorCode
from tests.support.broker_cluster import TP, BrokerCluster, BrokerUnderTest

VALUES = [b"value-%d" % number for number in range(6)]


@pytest.fixture
def cluster() -> BrokerCluster:
    """Six committed batches on three brokers; broker 1 was stopped cleanly, lost two of them, and is back."""
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
    """Spoil the magic of the last but one batch."""
    data = broker.files.contents["/data/orders-0/00000000000000000000.log"]
    data[data.index(VALUES[4]) - 51] = 9


def test_it_does_not_lead_while_others_have_everything(cluster: BrokerCluster) -> None:
    assert cluster[1].log().log_end_offset == 4
    answer = cluster.send(1, replace(cluster.partition(1, 5, (1, 2, 3))))
    assert answer.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}
    cluster.decide(2, 6, (2, 3), to=(2, 3))
    cluster.time.run_for(50)
    answer = cluster.send(1, cluster.partition(2, 6, (2, 3)), live_leaders=cluster.live([2]))
    assert answer.partition_errors == {TP: ErrorCode.NONE}
    cluster.until_in_sync(1, 2, 3)
    assert cluster[1].values() == VALUES and cluster[1].logs.set_aside == [], "what is left of it is sound"
    assert cluster[1].node.metrics_snapshot().damaged_logs == 0


def test_a_follower_outside_the_isr_simply_catches_up(cluster: BrokerCluster) -> None:
    cluster.decide(2, 5, (2, 3))
    cluster.until_in_sync(1, 2, 3)
    assert cluster[1].values() == VALUES


def test_a_follower_in_the_isr_leaves_it_first(cluster: BrokerCluster) -> None:
    answer = cluster.send(1, cluster.partition(2, 5, (1, 2, 3)), live_leaders=cluster.live([2]))
    assert answer.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}


def test_the_last_member_leads_with_what_it_has(cluster: BrokerCluster) -> None:
    answer = cluster.send(1, cluster.partition(1, 5, (1,)))
    assert answer.partition_errors == {TP: ErrorCode.NONE}
    assert cluster[1].values() == VALUES[:4]
