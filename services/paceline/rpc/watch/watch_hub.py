"""Wakes the watch streams and long polls of this process; one per process, used on its event loop only.

A watcher costs a coroutine and a position. News that comes in bursts wakes it once per burst.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from paceline.model.errors import ShuttingDownError, ThrottledError
from paceline.model.event_ring import EventRing
from paceline.model.state_change import StateChange

MAX_WATCHERS: Final = 1_000
"""Streams and long polls at a time; each further one is refused."""
_BURST_S: Final = 0.02


class WatchHub:
    """The events of a process, and its watchers."""

    def __init__(self, instance: str, ring: EventRing | None = None, max_watchers: int = MAX_WATCHERS) -> None:
        """``instance`` names this run of the process; no other run, of this or another process, has the same."""
        self.instance = instance
        self.ring = ring or EventRing()
        self.watcher_count = 0
        self._max_watchers = max_watchers
        self._news: asyncio.Future[None] | None = None
        self._due = False
        self._closed = False

    def put(self, change: StateChange) -> None:
        """Keep an event and wake the watchers."""
        self.ring.append(change)
        self.wake()

    def wake(self) -> None:
        """Wake the watchers, a moment from now."""
        if self._news is None or self._due:
            return
        self._due = True
        asyncio.get_running_loop().call_later(_BURST_S, self._wake_now)

    @property
    def is_closed(self) -> bool:
        """Whether the process is stopping."""
        return self._closed

    def close(self) -> None:
        """End every watch, so that the servers need not wait for them."""
        self._closed = True
        self._wake_now()

    @contextlib.contextmanager
    def watcher(self) -> Iterator[None]:
        """Count a watcher while it watches.

        Raises:
            ThrottledError: there are too many.
        """
        if self.watcher_count >= self._max_watchers:
            raise ThrottledError(f"{self.watcher_count} watchers are here already; watch another process")
        self.watcher_count += 1
        try:
            yield
        finally:
            self.watcher_count -= 1

    def check_open(self) -> None:
        """Refuse further watching when the process stops.

        Raises:
            ShuttingDownError: it does.
        """
        if self._closed:
            raise ShuttingDownError("the process is stopping; watch another one")

    async def news(self, timeout_s: float) -> bool:
        """Wait for news; False when there was none within ``timeout_s``."""
        if self._closed:
            return True
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._news], timeout=timeout_s)
        return bool(done)

    def _wake_now(self) -> None:
        self._due = False
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)
