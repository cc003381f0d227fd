"""Where `paceline broker evacuate` moves replicas: only those of the broker, and away from brokers that have died."""

import pytest

from paceline.cli.broker_removal import place_elsewhere
from paceline.model.admin import PartitionDescription
from paceline_client.metadata import TopicDescription


def topic(name: str, *replicas: tuple[int, ...]) -> TopicDescription:
    partitions = tuple(PartitionDescription(n, row[0], 1, row, row, (), (), ()) for n, row in enumerate(replicas))
    return TopicDescription(name, "id", partitions)


def racks(*brokers: int) -> dict[int, str]:
    return dict.fromkeys(brokers, "")


def moving(name: str, target: tuple[int, ...], old: tuple[int, ...]) -> TopicDescription:
    """A topic with one partition, as a controller describes it during a move."""
    replicas = (*target, *(one for one in old if one not in target))
    adding = tuple(one for one in target if one not in old)
    removing = tuple(one for one in old if one not in target)
    return TopicDescription(name, "id", (PartitionDescription(0, old[0], 1, replicas, old, (), adding, removing),))


def test_only_partitions_of_the_broker_move_and_single_replicas_too() -> None:
    topics = [topic("a", (4,), (1,), (4, 1, 2)), topic("b", (1, 2, 3))]
    found = place_elsewhere(topics, 4, racks(1, 2, 3, 4))
    assert sorted(found) == [("a", 0), ("a", 2)]
    assert all(4 not in target for target in found.values())
    assert set(found["a", 2]) == {1, 2, 3}
    assert len(found["a", 0]) == 1


def test_a_partition_that_leaves_already_is_not_moved_again() -> None:
    topics = [moving("a", (1, 3), (1, 4)), topic("b", (2, 4))]
    assert sorted(place_elsewhere(topics, 4, racks(1, 2, 3, 4))) == [("b", 0)]


def test_a_move_to_a_broker_that_has_died_gets_another_target() -> None:
    topics = [moving("a", (1, 5), (1, 4))]
    assert place_elsewhere(topics, 4, racks(1, 2, 3, 4, 5)) == {}
    assert place_elsewhere(topics, 4, racks(1, 2, 4)) == {("a", 0): (1, 2)}


def test_a_partition_that_another_move_enlarges_needs_no_more_brokers() -> None:
    topics = [moving("a", (1, 3), (1, 4)), topic("b", (1, 2))]
    assert place_elsewhere(topics, 4, racks(1, 3, 4)) == {}


def test_a_plan_by_load_gives_the_targets_that_are_alive_and_avoid_the_broker() -> None:
    topics = [topic("a", (4, 1), (4, 1), (4, 1), (4, 1), (1, 2))]
    plan = {("a", 0): (3, 1), ("a", 1): (3, 1), ("a", 2): (5, 1), ("a", 3): (3, 4), ("a", 4): (2, 3)}
    found = place_elsewhere(topics, 4, racks(1, 2, 3, 4), plan=plan)
    assert found["a", 0] == found["a", 1] == (3, 1)
    assert sorted(found) == [("a", n) for n in range(4)]
    assert all(set(found["a", n]) <= {1, 2, 3} for n in (2, 3)), "a dead target, and the broker itself, are not used"


@pytest.mark.parametrize("others", [(1,), ()])
def test_too_few_brokers_are_named_with_the_command_that_helps(others: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"a/0 has 2 replicas, but only \d live brokers are left without broker 4"
    ) as e:
        place_elsewhere([topic("a", (1, 4))], 4, racks(4, *others))
    assert "--replication-factor 1" in str(e.value)
