"""Decide whether a leader can prove that it has not been deposed.

A controller elects a successor only after it has lost the leader: the leader's ZooKeeper session ended, or the leader
sent no heartbeat for a lease. A leader that is still in contact with both was not deposed without notice. A leader
that lost one of them asks its followers: an ISR member that fetches in the leader's epoch knows no newer epoch, and a
clean successor comes from the ISR. So an outage of ZooKeeper, or of all controllers, stops no leader that is followed.

All times are monotonic milliseconds of this broker. Each counts from when the question was *sent*, so a late answer,
read from a socket buffer after a pause, proves nothing about the present.
Source: docs/protocol/replication.md#leadership-proof.
"""

from collections.abc import Iterable
from typing import Final

NEVER: Final = -(1 << 62)
"""A proof that does not exist: older than any time a proof is asked for."""


class LeadershipProof:
    """Tells since when each leadership of this broker has to be proved.

    The broker reports responses of the controller and that its event loop runs; `since_ms` is compared with each
    partition's time of proof (`proved_ms`).
    """

    __slots__ = ("_alive_ms", "_controller_ms", "_gap_ms", "_lease_ms", "_recent_ms", "_reprove_ms")

    def __init__(self, session_ms: int, lease_ms: int, fetch_wait_ms: int, now_ms: int) -> None:
        """Begin in contact.

        Args:
            session_ms: timeout of this broker's ZooKeeper session.
            lease_ms: how long the controller waits for a heartbeat; 0 where brokers have no leases.
            fetch_wait_ms: how long a follower that lacks nothing lets its fetch wait.
            now_ms: the time.
        """
        self._lease_ms = lease_ms
        shortest_ms = min(session_ms, lease_ms) if lease_ms else session_ms
        # A proof from a fetch is as old as the wait of the fetch before it, and the answer to that may be late.
        self._recent_ms = max(shortest_ms // 3, 3 * fetch_wait_ms, 1)
        self._controller_ms = now_ms
        self._reprove_ms = NEVER
        self._alive_ms = now_ms
        self._gap_ms = NEVER

    @property
    def check_every_ms(self) -> int:
        """How often the event loop has to say that it runs."""
        return max(self._recent_ms // 2, 1)

    def loop_runs(self, now_ms: int) -> None:
        """Note that the event loop runs; after a gap, fetches from before the gap prove nothing any more."""
        if now_ms - self._alive_ms > self._recent_ms:
            self._gap_ms = now_ms
        self._alive_ms = now_ms

    def controller_answered(self, asked_ms: int, now_ms: int) -> None:
        """Note that the active controller answered a heartbeat sent at ``asked_ms``, or that ZooKeeper named none."""
        if self._lease_ms and now_ms - self._controller_ms > self._lease_ms:
            # The lease may have run out in between; the decisions that followed may still be on their way.
            self._reprove_ms = now_ms
        self._controller_ms = max(self._controller_ms, asked_ms)

    def session_began(self, now_ms: int) -> None:
        """Note that this broker is in a new ZooKeeper session; the end of the last one may have deposed it."""
        self._reprove_ms = now_ms
        self._controller_ms = max(self._controller_ms, now_ms)

    def since_ms(self, now_ms: int, session_may_be_over: bool) -> int:
        """Return the time since which leadership has to be proved; `NEVER` when nothing has to be.

        In contact it is the time contact was regained. Out of contact it moves with ``now_ms``: followers have to have
        fetched in the last third of a session or lease, and since the last gap in the event loop. A successor stops
        fetching when it begins to lead, so this is also how long the two may answer side by side.
        """
        self.loop_runs(now_ms)
        if session_may_be_over or self.lease_may_be_over(now_ms):
            return max(now_ms - self._recent_ms, self._gap_ms)
        return self._reprove_ms

    def lease_may_be_over(self, now_ms: int) -> bool:
        """Whether the active controller may count this broker as lost."""
        return self._lease_ms > 0 and now_ms - self._controller_ms > self._lease_ms


def proved_ms(told_ms: int, fetched_ms: Iterable[int]) -> int | None:
    """Return as of when a leadership is proved; None for a sole ISR member, which has no clean successor.

    Args:
        told_ms: when the controller, or a conditional write of the ISR, last confirmed the leadership.
        fetched_ms: per other member of the maximal ISR, as of when it is known to follow in the leader's epoch.
    """
    oldest = min(fetched_ms, default=None)
    return None if oldest is None else max(told_ms, oldest)
