"""Wake the watch streams of this process; one hub per process, used on its event loop only.

A watcher costs a coroutine and a position. A burst of changes wakes it once.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from paceline.model.errors import ShuttingDownError, ThrottledError
from paceline.model.event_ring import EventRing
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChange

MAX_WATCHERS: Final = 1_000
"""Maximum number of concurrent watch streams; further watches are throttled."""
_BURST_S: Final = 0.02


class WatchHub:
    """The events of a process and the watchers that wait for them."""

    def __init__(self, instance: str, ring: EventRing | None = None, max_watchers: int = MAX_WATCHERS) -> None:
        """``instance`` identifies this run of the process; it is unique among all runs of all processes."""
        self.instance = instance
        self.ring = ring or EventRing()
        self.watcher_count = 0
        self.watched: Counter[TopicPartition] = Counter()
        """Partitions that watchers name, with the number of these watchers; empty without such a watcher."""
        self._max_watchers = max_watchers
        self._next_wake: asyncio.Future[None] | None = None
        self._due = False
        self._closed = False

    def put(self, change: StateChange) -> None:
        """Append an event to the ring and wake the watchers after `_BURST_S`: one wake-up covers a burst of events."""
        self.ring.append(change)
        if self._next_wake is not None and not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(_BURST_S, self._wake_now)

    @property
    def is_closed(self) -> bool:
        """Whether the process is stopping."""
        return self._closed

    def close(self) -> None:
        """End every watch, so that the stop of the servers does not wait for watchers."""
        self._closed = True
        self._wake_now()

    @contextlib.contextmanager
    def watcher(self, partitions: Collection[TopicPartition] = ()) -> Iterator[None]:
        """Count a watcher, who names ``partitions``, for the duration of the context.

        Raises:
            ThrottledError: the process has the maximum number of watchers.
        """
        if self.watcher_count >= self._max_watchers:
            raise ThrottledError.at(
                "MAX_WATCHERS", f"this process has the maximum of {self._max_watchers} watchers; watch another process"
            )
        self.watcher_count += 1
        self.watched.update(partitions)
        try:
            yield
        finally:
            self.watcher_count -= 1
            self.watched -= Counter(partitions)  # drops partitions with a count of 0

    def check_open(self) -> None:
        """Refuse to start or continue a watch when the process is stopping.

        Raises:
            ShuttingDownError: the process is stopping.
        """
        if self._closed:
            raise ShuttingDownError("the process is stopping; watch another one")

    async def wait_for_wake(self, timeout_s: float) -> bool:
        """Wait until the watchers are woken; return False after ``timeout_s`` without a wake-up."""
        if self._closed:
            return True
        if self._next_wake is None:
            self._next_wake = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._next_wake], timeout=timeout_s)
        return bool(done)

    def _wake_now(self) -> None:
        self._due = False
        next_wake, self._next_wake = self._next_wake, None
        if next_wake is not None and not next_wake.done():
            next_wake.set_result(None)
