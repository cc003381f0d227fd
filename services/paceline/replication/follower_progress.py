"""Track the offsets and fetch times of one follower. Source: docs/protocol/replication.md#follower-progress."""

from paceline.replication.leadership_proof import NEVER


class FetchClock:
    """When a follower's fetch session last fetched; shared by all partitions of the session.

    A follower that is idle at the leader's log end does not name the partition in its fetches, yet each of them says
    that it is still there. One write to this clock stands for a write to each of thousands of partitions.
    """

    __slots__ = ("answered_ms", "last_fetch_ms", "proved_ms")

    def __init__(self, now_ms: int) -> None:
        self.last_fetch_ms = now_ms
        self.answered_ms = NEVER
        """When the last answer of the session was sent."""
        self.proved_ms = NEVER
        """The last fetch was made after this time: it came after the answer that was sent then."""

    def fetched(self, now_ms: int) -> None:
        """Note the session's next fetch. It may have waited in a buffer, but it is younger than the answer before."""
        self.last_fetch_ms = now_ms
        self.proved_ms = self.answered_ms


class FollowerProgress:
    """Progress of one follower. Offsets are exclusive ends; None means "not known since I lead"."""

    __slots__ = (
        "answered_ms",
        "broker_epoch",
        "broker_id",
        "clock",
        "fetched_in_epoch",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "proved_ms",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch: int | None = None
        """Broker epoch in its last fetch (KIP-903)."""
        self.log_end_offset: int | None = None
        self.log_start_offset: int | None = None
        self.last_fetch_leader_end_offset = 0
        self.last_fetch_ms = 0
        self.last_caught_up_ms: int | None = None
        """Last time it was known to hold everything; None for "long ago"."""
        self.fetched_in_epoch = False
        """Whether it has fetched in the leader's present epoch."""
        self.clock: FetchClock | None = None
        """Clock of the session that has this partition in it, None without one."""
        self.answered_ms = NEVER
        """When a fetch without a session was last answered in the present epoch."""
        self.proved_ms = NEVER
        """It is known to have followed in the present epoch as of this time; see `followed_ms`."""

    def start_epoch(self, leader_end_offset: int, now_ms: int, in_isr: bool, was_leader: bool) -> None:
        """Begin a leader epoch: the lag clock of an ISR member starts now.

        End offsets survive from one epoch of the same leader to the next, for it has not truncated in between; a new
        leader starts knowing nothing.

        Source: Kafka 2.8 Partition.makeLeader; docs/protocol/replication.md#becoming-a-leader.
        """
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        self.last_caught_up_ms = now_ms if in_isr else None
        self.fetched_in_epoch = False
        self.clock = None
        self.answered_ms = self.proved_ms = NEVER
        if not was_leader:
            self.log_end_offset = None
            self.log_start_offset = None
            self.broker_epoch = None

    def record_fetch(
        self, fetch_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int, broker_epoch: int
    ) -> bool:
        """Take note of a fetch that arrived at ``now_ms``; return whether the follower's end offset changed.

        ``leader_end_offset`` is the leader's end *before* the read. A follower that reaches the end the leader had at
        its previous fetch was caught up at the time of that fetch, so one that is always a batch behind stays in sync.
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
        """Return when it was last known to hold everything, idle session fetches included."""
        clock = self.clock
        known_ms = self.last_caught_up_ms
        if clock is None or self.log_end_offset is None or self.log_end_offset < leader_end_offset:
            return known_ms
        return clock.last_fetch_ms if known_ms is None else max(known_ms, clock.last_fetch_ms)

    def last_seen_ms(self) -> int:
        """Return when it last fetched, idle session fetches included."""
        return self.last_fetch_ms if self.clock is None else max(self.last_fetch_ms, self.clock.last_fetch_ms)

    def followed_ms(self) -> int:
        """Return as of when it is known to follow in the leader's epoch, idle session fetches included.

        A fetch counts from when the answer before it was sent: a follower makes its next fetch after that answer.
        """
        return self.proved_ms if self.clock is None else max(self.proved_ms, self.clock.proved_ms)

    def settle(self, leader_end_offset: int) -> None:
        """Store the time of the session's clock, before the leader's end moves beyond ``leader_end_offset``."""
        clock = self.clock
        if clock is None or self.log_end_offset is None or self.log_end_offset < leader_end_offset:
            return
        self._caught_up(clock.last_fetch_ms)
        self.last_fetch_ms = max(self.last_fetch_ms, clock.last_fetch_ms)
        self.last_fetch_leader_end_offset = leader_end_offset

    def leave_session(self, leader_end_offset: int, forgotten: bool) -> None:
        """Drop the session, keeping the time of its clock.

        A follower that has ``forgotten`` the partition may have heard of another leader; earlier fetches then prove
        nothing.
        """
        self.settle(leader_end_offset)
        self.proved_ms = NEVER if forgotten else self.followed_ms()
        self.clock = None

    def _caught_up(self, at_ms: int) -> None:
        if self.last_caught_up_ms is None or self.last_caught_up_ms < at_ms:
            self.last_caught_up_ms = at_ms
