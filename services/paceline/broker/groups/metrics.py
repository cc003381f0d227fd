"""Numbers of a group coordinator, which the service layer exports to Prometheus (docs/metrics.md)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.broker.groups.group import Group, GroupState


@dataclass(slots=True)
class GroupMetrics:
    """Counters of the coordinator; they only rise."""

    offset_commits: int = 0
    """Offsets kept, one for each partition of a commit."""
    offset_expirations: int = 0
    rebalances: int = 0
    """Generations begun."""
    loads: int = 0
    load_ms: float = 0


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """Gauges of the groups that a broker coordinates at one moment."""

    by_state: dict[tuple[str, ...], float]
    """How many groups are in each state."""
    members: int
    offsets: int


def numbers_of(groups: Iterable[Group]) -> GroupNumbers:
    """Return the gauges of these groups; looks at each once."""
    states: Counter[GroupState] = Counter()
    members = offsets = 0
    for group in groups:
        states[group.state] += 1
        members += len(group.members)
        offsets += len(group.offsets)
    return GroupNumbers({(state.value,): states[state] for state in GroupState}, members, offsets)
