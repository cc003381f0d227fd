"""ReplicaAssignment: the table of docs/protocol/controller.md#reassignment-algebra."""

import pytest

from paceline.model.assignment import ReplicaAssignment

Replicas = tuple[int, ...]


@pytest.mark.parametrize(
    ("origin", "target", "replicas", "adding", "removing"),
    [
        ((1, 2, 3), (3, 4, 2), (3, 4, 2, 1), (4,), (1,)),
        ((1, 2, 3), (4, 5, 6), (4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3)),
        ((1, 2), (2, 1), (2, 1), (), ()),
        ((1,), (1, 2), (1, 2), (2,), ()),
        ((1, 2), (2,), (2, 1), (), (1,)),
    ],
)
def test_reassignment_lists_the_target_and_then_the_rest_of_the_origin(
    origin: Replicas, target: Replicas, replicas: Replicas, adding: Replicas, removing: Replicas
) -> None:
    assert ReplicaAssignment(origin).reassign_to(target) == ReplicaAssignment(replicas, adding, removing)


def test_new_target_replaces_the_target_of_a_running_reassignment() -> None:
    running = ReplicaAssignment((1, 2, 3)).reassign_to((3, 4, 2))
    assert running.reassign_to((5, 2)) == ReplicaAssignment((5, 2, 3, 1), adding=(5,), removing=(3, 1))


def test_cancellation_keeps_the_replicas_of_the_origin_in_the_order_of_the_target() -> None:
    running = ReplicaAssignment((1, 2, 3)).reassign_to((3, 4, 2))
    cancelled = running.reassign_to(running.origin)
    assert cancelled.target == (3, 2, 1)
    assert (cancelled.adding, cancelled.removing) == ((), ())
