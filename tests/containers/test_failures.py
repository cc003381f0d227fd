"""Containers are killed, stopped, paused and isolated under load from clients on the EXTERNAL listeners."""

import pytest

from tests.containers.compose import BROKERS, CONTROLLERS, ZOOKEEPERS, ComposeCluster
from tests.containers.workload import (
    PARTITIONS,
    agrees,
    await_full_isr,
    await_other_leader,
    await_progress,
    leader_of,
    make_topic,
)
from tests.support.stub_client import StubClient, StubClientError
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]


def test_the_cluster_answers_with_addresses_that_work_from_outside(cluster: ComposeCluster, client: StubClient) -> None:
    description = client.describe_cluster()

    assert {broker.id: f"{broker.host}:{broker.port}" for broker in description.brokers} == {
        broker_id: cluster.address(service) for broker_id, service in BROKERS.items()
    }
    assert description.controller_id in CONTROLLERS
    controller = f"{description.controller_host}:{description.controller_port}"
    assert controller == cluster.address(CONTROLLERS[description.controller_id])


def test_killing_the_leaders_container_loses_no_acknowledged_record(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "leader-killed"
    make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        await_progress(load, 200)
        old = leader_of(client, topic, 0)
        epoch = client.describe_topic(topic).partitions[0].leader_epoch

        cluster.kill(BROKERS[old])
        await_other_leader(client, topic, old)
        assert client.describe_topic(topic).partitions[0].leader_epoch > epoch
        await_progress(load, 200)

        cluster.start(BROKERS[old])
        await_full_isr(client, topic)
        await_progress(load, 200)

    assert load.problems(client) == []
    assert load.count() >= PARTITIONS * 600


@pytest.mark.slow
def test_the_loss_of_a_zookeeper_server_stops_nothing(cluster: ComposeCluster, client: StubClient) -> None:
    topic = "zookeeper-server-killed"
    make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        for service in ZOOKEEPERS:
            cluster.kill(service)
            await_progress(load, 100)
            old = leader_of(client, topic, 0)
            cluster.kill(BROKERS[old])
            await_other_leader(client, topic, old)
            cluster.start(BROKERS[old])
            cluster.start(service)
            cluster.wait_healthy(service)
            await_full_isr(client, topic)

    assert load.problems(client) == []


@pytest.mark.slow
def test_a_stopped_broker_hands_over_and_exits_with_zero(cluster: ComposeCluster, client: StubClient) -> None:
    topic = "broker-stopped"
    make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        await_progress(load, 100)
        old = leader_of(client, topic, 0)

        assert cluster.stop(BROKERS[old]) == 0
        await_other_leader(client, topic, old)
        await_progress(load, 100)

        cluster.start(BROKERS[old])
        await_full_isr(client, topic)

    assert load.problems(client) == []


@pytest.mark.slow
def test_the_other_controller_takes_over_when_the_active_ones_container_is_killed(
    cluster: ComposeCluster, client: StubClient
) -> None:
    before = client.describe_cluster()
    make_topic(client, "before-takeover")
    with cluster.load("before-takeover", PARTITIONS) as load:
        await_progress(load, 100)
        cluster.kill(CONTROLLERS[before.controller_id])

        def taken_over() -> bool:
            now = client.describe_cluster()
            return now.HasField("controller_id") and now.controller_epoch > before.controller_epoch

        eventually(taken_over, 240.0, "brokers name a controller of a later epoch")
        assert client.describe_cluster().controller_id != before.controller_id
        await_progress(load, 100)
        make_topic(client, "after-takeover")

    assert load.problems(client) == []
    cluster.start(CONTROLLERS[before.controller_id])


@pytest.mark.slow
def test_a_frozen_leader_is_replaced_and_its_writes_do_not_survive_it(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "leader-frozen"
    make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        await_progress(load, 100)
        old = leader_of(client, topic, 0)

        cluster.pause(BROKERS[old])
        others = cluster.client(*(name for broker, name in BROKERS.items() if broker != old))
        with others:
            await_other_leader(others, topic, old)
        await_progress(load, 100)
        cluster.unpause(BROKERS[old])
        await_full_isr(client, topic)
        eventually(lambda: agrees(cluster, client, topic, old), 240.0, f"broker {old} knows the leaders")

    assert load.problems(client) == []


@pytest.mark.slow
def test_a_leader_that_is_cut_off_is_replaced_and_returns_with_the_same_log(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "leader-cut-off"
    make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        await_progress(load, 100)
        old = leader_of(client, topic, 0)

        with cluster.cut_off(BROKERS[old]):
            await_other_leader(client, topic, old)
            await_progress(load, 100)
        await_full_isr(client, topic)
        eventually(lambda: agrees(cluster, client, topic, old), 240.0, f"broker {old} knows the leaders")
        await_progress(load, 100)

    assert load.problems(client) == []


@pytest.mark.slow
def test_a_controller_that_was_cut_off_is_not_active_when_it_returns(
    cluster: ComposeCluster, client: StubClient
) -> None:
    before = client.describe_cluster()
    old = CONTROLLERS[before.controller_id]

    def taken_over() -> bool:
        now = client.describe_cluster()
        return now.HasField("controller_id") and now.controller_epoch > before.controller_epoch

    with cluster.cut_off(old):
        eventually(taken_over, 240.0, "brokers name a controller of a later epoch")
        make_topic(client, "while-cut-off")

    def stands_by() -> bool:
        try:
            with cluster.client(old, give_up=lambda: True) as there:
                now = there.describe_cluster()
        except StubClientError:
            return False
        return now.HasField("controller_id") and now.controller_id != before.controller_id

    eventually(stands_by, 240.0, f"{old} knows that another controller is active")
    assert client.describe_cluster().controller_id != before.controller_id
    make_topic(client, "after-cut-off")
