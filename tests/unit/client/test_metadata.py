import pytest

from paceline.model.errors import ErrorCode, InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline.v1.errors_pb2 import LeaderHint, TopicError
from paceline.v1.metadata_service_pb2 import BrokerInfo, DescribeClusterResponse, PartitionDescription, TopicDescription
from paceline_client.addresses import parse_bootstrap
from paceline_client.metadata import ClusterMetadata

TP = TopicPartition("t", 0)


def topic(leader: int | None, epoch: int, topic_id: str = "first", partitions: int = 1) -> TopicDescription:
    described = [PartitionDescription(partition=p, leader=leader, leader_epoch=epoch) for p in range(partitions)]
    return TopicDescription(name="t", topic_id=topic_id, partitions=described)


def cluster_of(*ids: int) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        cluster_id="c", brokers=[BrokerInfo(id=broker, host=f"b{broker}", port=9092) for broker in ids]
    )


@pytest.fixture
def metadata() -> ClusterMetadata:
    cache = ClusterMetadata()
    cache.update_cluster(cluster_of(1, 2))
    cache.update_topic(topic(leader=1, epoch=5))
    return cache


def leader(cache: ClusterMetadata) -> int | None:
    found = cache.leader_of(TP)
    return found and found.broker_id


def test_an_older_leader_epoch_changes_nothing(metadata: ClusterMetadata) -> None:
    version = metadata.version
    metadata.update_topic(topic(leader=2, epoch=4))
    assert leader(metadata) == 1
    assert metadata.version == version


def test_a_newer_leader_epoch_is_followed(metadata: ClusterMetadata) -> None:
    metadata.update_topic(topic(leader=2, epoch=6))
    assert leader(metadata) == 2


def test_a_re_created_topic_begins_with_its_own_epochs(metadata: ClusterMetadata) -> None:
    metadata.update_topic(topic(leader=2, epoch=0, topic_id="second"))
    assert leader(metadata) == 2
    assert metadata.topic_id("t") == "second"


def test_a_hint_with_a_newer_epoch_is_followed_even_to_an_unknown_broker(metadata: ClusterMetadata) -> None:
    assert metadata.apply_hint(TP, LeaderHint(leader_id=3, leader_epoch=6, host="b3", port=9092, topic_id="first"))
    found = metadata.leader_of(TP)
    assert found is not None
    assert str(found) == "broker 3 (b3:9092)"
    metadata.update_topic(topic(leader=1, epoch=5))
    assert leader(metadata) == 3


@pytest.mark.parametrize(
    "hint",
    [
        LeaderHint(leader_id=2, leader_epoch=4),
        LeaderHint(leader_id=1, leader_epoch=5),
        LeaderHint(leader_id=9, leader_epoch=6),
        LeaderHint(leader_id=-1, leader_epoch=6),
        LeaderHint(leader_id=2, leader_epoch=6, topic_id="another"),
    ],
)
def test_a_hint_with_an_old_epoch_without_address_or_of_another_topic_is_ignored(
    metadata: ClusterMetadata, hint: LeaderHint
) -> None:
    assert not metadata.apply_hint(TP, hint)
    assert leader(metadata) == 1


def test_a_leader_that_is_not_alive_is_no_leader(metadata: ClusterMetadata) -> None:
    metadata.update_cluster(cluster_of(2))
    assert leader(metadata) is None
    assert metadata.available_partitions("t") == []


def test_an_answer_without_brokers_changes_nothing(metadata: ClusterMetadata) -> None:
    metadata.update_cluster(DescribeClusterResponse())
    assert leader(metadata) == 1


def test_a_topic_that_cannot_be_described_keeps_its_known_metadata(metadata: ClusterMetadata) -> None:
    metadata.update_topic(TopicDescription(name="t", error=TopicError(code=3, message="gone")))
    error = metadata.error_of("t")
    assert error is not None
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata.partition_count("t") == 1


def test_new_partitions_are_added(metadata: ClusterMetadata) -> None:
    metadata.update_topic(topic(leader=1, epoch=5, partitions=3))
    assert metadata.partition_count("t") == 3
    assert metadata.available_partitions("t") == [0, 1, 2]


def test_addresses_are_parsed_once_each_and_in_order() -> None:
    assert parse_bootstrap(" b:2, a:1 ,b:2,") == ["b:2", "a:1"]
    assert parse_bootstrap(["a:1", "b:2,[::1]:3"]) == ["a:1", "b:2", "[::1]:3"]


@pytest.mark.parametrize(
    "text", ["", " , ", "host", "host:", ":1", "host:0", "host:70000", "host:1x", "::1:9092", "2001:db8::7"]
)
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_bootstrap(text)
