"""A partition of ``__consumer_offsets`` that never had a leader does not change the partitions of groups."""

import pytest

from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC, partition_for
from paceline.model.errors import CoordinatorNotAvailableError
from paceline.model.identifiers import TopicPartition
from tests.support.broker_cluster import BrokerCluster

PARTITIONS = 16


def lead(cluster: BrokerCluster, *indexes: int) -> None:
    """Make broker 1 the leader of these partitions of the offsets topic."""
    for index in indexes:
        cluster.decide(1, 0, (1,), tp=TopicPartition(OFFSETS_TOPIC, index), is_new=True)


def test_groups_keep_their_partitions_when_a_partition_gets_its_first_leader() -> None:
    cluster = BrokerCluster((1,))
    storage = cluster[1].node.groups.storage
    groups = [f"group-{number}" for number in range(50)]
    leaderless = [index for index in range(PARTITIONS) if index % 3 == 1]
    lead(cluster, *(index for index in range(PARTITIONS) if index not in leaderless))
    before = {group: storage.partition_of(group) for group in groups}
    assert before == {group: partition_for(group, PARTITIONS) for group in groups}
    for group in groups:
        if before[group] in leaderless:
            with pytest.raises(CoordinatorNotAvailableError):
                cluster[1].node.groups.find_coordinator(group)
        else:
            assert cluster[1].node.groups.find_coordinator(group) == 1
    lead(cluster, *leaderless)
    assert {group: storage.partition_of(group) for group in groups} == before
