"""Breaks a cluster in containers under load, from outside, through the EXTERNAL listeners."""

import grpc
import pytest

from paceline.v1 import metadata_service_pb2
from tests.containers.compose import BROKERS, CONTROLLERS, ZOOKEEPERS, ComposeCluster
from tests.support.stub_client import ResultError, StubClient, StubClientError
from tests.support.verified_load import VerifiedLoad
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

PARTITIONS = 3


def _make_topic(client: StubClient, name: str) -> None:
    client.create_topic(name, PARTITIONS, 3, min_insync_replicas="2")
    _await_full_isr(client, name)


def _await_full_isr(client: StubClient, topic: str, timeout_s: float = 240.0) -> None:
    eventually(
        lambda: all(len(partition.isr) == 3 for partition in client.describe_topic(topic).partitions),
        timeout_s,
        f"every replica of {topic} is in sync",
    )


def _leader(client: StubClient, topic: str, partition: int) -> int:
    """Return the leader's id, 0 for none."""
    return client.describe_topic(topic).partitions[partition].leader


def _await_other_leader(client: StubClient, topic: str, old: int, timeout_s: float = 240.0) -> None:
    def moved() -> bool:
        partitions = client.describe_topic(topic).partitions
        return all(part.HasField("leader") and part.leader != old for part in partitions)

    eventually(moved, timeout_s, f"nothing of {topic} is led by broker {old}")


def _await_progress(load: VerifiedLoad, records: int, timeout_s: float = 240.0) -> None:
    """Wait until so many more records were acknowledged in every partition."""
    goal = [load.count(partition) + records for partition in range(PARTITIONS)]

    def reached() -> bool:
        if load.failure is not None:
            raise AssertionError(f"the load failed: {load.failure}")
        return all(load.count(partition) >= wanted for partition, wanted in enumerate(goal))

    eventually(reached, timeout_s, f"{records} more records acknowledged in every partition of {load.topic}")


def test_the_cluster_answers_with_addresses_that_work_from_outside(cluster: ComposeCluster, client: StubClient) -> None:
    description = client.describe_cluster()

    assert {broker.id: f"{broker.host}:{broker.port}" for broker in description.brokers} == {
        broker_id: cluster.address(service) for broker_id, service in BROKERS.items()
    }
    assert description.controller_id in CONTROLLERS
    controller = f"{description.controller_host}:{description.controller_port}"
    assert controller == cluster.address(CONTROLLERS[description.controller_id])


def test_killing_the_leaders_container_loses_nothing_that_was_acknowledged(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "leader-killed"
    _make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        _await_progress(load, 200)
        old = _leader(client, topic, 0)
        epoch = client.describe_topic(topic).partitions[0].leader_epoch

        cluster.kill(BROKERS[old])
        _await_other_leader(client, topic, old)
        assert client.describe_topic(topic).partitions[0].leader_epoch > epoch
        _await_progress(load, 200)

        cluster.start(BROKERS[old])
        _await_full_isr(client, topic)
        _await_progress(load, 200)

    assert load.problems(client) == []
    assert load.count() >= PARTITIONS * 600


def test_the_loss_of_a_zookeeper_server_stops_nothing(cluster: ComposeCluster, client: StubClient) -> None:
    topic = "zookeeper-server-killed"
    _make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        for service in ZOOKEEPERS:
            cluster.kill(service)
            _await_progress(load, 100)
            old = _leader(client, topic, 0)
            cluster.kill(BROKERS[old])
            _await_other_leader(client, topic, old)
            cluster.start(BROKERS[old])
            cluster.start(service)
            cluster.wait_healthy(service)
            _await_full_isr(client, topic)

    assert load.problems(client) == []


def test_a_stopped_broker_hands_over_and_exits_with_zero(cluster: ComposeCluster, client: StubClient) -> None:
    topic = "broker-stopped"
    _make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        _await_progress(load, 100)
        old = _leader(client, topic, 0)

        assert cluster.stop(BROKERS[old]) == 0
        _await_other_leader(client, topic, old)
        _await_progress(load, 100)

        cluster.start(BROKERS[old])
        _await_full_isr(client, topic)

    assert load.problems(client) == []


def test_the_other_controller_takes_over_when_the_active_ones_container_is_killed(
    cluster: ComposeCluster, client: StubClient
) -> None:
    before = client.describe_cluster()
    _make_topic(client, "before-takeover")
    with cluster.load("before-takeover", PARTITIONS) as load:
        _await_progress(load, 100)
        cluster.kill(CONTROLLERS[before.controller_id])

        def taken_over() -> bool:
            now = client.describe_cluster()
            return now.HasField("controller_id") and now.controller_epoch > before.controller_epoch

        eventually(taken_over, 240.0, "brokers name a controller of a later epoch")
        assert client.describe_cluster().controller_id != before.controller_id
        _await_progress(load, 100)
        _make_topic(client, "after-takeover")

    assert load.problems(client) == []
    cluster.start(CONTROLLERS[before.controller_id])


def test_a_frozen_leader_is_replaced_and_its_writes_do_not_survive_it(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "leader-frozen"
    _make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        _await_progress(load, 100)
        old = _leader(client, topic, 0)

        cluster.pause(BROKERS[old])
        others = cluster.client(*(name for broker, name in BROKERS.items() if broker != old))
        with others:
            _await_other_leader(others, topic, old)
        _await_progress(load, 100)
        cluster.unpause(BROKERS[old])
        _await_full_isr(client, topic)
        eventually(lambda: _agrees(cluster, client, topic, old), 240.0, f"broker {old} knows the leaders")

    assert load.problems(client) == []


def test_a_leader_cut_off_from_everybody_is_replaced_and_comes_back_with_the_same_log(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "leader-cut-off"
    _make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        _await_progress(load, 100)
        old = _leader(client, topic, 0)

        with cluster.cut_off(BROKERS[old]):
            _await_other_leader(client, topic, old)
            _await_progress(load, 100)
        _await_full_isr(client, topic)
        eventually(lambda: _agrees(cluster, client, topic, old), 240.0, f"broker {old} knows the leaders")
        _await_progress(load, 100)

    assert load.problems(client) == []


def test_a_controller_that_was_cut_off_does_not_rule_when_it_comes_back(
    cluster: ComposeCluster, client: StubClient
) -> None:
    before = client.describe_cluster()
    old = CONTROLLERS[before.controller_id]

    def taken_over() -> bool:
        now = client.describe_cluster()
        return now.HasField("controller_id") and now.controller_epoch > before.controller_epoch

    with cluster.cut_off(old):
        eventually(taken_over, 240.0, "brokers name a controller of a later epoch")
        _make_topic(client, "while-cut-off")

    def stands_by() -> bool:
        try:
            with cluster.client(old, give_up=lambda: True) as there:
                now = there.describe_cluster()
        except StubClientError:
            return False
        return now.HasField("controller_id") and now.controller_id != before.controller_id

    eventually(stands_by, 240.0, f"{old} knows that another one rules")
    assert client.describe_cluster().controller_id != before.controller_id
    _make_topic(client, "after-cut-off")


def _agrees(cluster: ComposeCluster, client: StubClient, topic: str, broker: int) -> bool:
    """Whether a broker names the same leaders and epochs as the others do."""

    def leaders(description: metadata_service_pb2.TopicDescription) -> list[tuple[int, int]]:
        return [(partition.leader, partition.leader_epoch) for partition in description.partitions]

    try:
        mine = client.topic_on(cluster.address(BROKERS[broker]), topic)
    except (grpc.RpcError, ResultError):
        return False
    return leaders(mine) == leaders(client.describe_topic(topic))
