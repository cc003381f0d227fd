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


def test_a_partition_being_deleted_leaves_and_its_topic_with_the_last_one() -> None:
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
def test_k6_epoch_and_version_of_a_partition_never_fall(epoch: int, version: int, applied: bool) -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, leader=1, epoch=5, version=7)))
    cache.update(request(state(A0, leader=2, epoch=epoch, version=version)))
    known = cache.snapshot.partition(A0)
    assert known is not None and known.leader == (2 if applied else 1)


def test_another_topic_of_the_name_starts_from_its_own_epochs() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, epoch=5, version=7)))
    cache.update(request(state(A0, leader=2, epoch=0, version=0, topic_id="new")))
    known = cache.snapshot.partition(A0)
    assert known is not None and known.leader == 2
    assert cache.snapshot.topic_id("a") == "new"


def test_a_late_deletion_does_not_take_a_namesake_away() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, topic_id="new")))
    assert cache.update(request(state(A0, leader=-2, epoch=-2, topic_id="old"))) == ()
    assert cache.snapshot.partition(A0) is not None


def test_a_topic_made_anew_with_fewer_partitions_keeps_none_of_its_namesakes() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, topic_id="old"), state(A1, topic_id="old"), state(B0)))
    assert cache.update(request(state(A0, topic_id="new"))) == (A1,)
    assert list(cache.snapshot.topics["a"]) == [0] and cache.snapshot.partition(B0) is not None
    cache.update(request(state(A1, topic_id="newest")))
    assert list(cache.snapshot.topics["a"]) == [1] and cache.snapshot.topic_id("a") == "newest"


def test_offline_replicas_of_an_unchanged_epoch_are_taken_over() -> None:
    cache = MetadataCache()
    cache.update(request(state(A0, epoch=5, version=7)))
    cache.update(request(state(A0, epoch=5, version=7, offline_replicas=(2,))))
    assert cache.snapshot.is_offline_replica(A0, 2) and not cache.snapshot.is_offline_replica(A0, 1)
    assert not cache.snapshot.is_offline_replica(B0, 2)


def test_a_repetition_that_was_overtaken_brings_no_broker_back_or_away() -> None:
    cluster = BrokerCluster()
    cache = cluster[1].node.replica_manager.metadata
    first = UpdateMetadataRequest(cluster.stamp(1), cluster.live([1, 2]), (), sequence=7)
    later = replace(first, live_brokers=cluster.live([1, 2, 3]), sequence=8)
    for one in (first, later, first):
        assert not cluster[1].node.handle_control(one).partition_errors
    assert sorted(cache.snapshot.brokers) == [1, 2, 3], "it was sent again, and both copies arrived"
    cluster[1].node.handle_control(replace(first, sequence=9))
    assert sorted(cache.snapshot.brokers) == [1, 2]
    cluster.set_controller_epoch(2)
    of_next_term = replace(later, stamp=cluster.stamp(1, 2), sequence=1)
    cluster.handle(1, of_next_term)
    assert sorted(cache.snapshot.brokers) == [1, 2, 3], "each term counts for itself"


def test_one_absurd_sequence_does_not_freeze_the_metadata_of_the_term() -> None:
    cache = MetadataCache()
    cache.update(replace(request(state(A0)), sequence=7))
    cache.update(replace(request(state(A0)), sequence=2**62))
    for sequence in (8, 9):
        following = replace(request(state(A0)), sequence=sequence)
        assert not cache.is_overtaken(following)
        cache.update(following)
    assert cache.is_overtaken(replace(request(state(A0)), sequence=8))
