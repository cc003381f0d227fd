"""Send the small appends of many producers to a follower in one fetch response.

A fetch round trip costs a leader and its follower several times as much as a small append. Producers that send single
records and wait for acks=all send their next request soon after the response, and all of them are answered at the same
time: when the high watermark advances. The first of these requests would end the waiting fetch, and each further
request would need another fetch. Therefore the fetch waits until as many appends have arrived as producers were
answered, but at most 1 ms and half the replication time of the last of them. This wait is part of the replication time,
so that it at most doubles the latency when producers do not return. A single producer is never delayed, because its own
append is the append that the fetch waits for.
"""

from typing import Final

from paceline.model.scheduler import Cancellable, Scheduler
from paceline.replication.fetch_session import FetchSession

MAX_HOLD_MS: Final = 20
"""Longest time that a follower's fetch waits for producers that were answered and have not sent their next request."""
LARGE_APPEND_BYTES: Final = 64 * 1024
"""Requests of this size get their own fetch response, and no fetch waits for them."""


class AppendCoalescer:
    """Counts the producers for whose next append a follower's fetch waits."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._expected = 0
        self._until_ms = 0
        self._held: dict[FetchSession, None] = {}
        self._timer: Cancellable | None = None

    def producer_answered(self, appended_ms: int) -> None:
        """Expect the next append of a producer whose small request, appended at ``appended_ms``, was answered."""
        now_ms = self._scheduler.now_ms()
        self._expected += 1
        self._until_ms = now_ms + min((now_ms - appended_ms) // 2 + 1, MAX_HOLD_MS)

    def append_arrived(self, size_bytes: int) -> None:
        """Count an append; the last expected append, or a large append, releases the fetches when it is in the log."""
        if not self._expected:
            return
        self._expected = 0 if size_bytes >= LARGE_APPEND_BYTES else self._expected - 1
        if not self._expected and self._held:
            self._scheduler.call_soon(self._release)

    def hold(self, session: FetchSession) -> bool:
        """Return whether a fetch that could be answered must wait for expected appends."""
        if not self._expected:
            return False
        left_ms = self._until_ms - self._scheduler.now_ms()
        if left_ms <= 0:
            self._expected = 0
            return False
        self._held[session] = None
        if self._timer is None:
            self._timer = self._scheduler.call_later(left_ms, self._release)
        return True

    def _release(self) -> None:
        self._expected = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, {}
        for session in held:
            if session.waiting is not None:
                session.waiting()
