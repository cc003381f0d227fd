"""Limits of one group: offsets, members and their subscriptions (docs/protocol/groups.md#limits-of-a-group)."""

from typing import Any

import pytest

from paceline.broker.groups.committed_offsets import size_of
from paceline.broker.groups.records import OffsetValue
from paceline.broker.groups.requests import CommitRequest
from paceline.model.errors import InvalidRequestError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import GroupConfig
from tests.support.group_cluster import GROUP, GroupCluster
from tests.unit.broker.groups.test_membership import code

T = TopicPartition("t", 0)


def limited(**settings: int) -> GroupCluster:
    return GroupCluster(GroupConfig(group_initial_rebalance_delay_ms=0, **settings))


def commit(cluster: GroupCluster, offsets: dict[TopicPartition, OffsetValue]) -> Any:
    answers: list[Any] = []
    cluster.coordinator.commit(CommitRequest(GROUP, -1, "", None, offsets), answers.append)
    return answers[0] if answers else None


def value(metadata: str = "") -> OffsetValue:
    return OffsetValue(5, -1, metadata, 0)


def partitions(start: int, end: int, metadata: str = "") -> dict[TopicPartition, OffsetValue]:
    return {TopicPartition("t", index): value(metadata) for index in range(start, end)}


def test_commit_for_an_unknown_partition_is_refused_and_other_partitions_are_committed() -> None:
    cluster = GroupCluster()
    missing = TopicPartition("gone", 0)
    cluster.missing.add(missing)
    results = commit(cluster, {T: value(), missing: value()})
    assert results[T] is None and code(results[missing]) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert set(cluster.coordinator.fetch_offsets(GROUP, None)) == {T}


def test_group_with_the_largest_number_of_offsets_commits_known_partitions_and_refuses_new_ones() -> None:
    cluster = limited(group_max_offsets=3)
    commit(cluster, partitions(0, 3))
    refused = commit(cluster, partitions(2, 4))
    assert code(refused) == "INVALID_COMMIT_OFFSET_SIZE" and refused.metadata["limit"] == "group.max.offsets"
    assert commit(cluster, partitions(0, 3)) == dict.fromkeys(partitions(0, 3))
    assert len(cluster.coordinator.fetch_offsets(GROUP, None)) == 3


def test_a_refused_commit_or_join_creates_no_group() -> None:
    cluster = limited(group_max_offsets=1, group_member_metadata_max_bytes=100)
    cluster.missing.add(T)
    assert code(commit(cluster, partitions(1, 3))) == "INVALID_COMMIT_OFFSET_SIZE"
    assert code(commit(cluster, {T: value()})[T]) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert code(cluster.join(topics=("t" * 1_500,))[0]) == "INVALID_REQUEST"
    assert code(cluster.join(protocols=())[0]) == "INCONSISTENT_GROUP_PROTOCOL"
    assert cluster.coordinator.list_groups(frozenset()) == ([], False)


def test_offsets_in_progress_count_towards_the_limit() -> None:
    cluster = limited(group_max_offsets=3)
    cluster.hold_appends = True
    assert commit(cluster, partitions(0, 2)) is None
    assert commit(cluster, partitions(0, 3)) is None, "two of its three offsets are the same as those in progress"
    assert code(commit(cluster, partitions(3, 4))) == "INVALID_COMMIT_OFFSET_SIZE"
    cluster.release_appends()
    assert len(cluster.coordinator.fetch_offsets(GROUP, None)) == 3


def test_size_of_offsets_is_limited_and_shrinks_with_shorter_texts() -> None:
    cluster = limited(group_max_offsets_bytes=3 * size_of(T, value("x" * 100)))
    commit(cluster, partitions(0, 3, "x" * 100))
    refused = commit(cluster, {T: value("x" * 101)})
    assert code(refused) == "INVALID_COMMIT_OFFSET_SIZE" and refused.metadata["limit"] == "group.max.offsets.bytes"
    assert commit(cluster, {T: value("x" * 100)}) == {T: None}
    assert commit(cluster, {T: value("")}) == {T: None}
    assert commit(cluster, {TopicPartition("t", 1): value("x" * 150)}) == {TopicPartition("t", 1): None}


def test_size_in_progress_counts_and_is_given_back_when_the_write_fails() -> None:
    cluster = limited(group_max_offsets_bytes=2 * size_of(T, value("x" * 100)))
    cluster.hold_appends = True
    assert commit(cluster, partitions(0, 2, "x" * 100)) is None
    assert code(commit(cluster, partitions(2, 3))) == "INVALID_COMMIT_OFFSET_SIZE"
    held, cluster.held = cluster.held, []
    for on_done, _ in held:
        on_done(PacelineError("lost"))
    cluster.hold_appends = False
    assert commit(cluster, partitions(2, 3)) == dict.fromkeys(partitions(2, 3))


def test_all_offsets_of_a_large_group_are_refused_in_one_response_and_given_by_name() -> None:
    cluster = GroupCluster()
    cluster.commit(5)
    commit(cluster, partitions(0, 300, "x" * 4_000))
    with pytest.raises(InvalidRequestError, match="name the partitions"):
        cluster.coordinator.fetch_offsets(GROUP, None)
    assert len(cluster.coordinator.fetch_offsets(GROUP, list(partitions(0, 300)))) == 300


def test_loaded_group_counts_the_same_offsets_as_the_group_that_committed_them() -> None:
    cluster = limited(group_max_offsets=3)
    commit(cluster, partitions(0, 3, "long"))
    commit(cluster, {T: value()})
    group = cluster.coordinator.storage.find(GROUP)
    cluster.fail_over()
    loaded = cluster.coordinator.storage.find(GROUP)
    assert group is not None and loaded is not None and loaded is not group
    assert (
        loaded.offsets.size_bytes
        == group.offsets.size_bytes
        == sum(size_of(one, kept.value) for one, kept in loaded.offsets.items())
    )
    assert code(commit(cluster, partitions(3, 4))) == "INVALID_COMMIT_OFFSET_SIZE"


def test_member_with_too_large_a_subscription_is_refused_for_all_its_assignors_together() -> None:
    cluster = limited(group_member_metadata_max_bytes=2_000)
    assert cluster.join(topics=("t" * 1_500,))[0].generation == 1
    (refused,) = cluster.join(topics=("t" * 1_500,), protocols=("range", "sticky"))
    assert code(refused) == "INVALID_REQUEST" and refused.metadata["limit"] == "group.member.metadata.max.bytes"


def test_group_with_the_largest_metadata_refuses_a_member_and_lets_its_members_join_again() -> None:
    cluster = limited(group_max_metadata_bytes=4_000)
    (first,) = cluster.join(topics=("t" * 1_500,))
    cluster.join(topics=("t" * 1_500,))
    (refused,) = cluster.join(topics=("t" * 1_500,))
    assert code(refused) == "GROUP_MAX_SIZE_REACHED" and refused.metadata["limit"] == "group.max.metadata.bytes"
    (again,) = cluster.join(first.member_id, topics=("t" * 1_500,))
    assert again.generation == 2


def test_replaced_static_member_does_not_count_twice() -> None:
    cluster = limited(group_max_metadata_bytes=2_000)
    cluster.join(instance_id="i", topics=("t" * 1_500,))
    (again,) = cluster.join(instance_id="i", topics=("t" * 1_500,))
    assert again.generation >= 1


def test_members_that_have_left_give_their_size_back() -> None:
    cluster = limited(group_max_metadata_bytes=2_000)
    (first,) = cluster.join(topics=("t" * 1_500,))
    cluster.leave(first.member_id)
    assert cluster.join(topics=("t" * 1_500,))[0].generation > first.generation
