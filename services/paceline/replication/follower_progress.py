"""How far one follower has come, as its leader knows it (spec/replica-manager.md section 5)."""


class FetchClock:
    """When a follower's fetch session last fetched; shared by all partitions of the session.

    A follower that is idle at the leader's log end does not name the partition in its fetches, yet each of them says
    that it is still there. One write to this clock stands for a write to each of thousands of partitions.
    """

    __slots__ = ("last_fetch_ms",)

    def __init__(self, now_ms: int) -> None:
        self.last_fetch_ms = now_ms


class FollowerProgress:
    """Progress of one follower. Offsets are exclusive ends; None means "not known since I lead"."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "clock",
        "fetched_in_epoch",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
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

    def start_epoch(self, leader_end_offset: int, now_ms: int, in_isr: bool, was_leader: bool) -> None:
        """Begin a leader epoch: the lag clock of an ISR member starts now.

        End offsets survive from one epoch of the same leader to the next, for it has not truncated in between; a new
        leader starts knowing nothing.

        Source: Kafka 2.8 Partition.makeLeader, spec/replica-manager.md section 3.1 steps 4 and 5.
        """
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        self.last_caught_up_ms = now_ms if in_isr else None
        self.fetched_in_epoch = False
        self.clock = None
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

    def settle(self, leader_end_offset: int) -> None:
        """Write down what the session's clock says, before the leader's end moves away from ``leader_end_offset``."""
        clock = self.clock
        if clock is None or self.log_end_offset is None or self.log_end_offset < leader_end_offset:
            return
        self._caught_up(clock.last_fetch_ms)
        self.last_fetch_ms = max(self.last_fetch_ms, clock.last_fetch_ms)
        self.last_fetch_leader_end_offset = leader_end_offset

    def leave_session(self, leader_end_offset: int) -> None:
        """Forget the session, keeping what its clock said."""
        self.settle(leader_end_offset)
        self.clock = None

    def _caught_up(self, at_ms: int) -> None:
        if self.last_caught_up_ms is None or self.last_caught_up_ms < at_ms:
            self.last_caught_up_ms = at_ms
