"""Metrics of a group coordinator, exported to Prometheus by the service layer (docs/metrics.md)."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from paceline.broker.groups.group import Group, GroupState

_LIMITS: Final[tuple[tuple[str, ...], ...]] = (
    ("group.max.size",),
    ("group.max.offsets",),
    ("group.max.offsets.bytes",),
    ("group.max.metadata.bytes",),
)


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
    largest: dict[tuple[str, ...], float]
    """Use of each limit of a group, by the group that uses most of it."""


def numbers_of(groups: Iterable[Group]) -> GroupNumbers:
    """Return the gauges of these groups."""
    states: Counter[GroupState] = Counter()
    members = offsets = 0
    largest = dict.fromkeys(_LIMITS, 0.0)
    for group in groups:
        states[group.state] += 1
        members += len(group.members)
        offsets += len(group.offsets)
        used = (len(group.members), len(group.offsets), group.offsets.size_bytes, group.metadata_bytes)
        for limit, value in zip(_LIMITS, used, strict=True):
            largest[limit] = max(largest[limit], value)
    return GroupNumbers({(state.value,): states[state] for state in GroupState}, members, offsets, largest)
