"""Election strategies, with one table each: docs/protocol/controller.md#leader-election."""

import pytest

from paceline.controller.state.leader_election import (
    Election,
    elect_for_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassigned,
)
from paceline.model.leader_and_isr import LeaderAndIsr

EPOCH = 9
ALL = (1, 2, 3, 4, 5, 6)


def state(leader: int, epoch: int, *isr: int) -> LeaderAndIsr:
    return LeaderAndIsr(leader, epoch, isr, 7, 3)


def outcome(election: Election) -> tuple[int, int, list[int], list[int]] | None:
    """Return leader, epoch, ISR and recipients; checks the version of the cached state and the controller epoch."""
    elected = election.leader_and_isr
    if elected is None:
        assert election.recipients == ()
        return None
    assert elected.zk_version == 7
    assert elected.controller_epoch == EPOCH
    return elected.leader, elected.leader_epoch, list(elected.isr), list(election.recipients)


OFFLINE = [
    # row, AR, before, online, unclean allowed, expected
    ("E1", (1, 2, 3), state(1, 5, 1, 2, 3), (2, 3), False, (2, 6, [2, 3], [2, 3])),
    ("E2", (3, 1, 2), state(1, 5, 1, 2), (2, 3), False, (2, 6, [2], [3, 2])),
    ("E3", (1, 2, 3), state(1, 5, 1), (2, 3), False, None),
    ("E4", (1, 2, 3), state(-1, 6, 1), (2, 3), True, (2, 7, [2], [2, 3])),
    ("E5 broker 1 gone", (1,), state(1, 0, 1), (), False, None),
    ("E5 broker 1 back", (1,), state(-1, 1, 1), (1,), False, (1, 2, [1], [1])),
    ("unclean allowed but not needed", (1, 2), state(1, 0, 1, 2), (2,), True, (2, 1, [2], [2])),
    ("unclean allowed, nobody online", (1, 2), state(1, 0, 1, 2), (), True, None),
]


@pytest.mark.origin("S3-6")
@pytest.mark.parametrize(("row", "assigned", "before", "online", "unclean", "expected"), OFFLINE)
def test_the_first_assigned_replica_that_is_online_and_in_the_isr_leads(
    row: str,
    assigned: tuple[int, ...],
    before: LeaderAndIsr,
    online: tuple[int, ...],
    unclean: bool,
    expected: object,
) -> None:
    assert outcome(elect_offline(before, assigned, online, unclean, EPOCH)) == expected, row


def test_an_unclean_election_is_marked_unclean() -> None:
    assert elect_offline(state(-1, 6, 1), (1, 2, 3), (2, 3), True, EPOCH).unclean
    assert not elect_offline(state(1, 6, 1, 2), (1, 2, 3), (2, 3), True, EPOCH).unclean


@pytest.mark.parametrize(
    ("row", "online", "expected"),
    [
        ("E6", ALL, (4, 10, [1, 2, 3, 4, 5, 6], [4, 5, 6])),
        ("E7", (1, 2, 3, 5, 6), (5, 10, [1, 2, 3, 4, 5, 6], [4, 5, 6])),
        ("nobody of the target online", (1, 2, 3), None),
    ],
)
def test_a_reassignment_elects_the_first_target_replica_in_sync(
    row: str, online: tuple[int, ...], expected: object
) -> None:
    assert outcome(elect_reassigned(state(1, 9, *ALL), (4, 5, 6), online, EPOCH)) == expected, row


@pytest.mark.parametrize(
    ("row", "isr", "online", "expected"),
    [
        ("E8", (2, 1), ALL, (1, 4, [2, 1], [1, 2, 3])),
        ("E9", (2, 3), ALL, None),
        ("preferred replica offline", (2, 1), (2, 3), None),
    ],
)
def test_a_preferred_election_elects_the_first_assigned_replica_or_none(
    row: str, isr: tuple[int, ...], online: tuple[int, ...], expected: object
) -> None:
    assert outcome(elect_preferred(state(2, 3, *isr), (1, 2, 3), online, EPOCH)) == expected, row


@pytest.mark.parametrize(
    ("row", "assigned", "isr", "reachable", "shutting_down", "expected"),
    [
        ("E10", (1, 2, 3), (1, 2, 3), (1, 2, 3), {1}, (2, 4, [2, 3], [1, 2, 3])),
        ("E11", (1, 2), (1,), (1, 2), {1}, None),
        ("a dead replica is no recipient", (1, 2, 3), (1, 3), (1, 3), {1}, (3, 4, [3], [1, 3])),
        ("two shut down at once", (1, 2, 3), (1, 2, 3), (1, 2, 3), {1, 2}, (3, 4, [3], [1, 2, 3])),
    ],
)
def test_a_controlled_shutdown_elects_a_replica_that_is_not_shutting_down(
    row: str,
    assigned: tuple[int, ...],
    isr: tuple[int, ...],
    reachable: tuple[int, ...],
    shutting_down: set[int],
    expected: object,
) -> None:
    election = elect_for_controlled_shutdown(state(1, 3, *isr), assigned, reachable, shutting_down, EPOCH)
    assert outcome(election) == expected, row
