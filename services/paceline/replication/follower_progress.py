"""Track the offsets and fetch times of one follower. Source: docs/protocol/replication.md#follower-progress."""

from dataclasses import dataclass

from paceline.replication.leadership_proof import NEVER


@dataclass(slots=True, eq=False)
class FetchClock:
    """Times of the last fetch of a follower's session, shared by all partitions of the session.

    A follower that is idle at the leader's log end does not list the partition in its fetches, but each fetch shows
    that the follower is still caught up. One write to this clock replaces a write to each of thousands of partitions.
    """

    last_fetch_ms: int
    answered_ms: int = NEVER
    """Time when the last response of the session was sent."""
    proved_ms: int = NEVER
    """Time of the response before the last fetch; the follower sent that fetch later."""

    def fetched(self, now_ms: int) -> None:
        """Record a fetch of the session.

        The fetch may have waited in a socket buffer, but the follower sent it after the previous response.
        """
        self.last_fetch_ms = now_ms
        self.proved_ms = self.answered_ms


@dataclass(slots=True, eq=False)
class FollowerProgress:
    """Progress of one follower. End offsets are exclusive; None means unknown since this broker became leader."""

    broker_id: int
    broker_epoch: int | None = None
    """Broker epoch in the follower's last fetch (KIP-903)."""
    log_end_offset: int | None = None
    log_start_offset: int | None = None
    last_fetch_leader_end_offset: int = 0
    last_fetch_ms: int = 0
    last_caught_up_ms: int | None = None
    """Last time when the follower had all records; None if it was not caught up since the leader epoch began."""
    fetched_in_epoch: bool = False
    """Whether the follower has fetched in the current leader epoch."""
    fence_reported: bool = False
    """Whether a fetch that was refused because of an epoch has been reported in the current leader epoch."""
    clock: FetchClock | None = None
    """Clock of the fetch session that contains this partition, None without a session."""
    answered_ms: int = NEVER
    """Time of the last response to a fetch without a session in the current leader epoch."""
    proved_ms: int = NEVER
    """Time up to which fetches prove that the follower followed in the current leader epoch; see `followed_ms`."""

    def start_epoch(self, leader_end_offset: int, now_ms: int, in_isr: bool, was_leader: bool) -> None:
        """Start a leader epoch: an ISR member counts as caught up at ``now_ms``.

        If this broker was the leader of the previous epoch too, it has not truncated its log, so the follower's end
        offset stays valid. On a new leader the follower's offsets are unknown.

        Source: Kafka 2.8 Partition.makeLeader; docs/protocol/replication.md#becoming-a-leader.
        """
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        self.last_caught_up_ms = now_ms if in_isr else None
        self.fetched_in_epoch = self.fence_reported = False
        self.clock = None
        self.answered_ms = self.proved_ms = NEVER
        if not was_leader:
            self.log_end_offset = None
            self.log_start_offset = None
            self.broker_epoch = None

    def record_fetch(
        self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int, broker_epoch: int
    ) -> bool:
        """Record a fetch that arrived at ``now_ms``; return whether the follower's end offset changed.

        ``leader_end_offset`` is the leader's end offset *before* the read. A follower whose fetch offset reaches the
        leader's end offset at its previous fetch was caught up at the time of that fetch. So a follower that always
        lacks the latest batch stays in sync.
        """
        if fetch_offset >= leader_end_offset:
            self._caught_up(now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self._caught_up(self.last_fetch_ms)
        changed = self.log_end_offset != fetch_offset
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        self.broker_epoch = broker_epoch
        self.fetched_in_epoch = True
        self.proved_ms = max(self.proved_ms, self.answered_ms)
        return changed

    def caught_up_ms(self, leader_end_offset: int) -> int | None:
        """Return the last time when the follower had all records, idle fetches of its session included."""
        clock = self.clock
        known_ms = self.last_caught_up_ms
        if clock is None or self.log_end_offset is None or self.log_end_offset < leader_end_offset:
            return known_ms
        return clock.last_fetch_ms if known_ms is None else max(known_ms, clock.last_fetch_ms)

    def last_seen_ms(self) -> int:
        """Return the time of the follower's last fetch, idle fetches of its session included."""
        return self.last_fetch_ms if self.clock is None else max(self.last_fetch_ms, self.clock.last_fetch_ms)

    def followed_ms(self) -> int:
        """Return the time up to which the follower certainly followed in this leader epoch, idle fetches included.

        A fetch proves the time at which the previous response was sent, because the follower sends its next fetch after
        that response.
        """
        return self.proved_ms if self.clock is None else max(self.proved_ms, self.clock.proved_ms)

    def settle(self, leader_end_offset: int) -> None:
        """Copy the time of the session's clock before the leader's log end advances beyond ``leader_end_offset``."""
        clock = self.clock
        if clock is None or self.log_end_offset is None or self.log_end_offset < leader_end_offset:
            return
        self._caught_up(clock.last_fetch_ms)
        self.last_fetch_ms = max(self.last_fetch_ms, clock.last_fetch_ms)
        self.last_fetch_leader_end_offset = leader_end_offset

    def leave_session(self, leader_end_offset: int, forgotten: bool) -> None:
        """Remove the partition from the session and copy the time of its clock.

        A follower that has ``forgotten`` the partition may follow a newer leader, so its earlier fetches prove nothing.
        """
        self.settle(leader_end_offset)
        self.proved_ms = NEVER if forgotten else self.followed_ms()
        self.clock = None

    def _caught_up(self, at_ms: int) -> None:
        if self.last_caught_up_ms is None or self.last_caught_up_ms < at_ms:
            self.last_caught_up_ms = at_ms
