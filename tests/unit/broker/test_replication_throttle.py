"""Throttled replication with real cores: a copy stays within its rate and completes, in-sync replicas never wait."""

import pytest

from paceline.coordination import znodes
from paceline.coordination.interface import Create, SetData
from tests.support.broker_cluster import TP, BrokerCluster
from tests.unit.broker.membership.test_topic_configs import configure

LEADER, FOLLOWER = "leader", "follower"
RECORD = b"x" * 10_000


def set_rate(cluster: BrokerCluster, broker: str, announce: bool = True, **rates: int) -> None:
    """Write broker settings and their notification, as a controller does."""
    overrides = {f"{side}.replication.throttled.rate": str(rate) for side, rate in rates.items()}
    path = f"/config/brokers/{broker}"
    data = znodes.encode_config(overrides)
    cluster.zk(Create(path, data))
    cluster.zk(SetData(path, data))
    if announce:
        change = znodes.encode_config_change(f"brokers/{broker}")
        cluster.zk(Create(znodes.CONFIG_CHANGE_PREFIX, change, sequential=True))


def throttle(cluster: BrokerCluster, side: str, replicas: str) -> None:
    configure(cluster, **{f"{side}_replication_throttled_replicas": replicas})


def copying(side: str, replicas: str, rate: int, records: int = 40) -> BrokerCluster:
    """Brokers 1 and 2 in sync with records; broker 3 is about to copy them, throttled."""
    cluster = BrokerCluster(replica_fetch_max_bytes=20_000, replica_fetch_response_max_bytes=20_000)
    throttle(cluster, side, replicas)
    set_rate(cluster, "<default>", **{side: rate})
    cluster.decide(1, 0, (1, 2), (1, 2), is_new=True)
    for _ in range(records):
        cluster[1].produce(RECORD)
    cluster.time.run_until(lambda: cluster[2].log().log_end_offset == records, 60_000)
    cluster.time.run_for(12_000)  # bytes sent to the in-sync replica count, too, until they leave the window
    cluster.decide(1, 1, (1, 2), (1, 2, 3))
    return cluster


def end(cluster: BrokerCluster, broker_id: int = 3) -> int:
    return cluster[broker_id].log().log_end_offset


SIDES = [(LEADER, "0:1"), (FOLLOWER, "0:3"), (LEADER, "*"), (FOLLOWER, "*")]


@pytest.mark.parametrize(("side", "replicas"), SIDES)
def test_a_throttled_copy_stays_within_its_rate_and_completes(side: str, replicas: str) -> None:
    cluster = copying(side, replicas, rate=10_000)
    started = cluster.time.now_ms()
    cluster.time.run_for(5_000)
    assert 0 < end(cluster) < 20
    cluster.time.run_until(lambda: end(cluster) == 40, 120_000)
    # 400 kB at 10 kB/s; a burst of a window and an answer goes first.
    assert 20_000 <= cluster.time.now_ms() - started <= 60_000
    cluster.time.run_until(lambda: 3 in cluster.state().isr, 60_000)


@pytest.mark.parametrize(("side", "replicas"), [(LEADER, "0:2"), (FOLLOWER, "0:1"), (LEADER, "1:1"), (FOLLOWER, "")])
def test_a_list_that_does_not_name_the_replica_throttles_nothing(side: str, replicas: str) -> None:
    cluster = copying(side, replicas, rate=1_000)
    cluster.time.run_until(lambda: end(cluster) == 40, 2_000)


@pytest.mark.parametrize(("side", "replicas"), SIDES)
def test_removing_the_rate_ends_the_throttle_within_a_second(side: str, replicas: str) -> None:
    cluster = copying(side, replicas, rate=1)
    cluster.time.run_for(3_000)
    assert end(cluster) < 10
    set_rate(cluster, "<default>")
    cluster.time.run_until(lambda: end(cluster) == 40, 3_000)


@pytest.mark.parametrize(("side", "replicas"), SIDES)
def test_removing_the_list_ends_the_throttle_within_a_second(side: str, replicas: str) -> None:
    cluster = copying(side, replicas, rate=1)
    cluster.time.run_for(3_000)
    assert end(cluster) < 10
    throttle(cluster, side, "")
    cluster.time.run_until(lambda: end(cluster) == 40, 3_000)


@pytest.mark.parametrize(("side", "replicas"), SIDES)
def test_a_copy_with_a_rate_of_zero_completes(side: str, replicas: str) -> None:
    cluster = copying(side, replicas, rate=0, records=6)
    cluster.time.run_until(lambda: end(cluster) == 6, 120_000)


@pytest.mark.parametrize("side", [LEADER, FOLLOWER])
def test_in_sync_replicas_never_wait(side: str) -> None:
    cluster = BrokerCluster()
    throttle(cluster, side, "*")
    set_rate(cluster, "<default>", **{side: 1})
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(100)
    for _ in range(5):
        answer = cluster[1].produce(RECORD)
        cluster.time.run_until(lambda answer=answer: bool(answer), 50)
    quota = cluster[1].node.replica_manager.hosted.quotas.leader
    assert side == FOLLOWER or quota.rate(cluster.time.now_ms()) > 5_000


@pytest.mark.parametrize("side", [LEADER, FOLLOWER])
def test_in_sync_replicas_fetch_at_once_in_a_new_epoch_although_the_quota_is_used_up(side: str) -> None:
    cluster = BrokerCluster()
    throttle(cluster, side, "*")
    set_rate(cluster, "<default>", **{side: 1})
    cluster.decide(1, 0, (1, 2, 3), is_new=True)
    cluster.time.run_for(100)
    cluster[1].produce(RECORD)
    cluster.time.run_for(100)
    cluster.decide(2, 1, (1, 2, 3))
    answer = cluster[2].produce(RECORD)
    cluster.time.run_until(lambda: bool(answer), 1_000)
    assert answer[0].failure is None


def test_other_partitions_of_the_same_fetcher_do_not_wait() -> None:
    cluster = copying(LEADER, "0:1", rate=1)
    other = TP._replace(topic="payments")
    cluster.decide(1, 0, (1, 3), (1, 3), tp=other, is_new=True)
    cluster.time.run_for(3_000)
    for _ in range(5):
        answer = cluster[1].produce(RECORD, tp=other)
        cluster.time.run_until(lambda answer=answer: bool(answer), 1_000)
    assert end(cluster) < 10


def test_a_brokers_own_rate_overrides_the_default() -> None:
    cluster = copying(FOLLOWER, "0:3", rate=1)
    set_rate(cluster, "3", follower=10_000_000)
    cluster.time.run_until(lambda: end(cluster) == 40, 3_000)


def test_a_broker_reads_its_rate_when_it_starts() -> None:
    cluster = BrokerCluster()
    set_rate(cluster, "<default>", announce=False, leader=5)
    set_rate(cluster, "2", announce=False, follower=6)
    cluster.restart(2)
    cluster.time.run_for(1_000)
    manager = cluster[2].node.replica_manager
    assert (manager.hosted.quotas.leader.limit, manager.hosted.quotas.follower.limit) == (5, 6)
