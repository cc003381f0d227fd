"""Restarts of all containers at once, in the wrong order, after the loss of ZooKeeper, and one by one."""

import pytest

from tests.containers.compose import BROKERS, CONTROLLERS, ZOOKEEPERS, ComposeCluster
from tests.containers.workload import (
    HEALED_WITHIN_S,
    PARTITIONS,
    await_full_isr,
    await_progress,
    leaders_of_one_epoch,
    make_topic,
    under_load,
)
from tests.support.paced_producers import PacedProducers
from tests.support.stub_client import StubClient
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800), pytest.mark.slow]

EVERYTHING = (*ZOOKEEPERS, *CONTROLLERS.values(), *BROKERS.values())


def test_a_cluster_whose_containers_were_all_killed_starts_all_at_once_with_every_record(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "all-at-once"
    with under_load(cluster, client, topic) as load:
        cluster.kill_all(*EVERYTHING)
        cluster.start_all(*EVERYTHING)
        for service in EVERYTHING:
            cluster.wait_healthy(service)
        await_progress(load, 100)


def test_a_cluster_started_in_the_wrong_order_serves_when_its_last_part_has_started(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "wrong-order"
    with under_load(cluster, client, topic):
        pass
    for service in reversed(EVERYTHING):
        cluster.stop(service)
    cluster.start_all(*BROKERS.values())
    eventually(lambda: "zookeeper" in cluster.log("broker-1", 20), 120.0, "broker-1 says that it waits for ZooKeeper")
    cluster.start_all(*CONTROLLERS.values())
    cluster.start_all(*ZOOKEEPERS)
    for service in EVERYTHING:
        cluster.wait_healthy(service)
    await_full_isr(client, topic, HEALED_WITHIN_S)
    with cluster.load(topic, PARTITIONS) as load:
        await_progress(load, 100)


def test_no_send_fails_when_all_brokers_are_stopped_at_once_and_started(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "all-brokers-stop"
    make_topic(client, topic)
    with PacedProducers(cluster.bootstrap, topic, PARTITIONS, tls=cluster.tls) as load:
        for _ in range(2):
            load.await_progress(1_000)
            cluster.stop_all(*BROKERS.values())
            assert [cluster.inspect(service)["State"]["ExitCode"] for service in BROKERS.values()] == [0, 0, 0]
            cluster.start_all(*BROKERS.values())
            for service in BROKERS.values():
                cluster.wait_healthy(service)
            await_full_isr(client, topic, HEALED_WITHIN_S)
    load.check()


@pytest.mark.parametrize("lost", [ZOOKEEPERS[:2], ZOOKEEPERS], ids=["quorum", "all"])
def test_the_cluster_serves_again_after_zookeeper_was_lost(
    lost: tuple[str, ...], cluster: ComposeCluster, client: StubClient
) -> None:
    topic = f"zookeeper-lost-{len(lost)}"
    with under_load(cluster, client, topic) as load:
        cluster.kill_all(*lost)
        # The outage exceeds the session timeout; records acknowledged during the outage must not be lost either.
        eventually(
            lambda: cluster.health("controller-1") != "healthy" and cluster.health("controller-2") != "healthy",
            240.0,
            "no controller is ready without ZooKeeper",
        )
        cluster.start_all(*lost)
        for service in EVERYTHING:
            cluster.wait_healthy(service)
        await_progress(load, 100)


def test_everything_restarts_in_turn_under_load(cluster: ComposeCluster, client: StubClient) -> None:
    topic = "rolling-restart"
    with under_load(cluster, client, topic) as load:
        for service in EVERYTHING:
            code = cluster.stop(service)
            assert service in ZOOKEEPERS or code == 0, f"{service} ended with exit code {code}"
            cluster.start(service)
            await_full_isr(client, topic)
        await_progress(load, 100)
    assert leaders_of_one_epoch(cluster) == []
