"""Reassignment, elections and configuration changes on a real cluster under load lose no acknowledged record."""

import grpc
import pytest

from paceline.dev.local_cluster import LocalCluster
from paceline.v1 import errors_pb2
from paceline.v1 import log_service_pb2 as log_pb
from paceline.v1 import log_service_pb2_grpc as log_grpc
from paceline_client import Admin, NewPartitions, NewTopic, PartitionDescription
from tests.support.stub_client import StubClient
from tests.support.verified_load import VerifiedLoad
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

TOPIC = "administered"
DEADLINE_S = 180.0


def partitions(admin: Admin) -> list[PartitionDescription]:
    (topic,) = admin.describe_topics([TOPIC], from_controller=True)
    return list(topic.partitions)


def test_a_topic_is_administered_under_load_and_no_record_is_lost(local_cluster: LocalCluster) -> None:
    bootstrap = local_cluster.bootstrap.split(",")
    with Admin(local_cluster.bootstrap) as admin:
        first, second, third = sorted(broker.broker_id for broker in admin.describe_cluster().brokers)
        placed = NewTopic(TOPIC, assignments=[[first, second]], configs={"min.insync.replicas": "1"})
        admin.create_topics([placed])

        (grown,) = admin.create_partitions([NewPartitions(TOPIC, 3, [[second, first], [first, second]])])
        assert (grown.first_partition, grown.assignments) == (1, ((second, first), (first, second)))
        assert [p.leader for p in partitions(admin)] == [first, second, first]

        with VerifiedLoad(bootstrap, TOPIC, 3) as load:
            eventually(lambda: load.count() > 200, DEADLINE_S, "the load has acknowledged records")

            # Partition 0 moves from (first, second) to (third, second), which also changes its leader.
            admin.alter_partition_reassignments({(TOPIC, 0): [third, second]})
            eventually(
                lambda: not admin.list_partition_reassignments([(TOPIC, 0)]), DEADLINE_S, "the reassignment is complete"
            )
            moved = partitions(admin)[0]
            assert (moved.replicas, moved.adding_replicas) == ((third, second), ())
            assert set(moved.isr) <= {second, third}
            before = load.count(0)
            eventually(lambda: load.count(0) > before + 100, DEADLINE_S, "the new leader acknowledges writes")

            # Reordering the replicas copies no data; the election then makes the preferred replica the leader.
            eventually(
                lambda: set(partitions(admin)[1].isr) == {first, second}, DEADLINE_S, "both replicas are in sync"
            )
            admin.alter_partition_reassignments({(TOPIC, 1): [first, second]})
            (elected,) = admin.elect_leaders("preferred", [(TOPIC, 1)])
            assert elected.leader in (first, None), "the periodic rebalance may have been faster"
            assert partitions(admin)[1].leader == first
            eventually(lambda: load.count() > 1_000, DEADLINE_S, "the load acknowledges more records")
        with StubClient(bootstrap) as reader:
            assert load.problems(reader) == []


def test_a_changed_configuration_takes_effect_at_once_and_without_a_restart(local_cluster: LocalCluster) -> None:
    name = "reconfigured"
    with Admin(local_cluster.bootstrap) as admin, StubClient(local_cluster.bootstrap.split(",")) as client:
        first = min(broker.broker_id for broker in admin.describe_cluster().brokers)
        admin.create_topics([NewTopic(name, assignments=[[first]], configs={"min.insync.replicas": "1"})])
        client.produce(name, 0, [b"a"])
        admin.alter_configs({name: {"min.insync.replicas": "2"}})
        (entry,) = admin.describe_configs(name, ["min.insync.replicas"])[name]
        assert (entry.value, entry.source) == ("2", "topic")
        eventually(lambda: refused(client, name), DEADLINE_S, "a write with one in-sync replica is refused")
        admin.alter_configs({name: {"min.insync.replicas": None}})
        (entry,) = admin.describe_configs(name, ["min.insync.replicas"])[name]
        assert (entry.value, entry.source) == ("2", "broker default"), "the settings file of all brokers says so"
        admin.alter_configs({name: {"min.insync.replicas": "1"}})
        eventually(lambda: not refused(client, name), DEADLINE_S, "a write with one in-sync replica is accepted")


def refused(client: StubClient, topic: str) -> bool:
    """Return whether a write with acks=all fails with NOT_ENOUGH_REPLICAS."""
    cluster = client.describe_cluster()
    leader = client.describe_topic(topic).partitions[0].leader
    (address,) = [f"{broker.host}:{broker.port}" for broker in cluster.brokers if broker.id == leader]
    request = log_pb.ProduceRequest(
        timeout_ms=int(DEADLINE_S * 1000), partitions=[log_pb.ProducePartition(topic=topic)]
    )
    request.partitions[0].records.records.add(value=b"x")
    with grpc.insecure_channel(address) as channel:
        (result,) = log_grpc.LogServiceStub(channel).Produce(request, timeout=DEADLINE_S).partitions
    assert result.error.code in (0, errors_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS), result
    return result.HasField("error")
