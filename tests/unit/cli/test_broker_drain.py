"""Leadership off a broker: who takes over, and what has to stay."""

from paceline.cli.broker_drain import plan_drain
from paceline_client import PartitionDescription, TopicDescription


def topic(*partitions: PartitionDescription) -> list[TopicDescription]:
    return [TopicDescription("t", "id", partitions)]


def test_the_broker_becomes_the_last_choice_and_others_are_elected() -> None:
    drain = plan_drain(
        topic(
            PartitionDescription(0, 1, 0, (1, 2, 3), (1, 2, 3)),
            PartitionDescription(1, 1, 0, (1, 2, 3), (1, 2, 3)),
            PartitionDescription(2, 2, 0, (2, 1, 3), (1, 2, 3)),
        ),
        1,
        (),
    )
    assert drain.order == {("t", 0): (3, 2, 1), ("t", 1): (2, 3, 1)}, "the one preferred least often comes first"
    assert drain.before == {("t", 0): (1, 2, 3), ("t", 1): (1, 2, 3)}
    assert drain.elect == [("t", 0), ("t", 1)]
    assert (drain.stuck, drain.single) == ({}, [])


def test_a_leader_that_is_not_preferred_only_needs_an_election() -> None:
    drain = plan_drain(topic(PartitionDescription(0, 1, 0, (2, 1), (1, 2))), 1, ())
    assert (drain.order, drain.elect) == ({}, [("t", 0)])


def test_a_preferred_replica_that_cannot_lead_is_passed_over() -> None:
    drain = plan_drain(topic(PartitionDescription(0, 1, 0, (2, 1, 3), (1, 3), (2,))), 1, ())
    assert (drain.order, drain.elect) == ({("t", 0): (3, 2, 1)}, [("t", 0)])


def test_what_cannot_be_led_by_anybody_else_stays() -> None:
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
        ("t", 3): "it is being moved",
    }
    assert drain.single == [("t", 2)]
    assert (drain.order, drain.elect) == ({}, [])
