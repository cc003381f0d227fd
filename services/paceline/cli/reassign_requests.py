"""Split any number of moves or elections into requests of limited size; each partition has its own result."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

import click

if TYPE_CHECKING:
    from paceline_client import Admin, ElectionResult, Reassignment, ReassignmentResult

    Result = TypeVar("Result", ReassignmentResult, ElectionResult)

Partition = tuple[str, int]

PARTITIONS_PER_REQUEST = 1_000
"""Far below the limit of a request: the controller needs some milliseconds per partition, within the deadline."""


def alter_moves(
    admin: "Admin", targets: Mapping[Partition, Sequence[int] | None], validate_only: bool = False
) -> "list[ReassignmentResult]":
    """Start the move of each partition, or cancel it if the target is None; errors are in the results.

    Raises:
        PacelineError: a whole request failed; if earlier requests were answered, their partitions are counted on
            stderr.
    """

    def ask(part: Sequence[Partition]) -> "list[ReassignmentResult]":
        wanted = {partition: targets[partition] for partition in part}
        return admin.alter_partition_reassignments(wanted, validate_only=validate_only, raise_errors=False)

    return _in_parts(list(targets), ask)


def elect_leaders(
    admin: "Admin",
    election: Literal["preferred", "unclean"],
    partitions: Sequence[Partition] | None,
    validate_only: bool = False,
) -> "list[ElectionResult]":
    """Elect leaders for partitions, None for all partitions that need an election; errors are in the results.

    Raises:
        PacelineError: a whole request failed; if earlier requests were answered, their partitions are counted on
            stderr.
    """

    def ask(part: Sequence[Partition] | None) -> "list[ElectionResult]":
        return admin.elect_leaders(election, part, validate_only=validate_only, raise_errors=False)

    return ask(None) if partitions is None else _in_parts(partitions, ask)


def list_moves(admin: "Admin", among: Sequence[Partition] | None = None) -> "list[Reassignment]":
    """Return the running moves of these partitions, None for all; the client itself filters for a long list."""
    if among is None or len(among) <= PARTITIONS_PER_REQUEST:
        return admin.list_partition_reassignments(among)
    wanted = set(among)
    return [move for move in admin.list_partition_reassignments() if tuple(move.topic_partition) in wanted]


def _in_parts(partitions: Sequence[Partition], ask: "Callable[[Sequence[Partition]], list[Result]]") -> "list[Result]":
    results: list[Result] = []
    # Send an empty request too: it checks that a controller answers.
    for start in range(0, max(1, len(partitions)), PARTITIONS_PER_REQUEST):
        try:
            results += ask(partitions[start : start + PARTITIONS_PER_REQUEST])
        except Exception:
            if results:
                accepted = sum(result.error is None for result in results)
                click.echo(
                    f"{len(results)} of {len(partitions)} partitions were answered before this, {accepted} of them"
                    " without an error; repeat the same command",
                    err=True,
                )
            raise
    return results
