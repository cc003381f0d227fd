"""The throttle of a reassignment, and how far its moves are."""

from paceline.cli.reassign_progress import Progress, Speed, sizes_of
from paceline.cli.reassign_throttle import Throttle, plan_throttle
from paceline.model.identifiers import TopicPartition
from paceline_client import AwaitedReplica, BrokerLogDirs, LogDirDescription, Reassignment, ReplicaOnDisk

A0 = TopicPartition("a", 0)


def move(leader: int | None = 1, waits_for: tuple[int, ...] = (3,)) -> Reassignment:
    awaited = tuple(AwaitedReplica(broker, "NOT_CAUGHT_UP", "") for broker in waits_for)
    return Reassignment(A0, (2, 3, 1), (3,), (1,), (1, 2), leader, awaited)


def test_holders_are_throttled_as_leaders_and_receivers_as_followers() -> None:
    present = {("a", 0): [1, 2], ("a", 1): [2, 3], ("b", 0): [1]}
    targets = {("a", 0): (2, 3), ("a", 1): (3, 1), ("b", 0): (4,)}
    assert plan_throttle(present, targets) == Throttle(
        {"a": ("0:1,0:2,1:2,1:3", "0:3,1:1"), "b": ("0:1", "0:4")}, (1, 2, 3, 4)
    )


def test_a_new_order_of_the_same_replicas_copies_nothing_and_is_not_throttled() -> None:
    assert plan_throttle({("a", 0): [1, 2]}, {("a", 0): (2, 1)}) == Throttle({}, ())


def test_what_is_left_is_what_the_leader_has_and_the_new_replica_has_not() -> None:
    progress = Progress()
    assert progress.look([move()], {("a", 0, 1): 1_000, ("a", 0, 3): 400}, 0.0) == {A0: Speed(600, None, None)}
    assert progress.look([move()], {("a", 0, 1): 1_100, ("a", 0, 3): 500}, 2.0) == {A0: Speed(600, 50, 12)}


def test_nobody_knows_when_a_move_ends_that_does_not_get_on() -> None:
    progress = Progress()
    progress.look([move()], {("a", 0, 1): 1_000, ("a", 0, 3): 400}, 0.0)
    assert progress.look([move()], {("a", 0, 1): 1_000, ("a", 0, 3): 400}, 1.0) == {A0: Speed(600, 0, None)}


def test_a_move_without_a_leader_or_whose_leader_does_not_answer_has_no_bytes_left_to_tell() -> None:
    assert Progress().look([move(leader=None)], {}, 0.0) == {A0: Speed(None, None, None)}
    assert Progress().look([move()], {("a", 0, 3): 1}, 0.0) == {A0: Speed(None, None, None)}


def test_a_move_that_waits_for_nobody_is_about_to_end() -> None:
    assert Progress().look([move(waits_for=())], {}, 0.0) == {A0: Speed(0, None, 0)}


def test_sizes_come_from_every_directory_and_copies_being_made_do_not_count() -> None:
    directories = (
        LogDirDescription("/x", None, (ReplicaOnDisk(A0, 5, 0),)),
        LogDirDescription("/y", None, (ReplicaOnDisk(A0, 3, 0, is_future=True),)),
    )
    assert sizes_of([BrokerLogDirs(1, None, directories)]) == {("a", 0, 1): 5}
