"""The leadership callback of the replica manager loads and drops groups, on a whole broker."""

import pytest

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.broker.groups.records import OffsetValue
from paceline.broker.groups.requests import CommitRequest
from paceline.model.errors import CoordinatorNotAvailableError, ErrorCode, LogDirFullError, PacelineError
from paceline.model.identifiers import TopicPartition
from tests.support.broker_cluster import BrokerCluster

ME = 1
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
SALES = TopicPartition("sales", 0)


@pytest.fixture
def cluster() -> BrokerCluster:
    found = BrokerCluster((1, 2))
    found[2].up = False
    return found


def commit(cluster: BrokerCluster, offset: int) -> list[object]:
    answers: list[object] = []
    request = CommitRequest("g", -1, "", None, {SALES: OffsetValue(offset, -1, "", cluster.time.wall_ms())})
    cluster[ME].node.groups.commit(request, answers.append)
    cluster.time.run_for(100)
    return answers


def refusal(cluster: BrokerCluster) -> ErrorCode | None:
    try:
        cluster[ME].node.groups.fetch_offsets("g", [SALES])
    except PacelineError as error:
        return error.code
    return None


def lead(cluster: BrokerCluster, epoch: int, leader: int = ME, is_new: bool = False) -> None:
    state = cluster.partition(leader, epoch, (ME,) if leader == ME else (2,), tp=OFFSETS, is_new=is_new)
    cluster[2].up = True
    cluster.update_metadata(to=[ME])
    cluster[2].up = False
    assert cluster.send(ME, state).partition_errors[OFFSETS] is ErrorCode.NONE


@pytest.mark.origin("S2-4")
def test_the_callback_loads_groups_of_a_new_leader_and_drops_those_of_a_follower(cluster: BrokerCluster) -> None:
    groups = cluster[ME].node.groups
    groups._topic.partition_count = lambda: 1  # type: ignore[method-assign]
    groups._topic.is_known = lambda _partition: True  # type: ignore[method-assign]
    lead(cluster, 0, is_new=True)
    cluster.time.run_for(1_000)
    assert commit(cluster, 7) == [{SALES: None}]
    assert groups.fetch_offsets("g", [SALES])[SALES].offset == 7  # type: ignore[union-attr]
    lead(cluster, 1, leader=2)
    assert refusal(cluster) is ErrorCode.NOT_COORDINATOR
    lead(cluster, 2)
    assert refusal(cluster) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the load runs after the request"
    cluster.time.run_for(1_000)
    assert groups.fetch_offsets("g", [SALES])[SALES].offset == 7  # type: ignore[union-attr]
    cluster.stop_replica(ME, 3, delete=True, tp=OFFSETS)
    assert refusal(cluster) is ErrorCode.NOT_COORDINATOR


def test_groups_of_a_deleted_offsets_topic_end_when_its_log_is_set_aside(cluster: BrokerCluster) -> None:
    """Its successor begins with a lower leader epoch, which must load the groups of the new log."""
    groups = cluster[ME].node.groups
    groups._topic.partition_count = lambda: 1  # type: ignore[method-assign]
    groups._topic.is_known = lambda _partition: True  # type: ignore[method-assign]
    lead(cluster, 3, is_new=True)
    cluster.time.run_for(1_000)
    assert commit(cluster, 7) == [{SALES: None}]
    cluster.set_controller_epoch(cluster.controller_epoch + 1)
    state = cluster.partition(ME, 0, (ME,), tp=OFFSETS, is_new=True, topic_id="another-topic-of-the-name")
    assert cluster.send(ME, state).partition_errors[OFFSETS] is ErrorCode.NONE
    cluster.time.run_for(1_000)
    assert groups.fetch_offsets("g", [SALES]) == {SALES: None}
    assert commit(cluster, 8) == [{SALES: None}]


def test_offsets_topic_is_created_when_enough_brokers_live(cluster: BrokerCluster) -> None:
    """KIP-115: never with fewer replicas than ``offsets.topic.replication.factor``."""
    with pytest.raises(CoordinatorNotAvailableError):
        cluster[ME].node.groups.find_coordinator("g")
    assert cluster[ME].transport.created_topics == []


def test_commits_are_refused_while_the_disk_of_the_offsets_is_short(cluster: BrokerCluster) -> None:
    groups, files = cluster[ME].node.groups, cluster[ME].files
    groups._topic.partition_count = lambda: 1  # type: ignore[method-assign]
    groups._topic.is_known = lambda _partition: True  # type: ignore[method-assign]
    lead(cluster, 0, is_new=True)
    cluster.time.run_for(1_000)
    assert commit(cluster, 7) == [{SALES: None}]
    files.limit_bytes, files.other_bytes = 100_000, 96_000 - files.used_bytes
    cluster.time.run_for(1_100)
    (refused,) = commit(cluster, 8)
    assert isinstance(refused, LogDirFullError)
    assert str(refused).startswith("broker 1 has no room for offsets: disk /disk of log directory /data has ")
    deleted: list[PacelineError | None] = []
    groups.delete("g", deleted.append)
    cluster.time.run_for(100)
    assert deleted == [None], "tombstones use the reserve: compaction then makes room"
    files.limit_bytes = None
    cluster.time.run_for(1_100)
    assert commit(cluster, 8) == [{SALES: None}]
