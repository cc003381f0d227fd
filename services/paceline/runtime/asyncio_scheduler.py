"""The scheduler of a real process: one asyncio event loop."""

import asyncio
import time
from collections.abc import Callable

from paceline.model.scheduler import Cancellable

_ROUNDING_S = 0.000_5
"""`now_ms` rounds down, so a timer that is exact in seconds could look a millisecond early."""


class AsyncioScheduler:
    """Runs a node's callbacks on an event loop; all methods but `post` are for the loop's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        """Return monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` after what is queued already."""
        self._loop.call_soon(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable:
        """Run ``callback`` once, not before ``delay_ms`` have passed."""
        return self._loop.call_later(max(delay_ms, 0) / 1000 + _ROUNDING_S, callback)

    def post(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the loop; for other threads. After the loop has closed it is dropped."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
