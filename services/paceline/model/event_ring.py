"""The latest state changes of a process, by position: what watchers read, at their own speed.

Nothing is kept for a watcher: it brings its position along. When the ring has gone past it, it is told how much it
missed and goes on at the oldest change that is left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from paceline.model.state_change import StateChange

EVENT_RING_CAPACITY: Final = 20_000
"""Changes kept; about 10 MiB when full. A failover of a few thousand partitions fits."""


@dataclass(frozen=True, slots=True)
class EventRead:
    """What one look at the ring has found."""

    events: tuple[StateChange, ...]
    next_position: int
    """Where to go on: behind everything looked at, whether it was wanted or not."""
    lost_count: int
    """Changes that were there after the position asked for and are not kept any more."""


class EventRing:
    """A ring of state changes. Positions rise by one with each change, from 0, for the life of the process."""

    def __init__(self, capacity: int = EVENT_RING_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"a ring of {capacity} changes")
        self._capacity = capacity
        self._changes: list[StateChange] = []
        self._end = 0

    @property
    def end(self) -> int:
        """Position of the next change."""
        return self._end

    @property
    def begin(self) -> int:
        """Position of the oldest change kept; `end` when there is none."""
        return self._end - len(self._changes)

    def append(self, change: StateChange) -> None:
        """Keep a change; when the ring is full the oldest one goes."""
        if len(self._changes) < self._capacity:
            self._changes.append(change)
        else:
            self._changes[self._end % self._capacity] = change
        self._end += 1

    def position_since(self, wall_ms: int) -> int:
        """Return the position of the oldest change kept that was made at ``wall_ms`` or later, `end` without one.

        A wall clock that was set back can put an earlier change behind a later one: the first in the ring counts.
        """
        return next((at for at in range(self.begin, self._end) if self._at(at).wall_ms >= wall_ms), self._end)

    def read(
        self,
        position: int,
        max_events: int,
        wanted: Callable[[StateChange], bool] | None = None,
        max_looks: int = 5_000,
    ) -> EventRead:
        """Return changes from a position on.

        Args:
            position: where to begin; one that is not kept any more begins at the oldest, one beyond the end at the end.
            max_events: most changes to return.
            wanted: which changes; None for all.
            max_looks: most changes to look at, so that a narrow filter does not hold up the event loop.
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
