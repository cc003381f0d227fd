"""Elect a leader: pure strategies over assigned replicas, ISR and online brokers.

Scans follow the order of the assigned replicas, never the order of the ISR, which is a set.

Source: docs/protocol/controller.md#leader-election; Kafka 2.8 Election.scala and
PartitionLeaderElectionAlgorithms.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from paceline.model.leader_and_isr import LeaderAndIsr


class ElectionStrategy(Enum):
    """Reason of an election."""

    OFFLINE = auto()
    """The leader is dead; unclean only where topic or cluster configuration allows it."""
    OFFLINE_UNCLEAN = auto()
    """As `OFFLINE`, with unclean allowed by an explicit request."""
    REASSIGN = auto()
    PREFERRED = auto()
    CONTROLLED_SHUTDOWN = auto()


@dataclass(frozen=True, slots=True)
class Election:
    """Result of a strategy."""

    leader_and_isr: LeaderAndIsr | None
    """The next state, with the version of the state it is based on; None without a candidate."""
    recipients: tuple[int, ...] = ()
    """Brokers that get the LeaderAndIsr request."""
    unclean: bool = False
    """Whether the leader was not in the ISR."""


NOT_ELECTED = Election(None)


def elect_offline(
    current: LeaderAndIsr,
    assigned: Sequence[int],
    online: Container[int],
    unclean_allowed: bool,
    controller_epoch: int,
    unclean_members: Container[int] = (),
    complete: Container[int] = (),
) -> Election:
    """Elect the first online ISR member; else the first complete online replica; else, if allowed, an unclean leader.

    Args:
        current: the current state.
        assigned: the partition's replicas.
        online: replicas that may lead.
        unclean_allowed: whether to lose records rather than wait.
        controller_epoch: epoch of the deciding controller.
        unclean_members: ISR members that returned from an unclean restart; they may lead only after an unclean
            election, which prefers them to replicas outside the ISR.
        complete: replicas outside the ISR that have all committed records.
    """
    recipients = tuple(replica for replica in assigned if replica in online)
    for replica in recipients:
        if replica in current.isr and replica not in unclean_members:
            isr = tuple(member for member in current.isr if member in online and member not in unclean_members)
            return Election(current.with_leader(replica, isr, controller_epoch), recipients)
    for replica in recipients:
        if replica in complete:
            return Election(current.with_leader(replica, (replica,), controller_epoch), recipients)
    if unclean_allowed and recipients:
        leader = next((replica for replica in recipients if replica in current.isr), recipients[0])
        return Election(current.with_leader(leader, (leader,), controller_epoch), recipients, unclean=True)
    return NOT_ELECTED


def elect_reassigned(
    current: LeaderAndIsr, target: Sequence[int], online: Container[int], controller_epoch: int
) -> Election:
    """Elect the first replica of the reassignment's target that is online and in the ISR."""
    for replica in target:
        if replica in online and replica in current.isr:
            return Election(current.with_leader(replica, current.isr, controller_epoch), tuple(target))
    return NOT_ELECTED


def elect_preferred(
    current: LeaderAndIsr, assigned: Sequence[int], online: Container[int], controller_epoch: int
) -> Election:
    """Elect the first assigned replica, if it is online and in the ISR."""
    preferred = assigned[0]
    if preferred in online and preferred in current.isr:
        return Election(current.with_leader(preferred, current.isr, controller_epoch), tuple(assigned))
    return NOT_ELECTED


def elect_for_controlled_shutdown(
    current: LeaderAndIsr,
    assigned: Sequence[int],
    online_or_shutting_down: Container[int],
    shutting_down: Container[int],
    controller_epoch: int,
) -> Election:
    """Elect a leader that is not shutting down, and remove replicas that are shutting down from the ISR."""
    recipients = tuple(replica for replica in assigned if replica in online_or_shutting_down)
    for replica in recipients:
        if replica in current.isr and replica not in shutting_down:
            isr = tuple(member for member in current.isr if member not in shutting_down)
            return Election(current.with_leader(replica, isr, controller_epoch), recipients)
    return NOT_ELECTED
