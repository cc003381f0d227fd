"""A follower says which leader does not answer, reports it, and finds out when it answers again."""

import logging

import pytest

from paceline.broker.fetcher.leader_contact import WARNING_INTERVAL_MS, LeaderContact
from paceline.broker.metrics import label_families_of
from paceline.model.control import Endpoint, LiveBroker
from paceline.model.errors import BrokerNotAvailableError
from paceline.model.settings import BrokerConfig
from paceline.model.state_change import StateChangeKind
from tests.support.broker_cluster import BrokerCluster

LOST_MS = 10_000
"""A third of the default ``replica.lag.time.max.ms``."""
LEADER = LiveBroker(2, (Endpoint("REPLICATION", "nowhere", 9093),), broker_epoch=1)


def following() -> BrokerCluster:
    """Broker 1 follows a partition that broker 2 leads, and sends heartbeats."""
    cluster = BrokerCluster((1, 2))
    cluster.decide(2, 0, (2, 1), is_new=True)
    cluster.time.run_for(2_000)
    return cluster


def reported(cluster: BrokerCluster) -> tuple[tuple[int, ...], ...]:
    """Return the leaders that broker 1 reports: broken, unreachable, reached."""
    return cluster[1].node.replica_manager.fetchers.leader_reports()


def unanswered_s(cluster: BrokerCluster) -> float:
    return label_families_of(cluster[1].node.replica_manager, 1)["replica_fetcher_unanswered_seconds"][("2", "0")]


def test_the_first_failure_is_logged_with_the_address_then_one_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    contact = LeaderContact(LEADER, BrokerConfig(1))
    refused = BrokerNotAvailableError("connection refused")
    for now_ms in range(0, 2 * WARNING_INTERVAL_MS, 1_000):
        contact.ended(refused, now_ms)
    assert [one.getMessage() for one in caplog.records] == [
        "leader does not answer fetches: leader=2 address=nowhere:9093 cause='connection refused'"
    ] * 2
    caplog.clear()
    contact.ended(None, 120_000)
    contact.ended(None, 121_000)
    assert caplog.messages == ["leader answers again: leader=2 address=nowhere:9093"]


def test_failures_between_answers_are_logged_once_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    contact = LeaderContact(LEADER, BrokerConfig(1))
    for now_ms in range(0, WARNING_INTERVAL_MS, 1_000):
        contact.ended(BrokerNotAvailableError("reset") if now_ms // 1_000 % 2 == 0 else None, now_ms)
    assert len(caplog.messages) == 2


def test_a_leader_that_does_not_answer_is_an_event_and_a_metric() -> None:
    cluster = following()
    assert unanswered_s(cluster) < 1
    cluster[1].transport.broken.add(2)
    cluster.time.run_for(5_000)
    (change,) = cluster[1].said(StateChangeKind.LEADER_UNREACHABLE)
    assert change.replica == 2 and change.cause is not None and "the connection broke" in change.cause
    address = next(one for one in cluster.live()[1].endpoints if one.listener == "REPLICATION").address
    assert address in change.cause
    assert 4 < unanswered_s(cluster) <= 5


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_leader_is_reported_after_a_third_of_the_lag_time_until_it_answers(is_silent: bool) -> None:
    cluster = following()
    assert reported(cluster) == ((), (), (2,))
    if is_silent:
        cluster.cuts.add((1, 2))
    else:
        cluster[1].transport.broken.add(2)
    cluster.time.run_for(LOST_MS - 1_000)
    assert reported(cluster)[1:] == ((), (2,))
    cluster.time.run_for(2_000)
    assert reported(cluster)[1:] == ((2,), ())
    cluster.cuts.clear()
    cluster[1].transport.broken.clear()
    cluster.time.run_for(32_000)
    assert reported(cluster) == ((), (), (2,))


def test_a_lost_leader_is_asked_after_its_partitions_have_moved_until_it_answers() -> None:
    cluster = following()
    cluster[1].transport.broken.add(2)
    cluster.time.run_for(LOST_MS + 1_000)
    cluster.decide(1, 1, (2, 1))
    cluster.time.run_for(30_000)
    assert reported(cluster) == ((), (2,), ()), "broker 2 leads nothing, but is still asked"
    assert cluster[1].transport.fetches[-1][1].partitions == []
    cluster[1].transport.broken.clear()
    cluster.time.run_for(2_000)
    assert reported(cluster) == ((), (), ()) and cluster[1].transport.closed == [(2, 0)]
    sent = len(cluster[1].transport.fetches)
    cluster.time.run_for(5_000)
    assert len(cluster[1].transport.fetches) == sent


def test_a_lost_leader_that_is_no_longer_registered_is_not_asked() -> None:
    cluster = following()
    cluster[1].transport.broken.add(2)
    cluster.time.run_for(LOST_MS + 1_000)
    cluster[2].crash()
    cluster.update_metadata()
    cluster.decide(1, 1, (1,))
    cluster.time.run_for(2_000)
    assert reported(cluster) == ((), (), ())


def test_a_leader_that_failed_only_briefly_is_not_asked_after_its_partitions_have_moved() -> None:
    cluster = following()
    cluster[1].transport.broken.add(2)
    cluster.time.run_for(LOST_MS // 2)
    cluster.decide(1, 1, (2, 1))
    cluster.time.run_for(LOST_MS)
    assert reported(cluster) == ((), (), ())
