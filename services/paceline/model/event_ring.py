"""Ring buffer of a process's latest state changes; watchers read it by position, at their own speed.

The ring stores no state per watcher: a watcher passes its position. When older changes have been overwritten, the
result counts the lost changes and continues with the oldest change in the ring.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from paceline.model.state_change import StateChange

EVENT_RING_CAPACITY: Final = 20_000
"""Maximum number of changes, about 10 MiB; enough for a failover of a few thousand partitions."""


@dataclass(frozen=True, slots=True)
class EventRead:
    """Result of a read."""

    events: tuple[StateChange, ...]
    next_position: int
    """Position to continue from: after all changes examined, whether or not they matched."""
    lost_count: int
    """Number of changes after the requested position that have been overwritten."""


class EventRing:
    """A ring of state changes. Positions rise by one with each change, from 0, for the life of the process."""

    def __init__(self, capacity: int = EVENT_RING_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._changes: list[StateChange] = []
        self._end = 0

    @property
    def end(self) -> int:
        """Position of the next change."""
        return self._end

    @property
    def begin(self) -> int:
        """Position of the oldest change in the ring; `end` when it is empty."""
        return self._end - len(self._changes)

    def append(self, change: StateChange) -> None:
        """Add a change; when the ring is full, overwrite the oldest."""
        if len(self._changes) < self._capacity:
            self._changes.append(change)
        else:
            self._changes[self._end % self._capacity] = change
        self._end += 1

    def position_since(self, wall_ms: int) -> int:
        """Return the position of the oldest change in the ring made at ``wall_ms`` or later, `end` without one.

        When the wall clock was set back, an earlier change may follow a later change: the first match in the ring
        counts.
        """
        return next((at for at in range(self.begin, self._end) if self._at(at).wall_ms >= wall_ms), self._end)

    def read(
        self,
        position: int,
        max_events: int,
        wanted: Callable[[StateChange], bool] | None = None,
        max_looks: int = 5_000,
    ) -> EventRead:
        """Return changes from a position onwards.

        Args:
            position: start; an overwritten position means the oldest change, a position beyond the end means the end.
            max_events: maximum number of changes to return.
            wanted: filter; None for all changes.
            max_looks: maximum number of changes to examine, so that a narrow filter does not block the event loop.
        """
        begin = min(max(position, self.begin), self._end)
        found: list[StateChange] = []
        at = begin
        last = min(self._end, begin + max_looks)
        while at < last and len(found) < max_events:
            change = self._at(at)
            if wanted is None or wanted(change):
                found.append(change)
            at += 1
        return EventRead(tuple(found), at, max(0, begin - position))

    def _at(self, position: int) -> StateChange:
        return self._changes[position % self._capacity]
