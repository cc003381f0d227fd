"""Send the small appends of many producers to a follower in one fetch response.

A fetch round trip costs a leader and its follower several times as much as a small append. Producers that send single
records and wait for acks=all send their next request soon after the response, and all of them are answered at the same
time: when the high watermark advances. The first of these requests would end the waiting fetch, and each further
request would need another fetch. Therefore the fetch waits until as many appends have arrived as such producers were
answered. A producer that was answered is expected if it sent its last request in time, too: within four times the
replication time of the request before it, and 20 ms at most. So a producer that sends a record now and then delays no
fetch, and a single producer is never delayed, because its own append is the append that the fetch waits for. Time in
which fetches waited does not count as replication time, so that waits do not lengthen each other.

Source: docs/protocol/replication.md#held-fetch.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from paceline.model.scheduler import Cancellable, Scheduler
from paceline.replication.fetch_session import FetchSession

MAX_HOLD_MS: Final = 20
"""Longest time that a follower's fetch waits for producers that were answered and have not sent their next request."""
LARGE_APPEND_BYTES: Final = 64 * 1024
"""Requests of this size get their own fetch response, and no fetch waits for them."""

_REPLICATION_TIMES: Final = 4
"""A producer returns in time within so many replication times of its last request (and `MAX_HOLD_MS`)."""


@dataclass(slots=True)
class SmallAppend:
    """A small append with acks=all that has no response yet."""

    producer: Hashable
    unheld_ms: int
    """Time of the append on the clock of `AppendCoalescer.unheld_ms`."""
    is_expected_again: bool
    """Whether its producer sent it in time after the last response."""


class AppendCoalescer:
    """Knows the producers for whose next append a follower's fetch waits."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._expected = 0
        """Appends for which a fetch waits until `_until_ms`."""
        self._until_ms = 0
        self._answered: dict[Hashable, tuple[int, int]] = {}
        """Until when the next append of a producer is in time, and number of its answered requests; oldest first."""
        self._held: dict[FetchSession, None] = {}
        self._held_since_ms = 0
        self._held_ms = 0
        self._timer: Cancellable | None = None

    def unheld_ms(self) -> int:
        """Return the time of a clock that stands still while a fetch is held."""
        until_ms = self._held_since_ms if self._held else self._scheduler.now_ms()
        return until_ms - self._held_ms

    def append_arrived(self, producer: Hashable, size_bytes: int) -> SmallAppend | None:
        """Count a request with acks=all that is about to be appended; return it for `append_answered` if it is small.

        The last expected append, or a large append, releases the fetches when it is in the log.
        """
        is_in_time = self._count_return(producer)
        is_large = size_bytes >= LARGE_APPEND_BYTES
        if self._expected and (is_in_time or is_large):
            self._expected = 0 if is_large else self._expected - 1
            if not self._expected and self._held:
                self._scheduler.call_soon(self._release)
        return None if is_large else SmallAppend(producer, self.unheld_ms(), is_in_time)

    def append_answered(self, append: SmallAppend) -> None:
        """Note that a producer was answered; expect its next append if it sent this append in time."""
        now_ms = self._scheduler.now_ms()
        until_ms = now_ms + min(_REPLICATION_TIMES * (self.unheld_ms() - append.unheld_ms) + 1, MAX_HOLD_MS)
        _, count = self._answered.pop(append.producer, (0, 0))
        self._answered[append.producer] = until_ms, count + 1
        if append.is_expected_again:
            self._expected += 1
            self._until_ms = until_ms

    def hold_if_expected(self, session: FetchSession) -> bool:
        """Return whether a fetch that could be answered must wait for expected appends."""
        if not self._expected:
            return False
        now_ms = self._scheduler.now_ms()
        if now_ms >= self._until_ms:
            self._expected = 0
            return False
        if not self._held:
            self._held_since_ms = now_ms
            self._timer = self._scheduler.call_later(self._until_ms - now_ms, self._release)
        self._held[session] = None
        return True

    def _count_return(self, producer: Hashable) -> bool:
        """Take the oldest answer of this producer, and forget late producers; return whether it returned in time."""
        now_ms = self._scheduler.now_ms()
        while self._answered:
            oldest = next(iter(self._answered))
            if self._answered[oldest][0] >= now_ms:
                break
            del self._answered[oldest]
        until_ms, count = self._answered.get(producer, (0, 0))
        if not count:
            return False
        if count > 1:
            self._answered[producer] = until_ms, count - 1
        else:
            del self._answered[producer]
        return now_ms <= until_ms

    def _release(self) -> None:
        self._expected = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, {}
        if held:
            self._held_ms += self._scheduler.now_ms() - self._held_since_ms
        for session in held:
            if session.waiting is not None:
                session.waiting()
