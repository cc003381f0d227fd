"""Placement of replicas: Kafka's vector, and properties of every placement."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.controller.topics.placement import (
    place_replicas,
    rack_alternated_brokers,
    start_index_for_added_partitions,
)
from paceline.model.errors import InvalidPartitionsError, InvalidReplicationFactorError


def test_kafkas_vector_for_five_brokers_is_reproduced() -> None:
    placed = place_replicas(dict.fromkeys(range(5)), 10, 3, random.Random(1), fixed_start=0)
    assert (placed[0], placed[1], placed[4], placed[5], placed[9]) == (
        (0, 1, 2),
        (1, 2, 3),
        (4, 0, 1),
        (0, 2, 3),
        (4, 1, 2),
    )


def test_kafkas_order_of_brokers_alternates_between_racks() -> None:
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert rack_alternated_brokers(racks) == [0, 3, 1, 5, 4, 2]


@given(st.integers(1, 7), st.integers(1, 30), st.integers(0, 2**32), st.data())
def test_every_partition_gets_distinct_brokers_and_leaders_are_spread(
    broker_count: int, partitions: int, seed: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, broker_count))
    placed = place_replicas(dict.fromkeys(range(broker_count)), partitions, factor, random.Random(seed))
    assert sorted(placed) == list(range(partitions))
    assert all(len(set(replicas)) == factor for replicas in placed.values())
    leaders = Counter(replicas[0] for replicas in placed.values())
    assert max(leaders.values()) - min(leaders.get(b, 0) for b in range(broker_count)) <= 1


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 20), st.integers(0, 2**32), st.data())
def test_replicas_are_placed_in_as_many_racks_as_possible(
    rack_count: int, per_rack: int, partitions: int, seed: int, data: st.DataObject
) -> None:
    racks: dict[int, str | None] = {b: f"r{b % rack_count}" for b in range(rack_count * per_rack)}
    factor = data.draw(st.integers(1, len(racks)))
    placed = place_replicas(racks, partitions, factor, random.Random(seed))
    for replicas in placed.values():
        assert len(set(replicas)) == factor
        assert len({racks[b] for b in replicas}) == min(factor, rack_count)


def test_racks_are_ignored_when_a_broker_has_none() -> None:
    mixed = place_replicas({0: "x", 1: None, 2: "x"}, 3, 2, random.Random(1), fixed_start=0)
    plain = place_replicas(dict.fromkeys(range(3)), 3, 2, random.Random(1), fixed_start=0)
    assert mixed == plain


def test_added_partitions_start_at_the_leader_of_partition_0_and_continue_the_count() -> None:
    assert start_index_for_added_partitions([5, 1, 3], 3) == 1
    assert start_index_for_added_partitions([5, 1, 3], 9) == 0
    placed = place_replicas(dict.fromkeys((1, 3, 5)), 2, 2, random.Random(1), fixed_start=1, first_partition=4)
    assert placed == {4: (5, 3), 5: (1, 5)}


@pytest.mark.parametrize("count", [0, -1])
def test_a_topic_without_partitions_is_refused(count: int) -> None:
    with pytest.raises(InvalidPartitionsError):
        place_replicas({1: None}, count, 1, random.Random(1))


@pytest.mark.parametrize("factor", [0, -1, 3])
def test_a_replication_factor_beyond_the_brokers_is_refused(factor: int) -> None:
    with pytest.raises(InvalidReplicationFactorError):
        place_replicas({1: None, 2: None}, 1, factor, random.Random(1))
