"""What operators change, on a real cluster and under load: nothing acknowledged is lost on the way."""

import pytest

from paceline.dev.local_cluster import LocalCluster
from paceline.model.errors import NotEnoughReplicasError
from paceline_client import Admin, DeliveryFailedError, NewPartitions, NewTopic, PartitionDescription, Producer
from tests.support.stub_client import StubClient
from tests.support.verified_load import VerifiedLoad
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

TOPIC = "administered"
DEADLINE_S = 60.0


def partitions(admin: Admin) -> list[PartitionDescription]:
    (topic,) = admin.describe_topics([TOPIC], from_controller=True)
    return list(topic.partitions)


def test_a_topic_is_administered_under_load_and_nothing_is_lost(local_cluster: LocalCluster) -> None:
    bootstrap = local_cluster.bootstrap.split(",")
    with Admin(local_cluster.bootstrap) as admin:
        first, second, third = sorted(broker.broker_id for broker in admin.describe_cluster().brokers)
        placed = NewTopic(TOPIC, assignments=[[first, second]], configs={"min.insync.replicas": "1"})
        admin.create_topics([placed])

        (grown,) = admin.create_partitions([NewPartitions(TOPIC, 3, [[second, first], [first, second]])])
        assert (grown.first_partition, grown.assignments) == (1, ((second, first), (first, second)))
        assert [p.leader for p in partitions(admin)] == [first, second, first]

        with VerifiedLoad(bootstrap, TOPIC, 3) as load:
            eventually(lambda: load.count() > 200, DEADLINE_S, "the load runs")

            # Partition 0 leaves both of its brokers' first choice: (first, second) becomes (third, second).
            admin.alter_partition_reassignments({(TOPIC, 0): [third, second]})
            eventually(lambda: not admin.list_partition_reassignments([(TOPIC, 0)]), DEADLINE_S, "the move is done")
            moved = partitions(admin)[0]
            assert (moved.replicas, moved.adding_replicas) == ((third, second), ())
            assert set(moved.isr) <= {second, third}
            before = load.count(0)
            eventually(lambda: load.count(0) > before + 100, DEADLINE_S, "writes go on at the new leader")

            # A new order of replicas copies nothing; the election then makes it the leader.
            eventually(lambda: set(partitions(admin)[1].isr) == {first, second}, DEADLINE_S, "both are in sync")
            admin.alter_partition_reassignments({(TOPIC, 1): [first, second]})
            (elected,) = admin.elect_leaders("preferred", [(TOPIC, 1)])
            assert elected.leader in (first, None), "the periodic rebalance may have been faster"
            assert partitions(admin)[1].leader == first
            eventually(lambda: load.count() > 1_000, DEADLINE_S, "the load goes on")
        with StubClient(bootstrap) as reader:
            assert load.problems(reader) == []


def test_a_changed_configuration_counts_at_once_and_without_a_restart(local_cluster: LocalCluster) -> None:
    name = "reconfigured"
    with Admin(local_cluster.bootstrap) as admin, StubClient(local_cluster.bootstrap.split(",")) as client:
        first = min(broker.broker_id for broker in admin.describe_cluster().brokers)
        admin.create_topics([NewTopic(name, assignments=[[first]], configs={"min.insync.replicas": "1"})])
        client.produce(name, 0, [b"a"])
        admin.alter_configs({name: {"min.insync.replicas": "2"}})
        (entry,) = admin.describe_configs(name, ["min.insync.replicas"])[name]
        assert (entry.value, entry.source) == ("2", "topic")
        eventually(lambda: refused(local_cluster, name), DEADLINE_S, "one replica is not enough any more")
        admin.alter_configs({name: {"min.insync.replicas": None}})
        (entry,) = admin.describe_configs(name, ["min.insync.replicas"])[name]
        assert (entry.value, entry.source) == ("2", "broker default"), "the settings file of all brokers says so"
        admin.alter_configs({name: {"min.insync.replicas": "1"}})
        eventually(lambda: not refused(local_cluster, name), DEADLINE_S, "one replica is enough again")


def refused(cluster: LocalCluster, topic: str) -> bool:
    """Whether a write with acks from every in-sync replica is refused."""
    with Producer(cluster.bootstrap, acks="all", delivery_timeout_ms=2_000) as producer:
        try:
            producer.send(topic, b"x").result(10)
        except DeliveryFailedError as error:
            assert isinstance(error.cause, NotEnoughReplicasError), error
            return True
        except NotEnoughReplicasError:
            return True
    return False
