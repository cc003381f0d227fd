"""Send the small appends of many producers to a follower in one fetch answer.

A fetch round costs a leader and its follower several times as much as a small append. Producers that call with one
record and wait for acks=all send their next request soon after their answer, and all of them are answered at the same
moment: when the high watermark has moved. The first of these requests would end the waiting fetch, and each further one
would need a fetch of its own. So the fetch waits until as many appends have come as producers were answered, but not
longer than 1 ms and half the time that replication took for the last of them. Waiting is part of that time, so it can
at most double the latency when producers do not come back. A single producer is never delayed: it is the one expected.
"""

from typing import Final

from paceline.model.scheduler import Cancellable, Scheduler
from paceline.replication.fetch_session import FetchSession

MAX_HOLD_MS: Final = 20
"""Longest wait of a follower's fetch for producers that were answered and have not sent their next request."""
LARGE_APPEND_BYTES: Final = 64 * 1024
"""Requests of this size are worth a fetch answer of their own, and no fetch waits for them."""


class AppendCoalescer:
    """Counts the producers whose next append a follower's fetch waits for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._expected = 0
        self._until_ms = 0
        self._held: dict[FetchSession, None] = {}
        self._timer: Cancellable | None = None

    def producer_answered(self, appended_ms: int) -> None:
        """Expect the next append of a producer that has its answer to a small request, appended at ``appended_ms``."""
        now_ms = self._scheduler.now_ms()
        self._expected += 1
        self._until_ms = now_ms + min((now_ms - appended_ms) // 2 + 1, MAX_HOLD_MS)

    def append_arrived(self, size_bytes: int) -> None:
        """Count an append; the last one expected, or a large one, lets the fetches go as soon as it is in the log."""
        if not self._expected:
            return
        self._expected = 0 if size_bytes >= LARGE_APPEND_BYTES else self._expected - 1
        if not self._expected and self._held:
            self._scheduler.call_soon(self._release)

    def hold(self, session: FetchSession) -> bool:
        """Let a fetch that could be answered wait for expected appends; return whether it has to wait."""
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
