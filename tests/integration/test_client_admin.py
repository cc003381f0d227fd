import threading
import time
from collections.abc import Iterator

import pytest

from paceline.model.errors import (
    ErrorCode,
    InvalidReplicationFactorError,
    NotControllerError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline_client import Admin, BootstrapError, ClientClosedError, NewTopic
from tests.integration.fake_broker import CONTROLLER_ID
from tests.integration.fake_cluster import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster().start()
    fake.topic("t", partitions=3)
    yield fake
    fake.stop()


def test_a_topic_is_created_through_a_broker_that_names_the_controller(cluster: FakeCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        (result,) = admin.create_topics([NewTopic("new", 2, 1, configs={"min.insync.replicas": "1"})])
        assert (result.name, result.topic_id, result.error) == ("new", "id-of-new", None)
        assert admin.list_topics() == ["new", "t"]
    asked = cluster.created["new"]
    assert (asked.partitions, asked.replication_factor, dict(asked.configs)) == (2, 1, {"min.insync.replicas": "1"})


def test_a_short_form_names_partitions_replicas_and_configs(cluster: FakeCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics({"a": (1, 1), "b": (2, 1, {"cleanup.policy": "compact"})})
    assert dict(cluster.created["b"].configs) == {"cleanup.policy": "compact"}
    assert cluster.created["a"].partitions == 1


def test_missing_values_are_chosen_by_the_controller(cluster: FakeCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("placed", assignments=[[2, 1], [1]])])
    asked = cluster.created["placed"]
    assert not asked.HasField("partitions")
    assert [list(assignment.broker_ids) for assignment in asked.assignments] == [[2, 1], [1]]


def test_a_standby_controller_leads_to_the_active_one(cluster: FakeCluster) -> None:
    with Admin(cluster.standby.address) as admin:
        admin._controller = cluster.standby.address
        admin.create_topics({"new": (1, 1)})
        assert admin._controller == cluster.controller.address


def test_no_controller_ends_in_that_error(cluster: FakeCluster) -> None:
    cluster.controller.port = 0
    with Admin(cluster.bootstrap, default_timeout_ms=3_000) as admin, pytest.raises(NotControllerError):
        admin.create_topics({"new": (1, 1)})


def test_an_existing_topic_is_a_typed_error(cluster: FakeCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        with pytest.raises(TopicAlreadyExistsError, match="topic t"):
            admin.create_topics({"t": (1, 1)})
        results = admin.create_topics({"t": (1, 1), "fine": (1, 1)}, raise_errors=False)
    assert [type(result.error) for result in results] == [TopicAlreadyExistsError, type(None)]


def test_a_refusal_keeps_its_class(cluster: FakeCluster) -> None:
    cluster.create_error = ErrorCode.INVALID_REPLICATION_FACTOR
    with Admin(cluster.bootstrap) as admin, pytest.raises(InvalidReplicationFactorError):
        admin.create_topics({"new": (1, 9)})


def test_topics_are_deleted_and_unknown_ones_named(cluster: FakeCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topics(["t"])
        assert admin.list_topics() == []
        with pytest.raises(UnknownTopicOrPartitionError, match="topic t"):
            admin.delete_topics(["t"])
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.describe_topics(["t"])


def test_the_cluster_is_described_past_a_dead_address(cluster: FakeCluster) -> None:
    with Admin("127.0.0.1:1," + cluster.bootstrap) as admin:
        found = admin.describe_cluster()
    assert [broker.broker_id for broker in found.brokers] == [1, 2]
    assert (found.cluster_id, found.controller_id, found.node_id) == ("fake", CONTROLLER_ID, 1)
    assert found.controller_address == cluster.controller.address


def test_an_unreachable_cluster_is_an_error_in_time_that_names_the_address() -> None:
    began = time.monotonic()
    with Admin("127.0.0.1:1") as admin, pytest.raises(BootstrapError, match=r"127\.0\.0\.1:1"):
        admin.describe_cluster(timeout_ms=500)
    assert time.monotonic() - began < 60


def test_brokers_that_hang_delay_no_call_beyond_its_timeout(cluster: FakeCluster) -> None:
    go_on = cluster.faults.hold_metadata = threading.Event()
    try:
        with Admin(cluster.bootstrap) as admin:
            asked, begin = cluster.metadata_requests, time.monotonic()
            with pytest.raises(BootstrapError):
                admin.describe_cluster(timeout_ms=2_000)
            with pytest.raises(BootstrapError):
                admin.delete_records({("t", 0): 0}, timeout_ms=2_000)
            assert time.monotonic() - begin < 9
            assert cluster.metadata_requests - asked >= len(cluster.brokers)
    finally:
        go_on.set()


def test_a_broker_without_metadata_is_skipped(cluster: FakeCluster) -> None:
    cluster.faults.knows_nobody = 1
    bootstrap = [cluster.brokers[1].address, cluster.brokers[2].address]
    with Admin(bootstrap) as admin:
        assert [broker.broker_id for broker in admin.describe_cluster(10_000).brokers] == [1, 2]
        assert "t" in admin.list_topics(10_000)
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("new", 1, 1)], timeout_ms=10_000)


def test_topics_are_described_by_partition(cluster: FakeCluster) -> None:
    cluster.move(TopicPartition("t", 1), None)
    with Admin(cluster.bootstrap) as admin:
        (topic,) = admin.describe_topics(["t"])
        assert admin.describe_topics([]) == []
    assert [(p.partition, p.leader, p.leader_epoch) for p in topic.partitions] == [(0, 1, 0), (1, None, 1), (2, 1, 0)]
    assert topic.topic_id == "id-of-t"


def test_replicas_are_described_by_the_leader_of_each_partition(cluster: FakeCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        views = admin.describe_replicas("t")
        assert [(view.partition, view.leader) for view in views] == [(0, 1), (1, 2), (2, 1)]
        assert views[0].replicas[0].log_end_offset == 0
        assert views[0].replicas[0].last_fetch_ago_ms is None
        assert [view.partition for view in admin.describe_replicas("t", [2])] == [2]
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition 3"):
            admin.describe_replicas("t", [3])


def test_a_closed_client_refuses_calls(cluster: FakeCluster) -> None:
    admin = Admin(cluster.bootstrap)
    admin.close()
    with pytest.raises(ClientClosedError):
        admin.list_topics()
