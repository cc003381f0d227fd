"""The metadata cache: immutable snapshots that never move a partition back.

Source: docs/protocol/replication.md#metadata-cache.
"""

from dataclasses import replace

import pytest

from paceline.broker.metadata_cache import MetadataCache
from paceline.model.control import (
    ControllerStamp,
    Endpoint,
    LiveBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from paceline.model.identifiers import TopicPartition
from tests.support.broker_cluster import BrokerCluster

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def state(
    tp: TopicPartition, leader: int = 1, epoch: int = 0, version: int = 0, topic_id: str | None = "id", **extra: object
) -> UpdateMetadataPartition:
    return UpdateMetadataPartition(tp, topic_id, 1, leader, epoch, (1,), version, (1, 2), **extra)  # type: ignore[arg-type]


def request(
    *states: UpdateMetadataPartition, brokers: tuple[int, ...] = (1, 2), controller: int = 1_000_000
) -> UpdateMetadataRequest:
    live = tuple(LiveBroker(one, (Endpoint("CLIENT", f"b{one}", 9092),), None, 100 + one) for one in brokers)
    return UpdateMetadataRequest(ControllerStamp(controller, 1, None), live, states)


def test_brokers_and_controller_are_replaced_and_partitions_are_kept() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0), brokers=(1, 2)))
    cache.update(request(state(B0), brokers=(2, 3), controller=1_000_001))
    snapshot = cache.snapshot
    assert sorted(snapshot.brokers) == [2, 3] and snapshot.controller_id == 1_000_001
    assert snapshot.partition(A0) is not None and snapshot.partition(B0) is not None
    assert (snapshot.registered_broker_epoch(2), snapshot.registered_broker_epoch(1)) == (102, None)


def test_a_snapshot_never_changes() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0)))
    before = cache.snapshot
    cache.update(request(state(A0, leader=-2), state(A1, epoch=3)))
    known = before.partition(A0)
    assert known is not None and known.leader == 1 and before.partition(A1) is None
    assert cache.snapshot.version == before.version + 1


def test_a_partition_being_deleted_is_removed_and_its_topic_with_the_last_partition() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0), state(A1)))
    assert cache.update(request(state(A0, leader=-2, epoch=-2))) == (A0,)
    assert list(cache.snapshot.topics) == ["a"]
    assert cache.update(request(state(A1, leader=-2, epoch=-2))) == (A1,)
    assert list(cache.snapshot.topics) == []
    assert cache.update(request(state(A1, leader=-2, epoch=-2))) == ()


@pytest.mark.parametrize(
    ("epoch", "version", "applied"),
    [(5, 7, True), (5, 8, True), (6, 0, True), (5, 6, False), (4, 9, False)],
)
def test_epoch_and_version_of_a_partition_never_fall(epoch: int, version: int, applied: bool) -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, leader=1, epoch=5, version=7)))
    cache.update(request(state(A0, leader=2, epoch=epoch, version=version)))
    known = cache.snapshot.partition(A0)
    assert known is not None and known.leader == (2 if applied else 1)


def test_a_re_created_topic_starts_with_its_own_epochs() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, epoch=5, version=7)))
    cache.update(request(state(A0, leader=2, epoch=0, version=0, topic_id="new")))
    known = cache.snapshot.partition(A0)
    assert known is not None and known.leader == 2
    assert {state.topic_id for state in cache.snapshot.topics["a"].values()} == {"new"}


def test_a_partition_whose_topic_was_re_created_counts_as_deleted() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, topic_id="old"), state(B0)))
    assert cache.update(request(state(A0, topic_id="new"), state(B0))) == (A0,)
    assert cache.update(request(state(A0, epoch=9, topic_id="new"))) == ()


def test_a_late_deletion_does_not_remove_a_re_created_topic() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, topic_id="new")))
    assert cache.update(request(state(A0, leader=-2, epoch=-2, topic_id="old"))) == ()
    assert cache.snapshot.partition(A0) is not None


def test_a_topic_re_created_with_fewer_partitions_has_no_partition_of_the_deleted_topic() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, topic_id="old"), state(A1, topic_id="old"), state(B0)))
    assert cache.update(request(state(A0, topic_id="new"))) == (A0, A1)
    assert list(cache.snapshot.topics["a"]) == [0] and cache.snapshot.partition(B0) is not None
    cache.update(request(state(A1, topic_id="newest")))
    states = cache.snapshot.topics["a"]
    assert list(states) == [1] and states[1].topic_id == "newest"


def test_offline_replicas_are_updated_within_an_unchanged_epoch() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, epoch=5, version=7)))
    cache.update(request(state(A0, epoch=5, version=7, offline_replicas=(2,))))
    assert cache.snapshot.is_offline_replica(A0, 2) and not cache.snapshot.is_offline_replica(A0, 1)
    assert not cache.snapshot.is_offline_replica(B0, 2)


def test_a_delayed_repetition_does_not_change_the_live_brokers() -> None:
    cluster = BrokerCluster()
    cache = cluster[1].node.replica_manager.hosted.metadata
    first = UpdateMetadataRequest(cluster.stamp(1), cluster.live([1, 2]), (), sequence=7)
    later = replace(first, live_brokers=cluster.live([1, 2, 3]), sequence=8)
    for one in (first, later, first):
        assert not cluster[1].node.handle_control(one).partition_errors
    assert sorted(cache.snapshot.brokers) == [1, 2, 3], "a delayed repetition is ignored"
    cluster[1].node.handle_control(replace(first, sequence=9))
    assert sorted(cache.snapshot.brokers) == [1, 2]
    cluster.set_controller_epoch(2)
    of_next_term = replace(later, stamp=cluster.stamp(1, 2), sequence=1)
    cluster.handle(1, of_next_term)
    assert sorted(cache.snapshot.brokers) == [1, 2, 3], "each controller epoch has its own sequence"


def test_one_huge_sequence_does_not_block_later_metadata_of_the_same_controller() -> None:
    cache = MetadataCache()
    cache.update(replace(request(state(A0)), sequence=7))
    cache.update(replace(request(state(A0)), sequence=2**62))
    for sequence in (8, 9):
        following = replace(request(state(A0)), sequence=sequence)
        assert not cache.is_overtaken(following)
        cache.update(following)
    assert cache.is_overtaken(replace(request(state(A0)), sequence=8))
