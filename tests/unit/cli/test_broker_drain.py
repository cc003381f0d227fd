"""Draining a broker of leadership: the elected replicas, and the partitions that must stay."""

from dataclasses import replace

import pytest

from paceline.cli.broker_drain import Undrain, failed_elections, plan_drain, plan_undrain, refuse_unknown_broker
from paceline.model.errors import ElectionNotNeededError, PreferredLeaderNotAvailableError
from paceline.model.identifiers import TopicPartition
from paceline_client import ElectionResult, PartitionDescription, TopicDescription


def topic(*partitions: PartitionDescription) -> list[TopicDescription]:
    return [TopicDescription("t", "id", partitions)]


def test_the_broker_becomes_the_last_replica_and_others_are_elected() -> None:
    drain = plan_drain(
        topic(
            PartitionDescription(0, 1, 0, (1, 2, 3), (1, 2, 3)),
            PartitionDescription(1, 1, 0, (1, 2, 3), (1, 2, 3)),
            PartitionDescription(2, 2, 0, (2, 1, 3), (1, 2, 3)),
        ),
        1,
        (),
    )
    assert drain.order == {("t", 0): (3, 2, 1), ("t", 1): (2, 3, 1)}, (
        "the broker that is preferred least often comes first"
    )
    assert drain.before == {("t", 0): (1, 2, 3), ("t", 1): (1, 2, 3)}
    assert drain.elect == [("t", 0), ("t", 1)]
    assert (drain.stuck, drain.single) == ({}, [])


def test_an_unknown_broker_is_not_drained() -> None:
    topics = topic(PartitionDescription(0, 1, 0, (1, 4), (1,)))
    refuse_unknown_broker(2, [1, 2], topics)
    refuse_unknown_broker(4, [1, 2], topics)  # down, but assigned
    with pytest.raises(ValueError, match="there is no broker 99; live brokers: 1, 2"):
        refuse_unknown_broker(99, [2, 1], topics)


def test_a_leader_that_is_not_preferred_only_needs_an_election() -> None:
    drain = plan_drain(topic(PartitionDescription(0, 1, 0, (2, 1), (1, 2))), 1, ())
    assert (drain.order, drain.elect) == ({}, [("t", 0)])


def test_a_preferred_replica_that_cannot_lead_is_skipped() -> None:
    drain = plan_drain(topic(PartitionDescription(0, 1, 0, (2, 1, 3), (1, 3), (2,))), 1, ())
    assert (drain.order, drain.elect) == ({("t", 0): (3, 2, 1)}, [("t", 0)])


def test_partitions_without_another_possible_leader_stay() -> None:
    drain = plan_drain(
        topic(
            PartitionDescription(0, 1, 0, (1, 2), (1,)),
            PartitionDescription(1, 1, 0, (1, 2), (1, 2), (2,)),
            PartitionDescription(2, 1, 0, (1,), (1,)),
            PartitionDescription(3, 1, 0, (1, 2), (1, 2)),
            PartitionDescription(4, 2, 0, (2, 3), (2, 3)),
        ),
        1,
        {("t", 3)},
    )
    assert drain.stuck == {
        ("t", 0): "no other replica is in sync",
        ("t", 1): "no other replica is in sync",
        ("t", 3): "it is being reassigned",
    }
    assert drain.single == [("t", 2)]
    assert (drain.order, drain.elect) == ({}, [])


def test_a_saved_order_is_restored_exactly_and_the_broker_is_elected() -> None:
    topics = topic(
        PartitionDescription(0, 3, 0, (3, 2, 1), (1, 2, 3)),
        PartitionDescription(1, 2, 0, (2, 3, 1), (1, 2, 3)),
        PartitionDescription(2, 2, 0, (2, 1, 3), (1, 2, 3)),
    )
    undrain = plan_undrain(topics, 1, (), {("t", 0): (1, 2, 3), ("t", 1): (1, 2, 3)})
    assert undrain.order == {("t", 0): (1, 2, 3), ("t", 1): (1, 2, 3)}
    assert (undrain.elect, undrain.stuck) == ([("t", 0), ("t", 1)], {})


def test_without_a_saved_order_the_broker_gets_its_share_from_the_most_preferred_brokers() -> None:
    topics = topic(
        PartitionDescription(0, 2, 0, (2, 3, 1), (1, 2, 3)),
        PartitionDescription(1, 2, 0, (2, 3, 1), (1, 2, 3)),
        PartitionDescription(2, 3, 0, (3, 2, 1), (1, 2, 3)),
    )
    undrain = plan_undrain(topics, 1, ())
    assert undrain.order == {("t", 0): (1, 2, 3)}
    assert undrain.elect == [("t", 0)]


def test_six_thirds_are_two_leaderships() -> None:
    topics = topic(*(PartitionDescription(index, 2, 0, (2, 3, 1), (1, 2, 3)) for index in range(6)))
    assert len(plan_undrain(topics, 1, ()).order) == 2


def test_a_broker_with_its_share_gets_no_more_leaders() -> None:
    topics = topic(
        PartitionDescription(0, 1, 0, (1, 2), (1, 2)),
        PartitionDescription(1, 2, 0, (2, 1), (1, 2)),
    )
    assert plan_undrain(topics, 1, ()) == Undrain()


def test_a_broker_that_is_not_in_sync_becomes_preferred_but_is_not_elected() -> None:
    topics = topic(
        PartitionDescription(0, 2, 0, (2, 1), (2,)),
        PartitionDescription(1, 2, 0, (2, 1), (1, 2), (1,)),
    )
    undrain = plan_undrain(topics, 1, ())
    assert undrain.order == {("t", 0): (1, 2)}
    assert undrain.elect == []
    assert undrain.stuck == {("t", 0): "broker 1 is not in sync yet"}


def test_a_partition_that_is_reassigned_or_has_other_replicas_now_stays() -> None:
    topics = topic(
        PartitionDescription(0, 2, 0, (2, 4), (2, 4)),
        PartitionDescription(1, 2, 0, (2, 1), (1, 2)),
    )
    undrain = plan_undrain(topics, 1, {("t", 1)}, {("t", 0): (1, 2), ("t", 1): (1, 2), ("t", 9): (1, 2)})
    assert (undrain.order, undrain.elect) == ({}, [])
    assert set(undrain.stuck) == {("t", 0), ("t", 1), ("t", 9)}


def test_an_undrain_restores_the_leaders_of_a_drain() -> None:
    before = topic(*(PartitionDescription(i, 1 + i % 3, 0, _rotated(i), (1, 2, 3)) for i in range(9)))
    drain = plan_drain(before, 1, ())
    after = topic(
        *(
            replace(each, replicas=drain.order.get(("t", each.partition), each.replicas))
            for each in before[0].partitions
        )
    )
    assert not any(each.replicas[0] == 1 for each in after[0].partitions)
    assert plan_undrain(after, 1, (), drain.before).order == drain.before
    assert len(plan_undrain(after, 1, ()).order) == 3


def _rotated(index: int) -> tuple[int, ...]:
    return ((1, 2, 3), (2, 3, 1), (3, 1, 2))[index % 3]


def test_a_partition_that_the_rebalance_has_given_its_preferred_leader_does_not_stay() -> None:
    has_it, cannot, elected = (TopicPartition("t", index) for index in range(3))
    results = [
        ElectionResult(has_it, ElectionNotNeededError("the preferred replica 1 is already leader")),
        ElectionResult(cannot, PreferredLeaderNotAvailableError("broker 1 is not in sync")),
        ElectionResult(elected, leader=1, leader_epoch=4),
    ]
    assert failed_elections(results) == {cannot: "broker 1 is not in sync"}
