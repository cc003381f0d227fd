"""Read the notes of all members of a soaked group, and name every broken rule."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

TOPIC: Final = "soaked"
GROUP: Final = "soakers"
HEARTBEAT_MS: Final = 3_000
SESSION_MS: Final = 10_000
COMMIT_S: Final = 1.0


@dataclass(slots=True)
class Account:
    """The events of a run, by partition where that matters."""

    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """Member by generation and partition."""
    processed: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Ranges of offsets, ends exclusive."""
    committed: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Times and offsets of acknowledged commits."""
    begun: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Times at which a member was assigned a partition, and the first offset that it then processed."""
    joins: list[float] = field(default_factory=list)
    assignments: dict[int, list[float]] = field(default_factory=dict)
    """Times at which members received their partitions, by generation."""
    problems: list[str] = field(default_factory=list)

    @property
    def generations(self) -> int:
        """Number of generations that assigned partitions."""
        return len(self.assignments)


def read(lines: Iterable[str]) -> Account:
    """Return the account of all members; ignore a last line that a kill left incomplete."""
    account = Account()
    waiting: dict[tuple[str, int], float] = {}
    for line in lines:
        if not line.endswith("\n"):
            continue
        kind, member, at, *fields = line.split()
        when = float(at)
        if kind == "J":
            account.joins.append(when)
        elif kind == "A":
            _assigned(account, waiting, member, when, fields)
        elif kind == "P":
            partition, first, following = map(int, fields)
            account.processed.setdefault(partition, []).append((first, following))
            begun = waiting.pop((member, partition), None)
            if begun is not None:
                account.begun.setdefault(partition, []).append((begun, first))
        elif kind == "C":
            partition, offset = map(int, fields)
            account.committed.setdefault(partition, []).append((when, offset))
    return account


def _assigned(
    account: Account, waiting: dict[tuple[str, int], float], member: str, when: float, fields: list[str]
) -> None:
    generation, partitions = int(fields[0]), fields[1]
    account.assignments.setdefault(generation, []).append(when)
    for text in partitions.split(",") if partitions != "-" else ():
        partition = int(text)
        waiting[member, partition] = when
        owner = account.owners.setdefault((generation, partition), member)
        if owner != member:
            account.problems.append(f"{owner} and {member} own partition {partition} in generation {generation}")


def check(account: Account, ends: Mapping[int, int], committed: Mapping[int, int]) -> list[str]:
    """Return every broken rule.

    Args:
        account: what members noted.
        ends: exclusive end of each partition.
        committed: committed offset of each partition at the end.
    """
    problems = list(account.problems)
    for partition, end in sorted(ends.items()):
        missing = _first_gap(account.processed.get(partition, []), end)
        if missing is not None:
            problems.append(f"partition {partition}: offset {missing} of {end} was never processed")
        acknowledged = account.committed.get(partition, [])
        highest = max((offset for _, offset in acknowledged), default=0)
        if committed.get(partition, 0) < highest:
            problems.append(
                f"partition {partition}: {committed.get(partition)} is committed, {highest} was acknowledged"
            )
        for when, first in account.begun.get(partition, []):
            floor = max((offset for at, offset in acknowledged if at < when), default=0)
            if first < floor:
                problems.append(f"partition {partition}: a member began at {first}, {floor} had been acknowledged")
    return problems


def _first_gap(ranges: Iterable[tuple[int, int]], end: int) -> int | None:
    reached = 0
    for first, following in sorted(ranges):
        if first > reached:
            return reached
        reached = max(reached, following)
    return None if reached >= end else reached


def rebalance_seconds(account: Account, since: float, members: int) -> float | None:
    """Return the time from ``since`` until all members had the same new generation, None if they never had."""
    for _, times in sorted(account.assignments.items()):
        if len(times) >= members and min(times) >= since:
            return max(times) - since
    return None
