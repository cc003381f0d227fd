"""A `Scheduler` on the real clock that runs callbacks only while the test is inside `run_until` or `run_for`."""

import heapq
import itertools
import queue
import time
from collections.abc import Callable

_POLL_S = 0.02
"""Longest time between two checks of a condition, which may depend on more than callbacks."""


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class PumpedScheduler:
    """Runs all callbacks one at a time on the thread that calls `run_until`; other threads call `post`."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._count = itertools.count()

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + max(delay_ms, 0) / 1000, next(self._count), timer))
        return timer

    def run_until(self, condition: Callable[[], bool], max_ms: float = 60_000) -> None:
        """Run callbacks until the condition holds; fail if it does not hold within ``max_ms``."""
        end_s = time.monotonic() + max_ms / 1000
        while not condition():
            now_s = time.monotonic()
            assert now_s < end_s, f"not reached within {max_ms} ms"
            if self._run_due_timer():
                continue
            due_s = min([now_s + _POLL_S, end_s] + [timer[0] for timer in self._timers[:1]])
            try:
                callback = self._posted.get(timeout=max(due_s - now_s, 0.001))
            except queue.Empty:
                continue
            callback()

    def run_for(self, duration_ms: float) -> None:
        """Run callbacks for the whole duration, to show that an event does *not* happen."""
        end_s = time.monotonic() + duration_ms / 1000
        self.run_until(lambda: time.monotonic() >= end_s, max_ms=duration_ms + 60_000)

    def _run_due_timer(self) -> bool:
        if not self._timers or self._timers[0][0] > time.monotonic():
            return False
        callback = heapq.heappop(self._timers)[2].callback
        if callback is not None:
            callback()
        return True
