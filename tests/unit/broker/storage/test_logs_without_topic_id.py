"""Logs whose topic id was lost in a power failure may belong to another topic: they are set aside, or led last."""

from dataclasses import replace

import pytest

from paceline.model.errors import ErrorCode
from tests.support.broker_cluster import TP, BrokerCluster


@pytest.fixture
def cluster() -> BrokerCluster:
    """Three brokers with two records; broker 3 has restarted with a log without a topic id."""
    found = BrokerCluster()
    found.decide(1, 4, (1, 2, 3), is_new=True)
    found.time.run_for(50)
    for value in (b"a", b"b"):
        found[1].produce(value)
    found.until_in_sync(1, 2, 3)
    found[3].files.contents["/data/orders-0/partition.metadata"] = bytearray(b"version: 0\ntopic_")
    found.restart(3)
    found.update_metadata()
    return found


def test_a_follower_outside_the_isr_begins_a_new_log_and_the_old_one_is_set_aside(cluster: BrokerCluster) -> None:
    assert cluster[3].log().topic_id is None
    cluster.decide(1, 5, (1, 2))
    cluster.until_in_sync(1, 2, 3)
    (path,) = cluster[3].logs.set_aside
    assert path.endswith("-damaged") and cluster[3].files.exists(path)
    assert cluster[3].values() == [b"a", b"b"] and cluster[3].log().topic_id is not None


def test_a_follower_in_the_isr_is_refused_until_it_has_left_the_isr(cluster: BrokerCluster) -> None:
    answer = cluster.send(3, cluster.partition(1, 5, (1, 2, 3)), live_leaders=cluster.live([1]))
    assert answer.partition_errors == {TP: ErrorCode.KAFKA_STORAGE_ERROR}


def test_a_lost_topic_id_is_reported_again_after_a_restart(cluster: BrokerCluster) -> None:
    """The file is missing, not damaged, as after a loss of power whose restart the controller has acknowledged."""
    del cluster[3].files.contents["/data/orders-0/partition.metadata"]
    cluster.restart(3)
    assert list(cluster[3].logs.without_topic_id) == [TP]
    cluster.update_metadata()
    cluster.decide(1, 5, (1, 2))
    cluster.until_in_sync(1, 2, 3)
    (path,) = cluster[3].logs.set_aside
    assert path.endswith("-damaged") and cluster[3].values() == [b"a", b"b"]


def test_the_last_isr_member_leads_with_its_records(cluster: BrokerCluster) -> None:
    answer = cluster.send(3, cluster.partition(3, 5, (3,)))
    assert answer.partition_errors == {TP: ErrorCode.NONE}
    assert cluster[3].values() == [b"a", b"b"]


def test_a_new_topic_gets_a_new_log(cluster: BrokerCluster) -> None:
    answer = cluster.send(3, cluster.partition(3, 0, (3,), is_new=True))
    assert answer.partition_errors == {TP: ErrorCode.NONE}
    (path,) = cluster[3].logs.set_aside
    assert path.endswith("-stray") and cluster[3].files.exists(path)
    assert cluster[3].values() == []


def test_a_request_without_a_topic_id_is_answered_with_the_id_of_the_log() -> None:
    """A controller restores the id in ZooKeeper from the answer. An answer to a repeated request contains it, too."""
    cluster = BrokerCluster((1, 2))
    decision = cluster.decide(1, 0, [1, 2], is_new=True)
    unnamed = replace(decision, topic_id=None)
    for request in (unnamed, replace(unnamed, leader_epoch=decision.leader_epoch + 1)):
        answer = cluster.send(2, request)
        assert answer.topic_ids == {TP: decision.topic_id}
    assert cluster.send(2, decision).topic_ids == {}, "an id in the request is not answered"
