"""Metrics of a group coordinator, exported to Prometheus by the service layer (docs/metrics.md)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.broker.groups.group import Group, GroupState


@dataclass(slots=True)
class GroupMetrics:
    offset_commits: int = 0
    """Number of committed offsets; a commit counts once per partition."""
    offset_expirations: int = 0
    rebalances: int = 0
    """Number of generations started."""
    loads: int = 0
    load_ms: float = 0


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """Gauges of the groups that a broker coordinates."""

    by_state: dict[tuple[str, ...], float]
    """Number of groups in each state."""
    members: int
    offsets: int


def numbers_of(groups: Iterable[Group]) -> GroupNumbers:
    """Return the gauges of these groups."""
    states: Counter[GroupState] = Counter()
    members = offsets = 0
    for group in groups:
        states[group.state] += 1
        members += len(group.members)
        offsets += len(group.offsets)
    return GroupNumbers({(state.value,): states[state] for state in GroupState}, members, offsets)
