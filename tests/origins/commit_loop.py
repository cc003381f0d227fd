"""A leader's commit thread: handles one produce request after another; each waits for the ISR.

The thread took a request from its queue and held it until every ISR member had its last record, at most for
KeepInSyncTime. It then removed slower members from the ISR, wrote the ISR, and repeated the check. Then it added
replicas outside the ISR that had the record, moved the high watermark to the record, and answered the client.

Today no thread waits: the high watermark is computed from the followers' fetches (`replication/high_watermark.py`),
requests wait in a purgatory, and a periodic check removes a follower after ``replica.lag.time.max.ms``
(`replication/isr.py`), so a slow request does not delay the next request. A replica may join only at the high watermark
*and* at the start of the leader's epoch (KIP-320), and it counts for the high watermark before the ISR write.

Source: docs/origins.md, rows S0-8 to S0-11.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IsrWritten:
    """Write this ISR to the partition's ISR node."""

    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """Answer the client of a committed request; the high watermark is at its offset."""

    request_id: int
    high_watermark: int


CommitEffect = IsrWritten | Committed


@dataclass(frozen=True, slots=True)
class _Produce:
    request_id: int
    offset: int


class CommitLoop:
    """The thread's state for one partition; the caller passes the time."""

    def __init__(
        self, leader: int, assigned_replicas: Sequence[int], isr: Sequence[int], keep_in_sync_time_ms: int
    ) -> None:
        self._leader = leader
        self._assigned = tuple(assigned_replicas)
        self._isr = tuple(isr)
        self._keep_in_sync_time_ms = keep_in_sync_time_ms
        self._log_end_offsets = dict.fromkeys(assigned_replicas, 0)
        self._queue: deque[_Produce] = deque()
        self._begun_ms: int | None = None
        self.high_watermark = 0
        """Exclusive; never moves back."""

    @property
    def isr(self) -> tuple[int, ...]:
        """In-sync replicas, in the order in which they joined."""
        return self._isr

    @property
    def catching_up(self) -> tuple[int, ...]:
        """Assigned replicas outside the ISR (the design's CUR)."""
        return tuple(replica for replica in self._assigned if replica not in self._isr)

    def produce(self, request_id: int, last_offset: int) -> None:
        """Queue a request whose records end before ``last_offset``; the leader has appended them already."""
        self._queue.append(_Produce(request_id, last_offset))
        self.replicated(self._leader, last_offset)

    def replicated(self, replica: int, log_end_offset: int) -> None:
        """Record the log end offset of a replica."""
        self._log_end_offsets[replica] = log_end_offset

    def run(self, now_ms: int) -> list[CommitEffect]:
        """Return the effects that are possible now, in order; call again after progress of a replica or of the time."""
        effects: list[CommitEffect] = []
        while self._queue:
            request = self._queue[0]
            if self._begun_ms is None:
                self._begun_ms = now_ms
            late = tuple(member for member in self._isr if self._log_end_offsets[member] < request.offset)
            if late and now_ms - self._begun_ms < self._keep_in_sync_time_ms:
                break
            if late:
                self._set_isr(tuple(member for member in self._isr if member not in late), effects)
            self._queue.popleft()
            self._begun_ms = None
            caught_up = tuple(r for r in self.catching_up if self._log_end_offsets[r] >= request.offset)
            if caught_up:
                self._set_isr((*self._isr, *caught_up), effects)
            self.high_watermark = max(self.high_watermark, request.offset)
            effects.append(Committed(request.request_id, self.high_watermark))
        return effects

    def _set_isr(self, isr: tuple[int, ...], effects: list[CommitEffect]) -> None:
        self._isr = isr
        effects.append(IsrWritten(isr))
