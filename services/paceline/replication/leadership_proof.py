"""Decide whether a leader can prove that it has not been deposed.

A controller elects a new leader after the old leader's ZooKeeper session ended, or after it sent no heartbeat for the
duration of a lease; otherwise it sends the old leader a request. So a leader in contact with ZooKeeper and the
controller, which has answered all requests, has not been deposed. A leader without that contact uses its followers'
fetches: an ISR member that fetches in the leader's epoch knows no newer epoch, and a clean election chooses a leader
from the ISR. So an outage of ZooKeeper or of all controllers does not stop a leader that has followers.

All times are monotonic milliseconds of this broker. A response proves the time at which its request was *sent*, so a
late response, read from a socket buffer after a pause, proves nothing about the present.
Source: docs/protocol/replication.md#leadership-proof.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

NEVER: Final = -(1 << 62)
"""Time of a missing proof, before any time for which a proof can be required."""


class LeadershipProof:
    """Computes the time since which the leaderships of this broker must be proved.

    The broker reports responses of the controller and runs of its event loop, and compares `since_ms` with the proved
    time of each partition (`proved_ms`).
    """

    __slots__ = ("_alive_ms", "_asked_ms", "_controller_ms", "_gap_ms", "_lease_ms", "_reprove_ms", "recent_ms")

    def __init__(self, session_ms: int, lease_ms: int, fetch_wait_ms: int, now_ms: int) -> None:
        """Start in contact with ZooKeeper and the controller.

        Args:
            session_ms: timeout of this broker's ZooKeeper session.
            lease_ms: time after which the controller counts a broker without heartbeats as lost; 0 without leases.
            fetch_wait_ms: longest wait of a fetch of a caught-up follower.
            now_ms: the current time.
        """
        self._lease_ms = lease_ms
        shortest_ms = min(session_ms, lease_ms) if lease_ms else session_ms
        # A fetch proves a time as old as the wait of the previous fetch, whose response may also be late.
        self.recent_ms = max(shortest_ms // 3, 3 * fetch_wait_ms, 1)
        """Age up to which a fetch proves a leadership without contact."""
        self._asked_ms = NEVER
        self._controller_ms = now_ms
        self._reprove_ms = NEVER
        self._alive_ms = now_ms
        self._gap_ms = NEVER

    @property
    def check_every_ms(self) -> int:
        """Interval at which the event loop must call `loop_runs`."""
        return max(self.recent_ms // 2, 1)

    def loop_runs(self, now_ms: int) -> None:
        """Record that the event loop runs; after a gap, fetches from before the gap are no proof."""
        if now_ms - self._alive_ms > self.recent_ms:
            self._gap_ms = now_ms
        self._alive_ms = now_ms

    def controller_answered(self, asked_ms: int, now_ms: int) -> None:
        """Record that the controller had no unanswered request at ``asked_ms``, or that ZooKeeper named none active."""
        if self._lease_ms and now_ms - self._controller_ms > self._lease_ms:
            # The lease may have expired in the meantime, and LeaderAndIsr requests of new elections may still be late.
            self._reprove_ms = now_ms
        self._controller_ms = max(self._controller_ms, asked_ms)

    def session_began(self, now_ms: int) -> None:
        """Record a new ZooKeeper session; new leaders may have been elected when the previous session ended."""
        self._reprove_ms = now_ms
        self._controller_ms = max(self._controller_ms, now_ms)

    def since_ms(self, now_ms: int, session_may_be_over: bool) -> int:
        """Return the time since which leadership must be proved, `NEVER` when no proof is required.

        With contact, it is the time when contact was regained. Without contact, it advances with ``now_ms``: followers
        must have fetched within about a third of a session or lease, and since the last gap in the event loop. A new
        leader stops fetching when it becomes leader, so this is also the longest time that both may respond as leader.
        """
        self.loop_runs(now_ms)
        if session_may_be_over or self.lease_may_be_over(now_ms):
            return max(now_ms - self.recent_ms, self._gap_ms, self._asked_ms)
        return self._reprove_ms

    @contextmanager
    def required_after(self, asked_ms: int) -> Iterator[None]:
        """Require meanwhile, without contact, a proof that is later than the arrival of a request at ``asked_ms``."""
        before, self._asked_ms = self._asked_ms, asked_ms + 1
        try:
            yield
        finally:
            self._asked_ms = before

    def lease_may_be_over(self, now_ms: int) -> bool:
        """Whether the controller may count this broker as lost, or has waited for its answer for a lease."""
        return self._lease_ms > 0 and now_ms - self._controller_ms > self._lease_ms


def proved_ms(confirmed_ms: int, fetched_ms: Iterable[int]) -> int | None:
    """Return the time up to which a leadership is proved.

    Return None for the only ISR member: a clean election cannot choose another leader.

    Args:
        confirmed_ms: time of the last confirmation by the controller or by a conditional ISR write.
        fetched_ms: `FollowerProgress.followed_ms` of each other member of the maximal ISR.
    """
    oldest = min(fetched_ms, default=None)
    return None if oldest is None else max(confirmed_ms, oldest)
