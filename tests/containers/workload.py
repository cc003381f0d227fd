"""A topic under load in a cluster of containers, and the checks after every fault."""

import contextlib
from collections.abc import Iterator

import grpc

from paceline.v1 import metadata_service_pb2
from tests.containers.compose import BROKERS, ComposeCluster
from tests.support.stub_client import ResultError, StubClient
from tests.support.verified_load import VerifiedLoad
from tests.support.waiting import eventually

PARTITIONS = 3
HEALED_WITHIN_S = 90.0
"""Every replica is in sync again this soon after the end of a fault, even on a machine with two busy cores."""
PATIENCE_S = 240.0


def make_topic(client: StubClient, name: str) -> None:
    """Create a topic with three replicas and min.insync.replicas=2, and wait until all replicas are in sync."""
    client.create_topic(name, PARTITIONS, 3, min_insync_replicas="2")
    await_full_isr(client, name)


def await_full_isr(client: StubClient, topic: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until every replica of the topic is in sync."""
    eventually(
        lambda: all(len(partition.isr) == 3 for partition in client.describe_topic(topic).partitions),
        timeout_s,
        f"every replica of {topic} is in sync",
    )


def leader_of(client: StubClient, topic: str, partition: int) -> int:
    """Return the broker id of the leader, 0 if the partition has no leader."""
    return client.describe_topic(topic).partitions[partition].leader


def await_other_leader(client: StubClient, topic: str, old: int, timeout_s: float = PATIENCE_S) -> None:
    """Wait until every partition has a leader other than ``old``."""

    def moved() -> bool:
        partitions = client.describe_topic(topic).partitions
        return all(part.HasField("leader") and part.leader != old for part in partitions)

    eventually(moved, timeout_s, f"nothing of {topic} is led by broker {old}")


def await_progress(load: VerifiedLoad, records: int, timeout_s: float = PATIENCE_S) -> None:
    """Wait until each partition has this many more acknowledged records."""
    goal = [load.count(partition) + records for partition in range(PARTITIONS)]

    def reached() -> bool:
        if load.failure is not None:
            raise AssertionError(f"the load failed: {load.failure}")
        return all(load.count(partition) >= wanted for partition, wanted in enumerate(goal))

    eventually(reached, timeout_s, f"{records} more records acknowledged in every partition of {load.topic}")


def agrees(cluster: ComposeCluster, client: StubClient, topic: str, broker: int) -> bool:
    """Return whether a broker's metadata has the same leaders and leader epochs as the rest of the cluster."""

    def leaders(description: metadata_service_pb2.TopicDescription) -> list[tuple[int, int]]:
        return [(partition.leader, partition.leader_epoch) for partition in description.partitions]

    try:
        mine = client.topic_on(cluster.address(BROKERS[broker]), topic)
    except (grpc.RpcError, ResultError):
        return False
    return leaders(mine) == leaders(client.describe_topic(topic))


@contextlib.contextmanager
def under_load(cluster: ComposeCluster, client: StubClient, topic: str) -> Iterator[VerifiedLoad]:
    """Write to a new topic while the block runs, then check the records and the cluster.

    No acknowledged record is lost or duplicated, the order is kept, every replica is in sync again within
    `HEALED_WITHIN_S`, and no leader epoch had two leaders.
    """
    make_topic(client, topic)
    with cluster.load(topic, PARTITIONS) as load:
        await_progress(load, 100)
        yield load
        await_full_isr(client, topic, HEALED_WITHIN_S)
        await_progress(load, 100)
    assert load.problems(client) == []
    assert leaders_of_one_epoch(cluster) == []


def leaders_of_one_epoch(cluster: ComposeCluster) -> list[str]:
    """Return the partitions for which several brokers became leader in the same leader epoch."""
    leaders: dict[tuple[str, int, int], set[int]] = {}
    for service in BROKERS.values():
        for change in cluster.state_changes(service):
            if change["kind"] == "became-leader":
                place = change["topic_id"], change["partition"], change["leader_epoch"]
                leaders.setdefault(place, set()).add(change["replica"])
    assert leaders, "no broker has logged a leader"
    return [f"{place}: {sorted(brokers)}" for place, brokers in leaders.items() if len(brokers) > 1]
