"""Network partitions of a broker under load: one-way, from ZooKeeper, from the controllers, from another broker."""

import pytest

from tests.containers.compose import BROKERS, CONTROLLERS, ZOOKEEPERS, ComposeCluster
from tests.containers.faults import Direction
from tests.containers.workload import (
    agrees,
    await_other_leader,
    await_progress,
    leader_of,
    under_load,
)
from tests.support.stub_client import StubClient
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800), pytest.mark.slow]


@pytest.mark.parametrize("peers", [ZOOKEEPERS, tuple(CONTROLLERS.values())], ids=["zookeeper", "controllers"])
def test_a_leader_without_its_coordinators_is_replaced_and_returns(
    peers: tuple[str, ...], cluster: ComposeCluster, client: StubClient
) -> None:
    topic = f"cut-off-from-{peers[0]}"
    with under_load(cluster, client, topic) as load:
        old = leader_of(client, topic, 0)
        with cluster.cut_off(BROKERS[old], *peers), cluster.client(*_others(old)) as others:
            await_other_leader(others, topic, old)
            await_progress(load, 100)
    eventually(lambda: agrees(cluster, client, topic, old), 240.0, f"broker {old} knows the leaders")


@pytest.mark.parametrize("only", list(Direction), ids=lambda direction: direction.name.lower())
def test_a_leader_whose_packets_pass_in_one_direction_alone_is_replaced_and_returns(
    only: Direction, cluster: ComposeCluster, client: StubClient
) -> None:
    topic = f"one-way-{only.name.lower()}"
    with under_load(cluster, client, topic) as load:
        old = leader_of(client, topic, 0)
        with cluster.cut_off(BROKERS[old], only=only), cluster.client(*_others(old)) as others:
            await_other_leader(others, topic, old)
            await_progress(load, 100)
    eventually(lambda: agrees(cluster, client, topic, old), 240.0, f"broker {old} knows the leaders")


def test_two_brokers_that_cannot_reach_each_other_do_not_stop_writes(
    cluster: ComposeCluster, client: StubClient
) -> None:
    topic = "cut-off-from-one-peer"
    with under_load(cluster, client, topic) as load:
        leader = leader_of(client, topic, 0)
        follower = next(broker for broker in BROKERS if broker != leader)
        with cluster.cut_off(BROKERS[leader], BROKERS[follower]):
            eventually(
                lambda: follower not in client.describe_topic(topic).partitions[0].isr,
                240.0,
                f"broker {follower} has left the ISR of broker {leader}",
            )
            await_progress(load, 100)


def _others(broker: int) -> list[str]:
    return [name for other, name in BROKERS.items() if other != broker]
