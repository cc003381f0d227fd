"""The scheduler of a real process, on an asyncio event loop."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from paceline.model.scheduler import Cancellable

_ROUNDING_S = 0.000_5
"""Added to every delay: `now_ms` rounds down, so an exact timer could seem to fire a millisecond early."""

COARSE_FROM_MS: Final = 400
"""Delays of at least this length are timeouts, most of which are cancelled; they share timers of the event loop."""
TICK_MS: Final = 25
"""Timeouts that end within the same tick share a timer, which fires at the end of the tick."""


class _Timeout:
    """A callback among those that share a timer."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def run(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class AsyncioScheduler:
    """Runs a node's callbacks on an event loop; call all methods but `post` on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ticks: dict[int, list[_Timeout]] = {}
        """Timeouts by the tick at whose end they are due."""

    def now_ms(self) -> int:
        """Return monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` after the callbacks that are already queued."""
        self._loop.call_soon(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable:
        """Run ``callback`` once, not before ``delay_ms`` have passed; a long delay may last a tick longer.

        Long delays share timers: a produce request has a timeout of 30 s and is answered in milliseconds. A separate
        timer of the event loop would cost several dictionary look-ups, and stay in the loop's heap when cancelled.
        """
        if delay_ms >= COARSE_FROM_MS:
            return self._timeout(delay_ms, callback)
        return self._loop.call_later(max(delay_ms, 0) / 1000 + _ROUNDING_S, callback)

    def _timeout(self, delay_ms: float, callback: Callable[[], None]) -> _Timeout:
        tick = int((self._loop.time() * 1000 + delay_ms) // TICK_MS) + 1
        entries = self._ticks.get(tick)
        if entries is None:
            entries = self._ticks[tick] = []
            self._loop.call_at(tick * TICK_MS / 1000 + _ROUNDING_S, self._end_tick, tick)
        timeout = _Timeout(callback)
        entries.append(timeout)
        return timeout

    def _end_tick(self, tick: int) -> None:
        for timeout in self._ticks.pop(tick):
            self._loop.call_soon(timeout.run)

    def post(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the loop; callable from any thread. Dropped when the loop has closed."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
