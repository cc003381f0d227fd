"""A scheduler whose time only a test advances."""

import heapq
import itertools
import random
from collections.abc import Callable

MOST_IN_AN_INSTANT = 200_000
"""Callbacks that may run before time advances; more are a loop that makes no progress."""


class _Entry:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualTime:
    """Implements `runtime.ports.Scheduler`; callbacks run in the order of their time.

    Callbacks of the same time run in the order of calls, or, with a ``seed``, in an order that the seed decides.
    """

    def __init__(
        self, start_ms: int = 1_000_000, wall_offset_ms: int = 1_600_000_000_000, seed: int | None = None
    ) -> None:
        self._now_ms = float(start_ms)
        self._wall_offset_ms = wall_offset_ms
        self._heap: list[tuple[float, float, int, _Entry]] = []
        self._ties = None if seed is None else random.Random(seed)
        self._sequence = itertools.count()

    def now_ms(self) -> int:
        """Virtual monotonic milliseconds."""
        return int(self._now_ms)

    def wall_ms(self) -> int:
        """Virtual milliseconds since the Unix epoch."""
        return int(self._now_ms) + self._wall_offset_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` after the callbacks that are already due."""
        self.call_later(0, callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> _Entry:
        """Run ``callback`` once after the delay."""
        entry = _Entry(callback)
        tie = self._ties.random() if self._ties else 0.0
        heapq.heappush(self._heap, (self._now_ms + max(0.0, delay_ms), tie, next(self._sequence), entry))
        return entry

    def run_due(self, max_steps: int = 1_000_000) -> None:
        """Run every callback that is due now, including callbacks that these schedule, without advancing the time."""
        self.run_until(lambda: False, max_ms=0, max_steps=max_steps, must_hold=False)

    def run_for(self, duration_ms: float) -> None:
        """Advance the time and run due callbacks."""
        self.run_until(lambda: False, max_ms=duration_ms, must_hold=False)

    def run_until(
        self,
        predicate: Callable[[], bool],
        max_ms: float = 60_000,
        max_steps: int = 1_000_000,
        must_hold: bool = True,
    ) -> None:
        """Run callbacks until ``predicate`` is true; fail when it is not within ``max_ms`` of virtual time."""
        deadline = self._now_ms + max_ms
        in_an_instant = 0
        for _ in range(max_steps):
            if predicate():
                return
            while self._heap and self._heap[0][3].cancelled:
                heapq.heappop(self._heap)
            if not self._heap or self._heap[0][0] > deadline:
                self._now_ms = max(self._now_ms, deadline)
                if must_hold and not predicate():
                    raise AssertionError(f"not within {max_ms} ms of virtual time")
                return
            due, _, _, entry = heapq.heappop(self._heap)
            in_an_instant = in_an_instant + 1 if due <= self._now_ms else 0
            if in_an_instant >= MOST_IN_AN_INSTANT:
                break
            self._now_ms = max(self._now_ms, due)
            entry.callback()
        raise AssertionError(f"still busy at {self._now_ms} ms after many callbacks, the last one {entry.callback}")
