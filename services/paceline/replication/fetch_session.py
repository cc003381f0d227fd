"""Incremental fetch sessions on the leader (KIP-227). Source: docs/protocol/replication.md#fetch-sessions.

A session stores its reader's partitions and offsets, so that a fetch lists only the changes. Appends, high watermark
updates and leadership changes *mark* a partition of the session, and a fetch reads only marked partitions. A follower
of 10 000 idle partitions therefore costs one small request per wait.
"""

import random
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from paceline.model.errors import FetchSessionIdNotFoundError, InvalidFetchSessionEpochError
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.replication.follower_progress import FetchClock

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""Session epoch of a full fetch that may open a session."""
FINAL_EPOCH: Final = -1
"""Session epoch of a full fetch without a session; the fetch closes the session whose id it has."""
MAX_EPOCH: Final = 2**31 - 1
EVICTION_MS: Final = 120_000
"""A session without a fetch for longer than this may be evicted for any new session."""


class PartitionChange:
    """Bits for changes of a partition that a fetch may wait for; plain integers, because they are on the data path."""

    APPENDED: Final = 1
    """The log end offset advanced."""
    HIGH_WATERMARK: Final = 2
    """The high watermark advanced; this alone does not end a follower's wait."""
    ROLE: Final = 4
    """Leader, leader epoch, ISR or topic changed, or the log was removed."""
    LOG_START: Final = 8
    """The log start offset advanced; followers receive it at once, because a DeleteRecords request waits for them."""
    LOW_WATERMARK: Final = 16
    """A follower's log start offset advanced."""


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions of one reader. ``owner`` is a follower's broker id, None for a client."""

    session_id: int
    owner: int | None
    broker_epoch: int
    clock: FetchClock
    next_epoch: int = 1
    partitions: dict[TopicPartition, FetchPosition] = field(default_factory=dict)
    marked: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions that changed since the last response, in the order of their first change."""
    read_each_time: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions that every fetch reads: those with an error in the last response or about to join the ISR."""
    waiting: Callable[[], object] | None = None
    """Called after a batch of changes was marked, while a fetch waits; otherwise None."""
    unchecked_changes: dict[TopicPartition, int] = field(default_factory=dict)
    """Changes since the waiting fetch last checked, as bits of `PartitionChange`."""
    closed: bool = False

    def put(self, position: FetchPosition) -> bool:
        """Add or replace a position and mark it; return whether the partition is new to the session.

        If the reader has a new leader epoch, it has dropped the values of the previous epoch, so they are sent again.
        """
        known = self.partitions.get(position.topic_partition)
        if known is not None and known.current_leader_epoch == position.current_leader_epoch:
            position.sent_high_watermark = known.sent_high_watermark
            position.sent_log_start_offset = known.sent_log_start_offset
        self.partitions[position.topic_partition] = position
        self.marked[position.topic_partition] = None
        return known is None

    def remove(self, topic_partition: TopicPartition) -> bool:
        """Remove a partition; return whether the session had it."""
        self.marked.pop(topic_partition, None)
        self.read_each_time.pop(topic_partition, None)
        return self.partitions.pop(topic_partition, None) is not None

    def mark(self, topic_partition: TopicPartition, change: int) -> bool:
        """Mark a changed partition; return whether a waiting fetch must be notified."""
        if topic_partition not in self.partitions:
            return False
        self.marked[topic_partition] = None
        if self.waiting is None:
            return False
        self.unchecked_changes[topic_partition] = self.unchecked_changes.get(topic_partition, 0) | change
        return True

    def take_unchecked_changes(self) -> dict[TopicPartition, int]:
        """Return and clear the changes that the waiting fetch has not checked yet."""
        unchecked, self.unchecked_changes = self.unchecked_changes, {}
        return unchecked

    def take_marked(self) -> list[FetchPosition]:
        """Return the partitions that the next fetch must read, marked partitions first, and clear the marks."""
        partitions = self.partitions
        taken = [partitions[tp] for tp in self.marked]
        taken += [partitions[tp] for tp in self.read_each_time if tp not in self.marked]
        self.marked = {}
        return taken

    def mark_first(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Mark partitions that did not fit the response, and let the next fetch read them first."""
        self.marked = {**dict.fromkeys(topic_partitions), **self.marked}


class FetchSessionCache:
    """All sessions of a broker, at most ``slots``.

    A full cache evicts the least recently used session if it had no fetch for two minutes, or a client's session if a
    follower needs the slot. Otherwise the reader gets no session and sends full fetches.
    """

    def __init__(self, slots: int, rng: random.Random, on_close: Callable[[FetchSession], None]) -> None:
        self._slots = slots
        self._rng = rng
        self._on_close = on_close
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, owner: int | None, broker_epoch: int, now_ms: int) -> FetchSession | None:
        """Return a new session, None when no slot is free.

        A higher ``broker_epoch`` means that the follower has restarted: sessions of its earlier process are closed.
        """
        if owner is not None:
            self._close_earlier_sessions(owner, broker_epoch)
        if len(self._sessions) >= self._slots and not self._evict(owner is not None, now_ms):
            return None
        session_id = self._rng.randrange(1, MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, MAX_EPOCH)
        session = FetchSession(session_id, owner, broker_epoch, FetchClock(now_ms))
        # The dict is in the order of the last fetch, least recently used first.
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, owner: int | None, now_ms: int) -> FetchSession:
        """Return the session for its next incremental fetch and advance its epoch and clock.

        Raises:
            FetchSessionIdNotFoundError: the session does not exist or belongs to another reader.
            InvalidFetchSessionEpochError: a fetch of the session was lost or repeated.
        """
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise FetchSessionIdNotFoundError(f"fetch session {session_id} is not known")
        if session.next_epoch != epoch:
            raise InvalidFetchSessionEpochError(
                f"fetch session {session_id} expects epoch {session.next_epoch}, not {epoch}"
            )
        session.next_epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        session.clock.fetched(now_ms)
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session

    def close(self, session_id: int, owner: int | None) -> None:
        """Close a session; do nothing if it is already closed or belongs to another reader."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            self._end(session)

    def partitions_of(self, session_id: int) -> Iterable[TopicPartition]:
        """Return the partitions of a session, none if it does not exist."""
        session = self._sessions.get(session_id)
        return () if session is None else session.partitions

    def owned_by(self, owners: Container[int]) -> list[FetchSession]:
        """Return the sessions of the followers with these broker ids."""
        return [one for one in self._sessions.values() if one.owner is not None and one.owner in owners]

    def close_silent(self, now_ms: int) -> None:
        """Close sessions without a fetch for two minutes, because every append still marks their partitions."""
        for session in tuple(self._sessions.values()):
            if now_ms - session.clock.last_fetch_ms <= EVICTION_MS:
                break
            self._end(session)

    def close_all(self) -> None:
        """Close every session."""
        for session in tuple(self._sessions.values()):
            self._end(session)

    def _end(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        session.closed = True
        self._on_close(session)

    def _close_earlier_sessions(self, owner: int, broker_epoch: int) -> None:
        for session in tuple(self._sessions.values()):
            if session.owner == owner and session.broker_epoch < broker_epoch:
                self._end(session)

    def _evict(self, for_follower: bool, now_ms: int) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.clock.last_fetch_ms > EVICTION_MS:
            self._end(oldest)
            return True
        client = next((session for session in self._sessions.values() if session.owner is None), None)
        if for_follower and client is not None:
            self._end(client)
            return True
        return False
