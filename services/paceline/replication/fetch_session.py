"""Incremental fetch sessions on the leader (KIP-227). Source: docs/protocol/replication.md#fetch-sessions.

A session stores its owner's partitions and offsets, so that a fetch lists only the changes. It holds a set of *marked*
partitions: appends, high watermark moves and role changes mark; a fetch looks at the marked ones and never at the
rest. A follower that is idle on 10 000 partitions therefore costs one small request per wait.
"""

import random
from collections.abc import Callable, Container, Iterable
from typing import Final

from paceline.model.errors import FetchSessionIdNotFoundError, InvalidFetchSessionEpochError
from paceline.model.identifiers import TopicPartition
from paceline.replication.follower_progress import FetchClock

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""Session epoch of a full fetch that may open a session."""
FINAL_EPOCH: Final = -1
"""Session epoch of a full fetch without a session; it closes the one it names."""
MAX_EPOCH: Final = 2**31 - 1
EVICTION_MS: Final = 120_000
"""A session that has been silent for longer gives way to any new one."""


class News:
    """Bits for the changes of a partition that a reader may need; plain integers, for they are on the data path."""

    APPENDED: Final = 1
    """The log end moved."""
    HIGH_WATERMARK: Final = 2
    """The high watermark moved; that alone does not end a follower's wait."""
    ROLE: Final = 4
    """Leader, epoch, ISR or topic changed, or the log went away."""
    LOG_START: Final = 8
    """Records were deleted: followers learn it at once, because a DeleteRecords request waits for them."""
    LOW_WATERMARK: Final = 16
    """A follower's log start moved."""


class FetchPosition:
    """Fetch offset of one partition's reader, and the values last sent to it."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: str | None,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int | None,
        last_fetched_epoch: int | None,
        log_start_offset: int = -1,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.sent_high_watermark: int | None = None
        self.sent_log_start_offset: int | None = None


class FetchSession:
    """The partitions of one reader. ``owner`` is a follower's broker id, None for a client."""

    __slots__ = (
        "broker_epoch",
        "clock",
        "closed",
        "fresh",
        "marked",
        "next_epoch",
        "owner",
        "partitions",
        "session_id",
        "unsettled",
        "waiting",
    )

    def __init__(self, session_id: int, owner: int | None, broker_epoch: int, now_ms: int) -> None:
        self.session_id = session_id
        self.owner = owner
        self.broker_epoch = broker_epoch
        self.next_epoch = 1
        self.clock = FetchClock(now_ms)
        self.partitions: dict[TopicPartition, FetchPosition] = {}
        self.marked: dict[TopicPartition, None] = {}
        """Partitions with news since the last answer, in the order the news came."""
        self.unsettled: dict[TopicPartition, None] = {}
        """Partitions that every fetch looks at: those that answered with an error or that wait to join the ISR."""
        self.waiting: Callable[[], None] | None = None
        """Called when all that came at once has been marked, while a fetch of this session waits."""
        self.fresh: dict[TopicPartition, int] = {}
        """News since the waiting fetch last looked, as bits of `News`."""
        self.closed = False

    def put(self, position: FetchPosition) -> bool:
        """Add or replace a position and mark it; return whether the partition is new to the session.

        A reader that received a new leader epoch has dropped the values of the previous epoch: send them again.
        """
        known = self.partitions.get(position.topic_partition)
        if known is not None and known.current_leader_epoch == position.current_leader_epoch:
            position.sent_high_watermark = known.sent_high_watermark
            position.sent_log_start_offset = known.sent_log_start_offset
        self.partitions[position.topic_partition] = position
        self.marked[position.topic_partition] = None
        return known is None

    def remove(self, topic_partition: TopicPartition) -> bool:
        """Drop a partition; return whether it was there."""
        self.marked.pop(topic_partition, None)
        self.unsettled.pop(topic_partition, None)
        return self.partitions.pop(topic_partition, None) is not None

    def mark(self, topic_partition: TopicPartition, news: int) -> bool:
        """Note news of a partition; return whether a fetch of this session waits and has to be told."""
        if topic_partition not in self.partitions:
            return False
        self.marked[topic_partition] = None
        if self.waiting is None:
            return False
        self.fresh[topic_partition] = self.fresh.get(topic_partition, 0) | news
        return True

    def take_fresh(self) -> dict[TopicPartition, int]:
        """Return the news the waiting fetch has not looked at yet."""
        fresh, self.fresh = self.fresh, {}
        return fresh

    def take_marked(self) -> list[FetchPosition]:
        """Return the partitions that the next fetch must look at, marked ones first, and clear the marks."""
        partitions = self.partitions
        taken = [partitions[tp] for tp in self.marked]
        taken += [partitions[tp] for tp in self.unsettled if tp not in self.marked]
        self.marked = {}
        return taken

    def mark_first(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Put partitions that were left out of an answer at the head of the next one."""
        self.marked = {**dict.fromkeys(topic_partitions), **self.marked}


class FetchSessionCache:
    """All sessions of a broker, within a number of slots.

    A full cache gives a slot away when the least recently used session has been silent for two minutes, or when a
    follower needs a slot that a client holds; otherwise the reader sends full fetches without a session.
    """

    def __init__(self, slots: int, rng: random.Random, on_close: Callable[[FetchSession], None]) -> None:
        self._slots = slots
        self._rng = rng
        self._on_close = on_close
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, owner: int | None, broker_epoch: int, now_ms: int) -> FetchSession | None:
        """Return a new session, None when there is no slot for it.

        A follower that has registered again is another process: sessions of its predecessor are closed.
        """
        if owner is not None:
            self._close_earlier_lives(owner, broker_epoch)
        if len(self._sessions) >= self._slots and not self._evict(owner is not None, now_ms):
            return None
        session_id = self._rng.randrange(1, MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, MAX_EPOCH)
        session = FetchSession(session_id, owner, broker_epoch, now_ms)
        # In the order of their last fetch, the longest silent first.
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, owner: int | None, now_ms: int) -> FetchSession:
        """Return the session for its next incremental fetch and advance its epoch and clock.

        Raises:
            FetchSessionIdNotFoundError: there is no such session, or it is another reader's.
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
        """End a session; does nothing when it was closed already or belongs to another reader."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            self._end(session)

    def owned_by(self, owners: Container[int]) -> list[FetchSession]:
        """Return the sessions of these followers."""
        return [one for one in self._sessions.values() if one.owner is not None and one.owner in owners]

    def close_silent(self, now_ms: int) -> None:
        """End sessions without a fetch for two minutes: their readers have stopped, yet every append marks them."""
        for session in tuple(self._sessions.values()):
            if now_ms - session.clock.last_fetch_ms <= EVICTION_MS:
                break
            self._end(session)

    def close_all(self) -> None:
        """End every session."""
        for session in tuple(self._sessions.values()):
            self._end(session)

    def _end(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        session.closed = True
        self._on_close(session)

    def _close_earlier_lives(self, owner: int, broker_epoch: int) -> None:
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
