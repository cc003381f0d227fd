"""Fetch sessions on the leader: epochs, eviction, and marks of changed partitions (KIP-227)."""

import random

import pytest

from paceline.model.errors import FetchSessionIdNotFoundError, InvalidFetchSessionEpochError
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.replication.fetch_session import (
    EVICTION_MS,
    MAX_EPOCH,
    FetchSession,
    FetchSessionCache,
    PartitionChange,
)
from paceline.replication.follower_progress import FetchClock

A, B, C = (TopicPartition("t", index) for index in range(3))
FOLLOWER, CLIENT = 7, None


def position(tp: TopicPartition, offset: int = 0) -> FetchPosition:
    return FetchPosition(tp, None, offset, 1_000, 0, None)


def cache(slots: int = 2) -> tuple[FetchSessionCache, list[FetchSession]]:
    closed: list[FetchSession] = []
    return FetchSessionCache(slots, random.Random(1), closed.append), closed


def opened(sessions: FetchSessionCache, owner: int | None, now_ms: int = 0, broker_epoch: int = 1) -> FetchSession:
    session = sessions.open(owner, broker_epoch, now_ms)
    assert session is not None
    return session


def test_a_session_counts_its_requests_and_refuses_a_lost_or_repeated_one() -> None:
    sessions, _ = cache()
    session = opened(sessions, FOLLOWER)
    assert sessions.resume(session.session_id, 1, FOLLOWER, 10) is session
    assert session.clock.last_fetch_ms == 10
    for epoch in (1, 3):
        with pytest.raises(InvalidFetchSessionEpochError):
            sessions.resume(session.session_id, epoch, FOLLOWER, 20)
    assert session.clock.last_fetch_ms == 10
    assert sessions.resume(session.session_id, 2, FOLLOWER, 30) is session


def test_the_epoch_wraps_to_one() -> None:
    sessions, _ = cache()
    session = opened(sessions, FOLLOWER)
    session.next_epoch = MAX_EPOCH
    sessions.resume(session.session_id, MAX_EPOCH, FOLLOWER, 0)
    assert session.next_epoch == 1


def test_a_session_of_another_reader_is_refused() -> None:
    sessions, closed = cache()
    session = opened(sessions, FOLLOWER)
    for owner in (8, CLIENT):
        with pytest.raises(FetchSessionIdNotFoundError):
            sessions.resume(session.session_id, 1, owner, 0)
        sessions.close(session.session_id, owner)
    assert not closed
    sessions.close(session.session_id, FOLLOWER)
    assert closed == [session] and session.closed and len(sessions) == 0


def test_a_full_cache_opens_no_session() -> None:
    sessions, closed = cache()
    opened(sessions, CLIENT)
    opened(sessions, CLIENT)
    assert sessions.open(CLIENT, -1, EVICTION_MS) is None
    assert not closed


def test_a_new_session_evicts_an_idle_session_and_a_followers_evicts_a_clients() -> None:
    sessions, closed = cache()
    first, second = opened(sessions, CLIENT, now_ms=0), opened(sessions, FOLLOWER, now_ms=10)
    assert opened(sessions, 8, now_ms=100)
    assert closed == [first]
    sessions.open(CLIENT, -1, EVICTION_MS + 11)
    assert closed == [first, second]


def test_idle_sessions_are_closed_after_the_eviction_time() -> None:
    sessions, closed = cache(slots=5)
    first, second, third = (opened(sessions, CLIENT, now_ms=at) for at in (0, 10, 20))
    sessions.resume(first.session_id, 1, CLIENT, 50)
    sessions.close_silent(EVICTION_MS + 20)
    assert closed == [second]
    sessions.close_silent(EVICTION_MS + 51)
    assert closed == [second, third, first]


def test_the_least_recently_used_session_is_evicted_first() -> None:
    sessions, closed = cache()
    first, second = opened(sessions, CLIENT, 0), opened(sessions, CLIENT, 0)
    sessions.resume(first.session_id, 1, CLIENT, 5)
    sessions.open(CLIENT, -1, EVICTION_MS + 1)
    assert closed == [second]


def test_a_follower_that_registers_again_loses_its_earlier_sessions() -> None:
    sessions, closed = cache(slots=5)
    old, other = opened(sessions, FOLLOWER, broker_epoch=1), opened(sessions, 8, broker_epoch=1)
    opened(sessions, FOLLOWER, broker_epoch=1)
    assert not closed
    opened(sessions, FOLLOWER, broker_epoch=2)
    assert old in closed and other not in closed and len(sessions) == 2


def test_a_fetch_reads_only_marked_partitions() -> None:
    session = FetchSession(1, FOLLOWER, 1, FetchClock(0))
    for tp in (A, B, C):
        assert session.put(position(tp))
    assert [one.topic_partition for one in session.take_marked()] == [A, B, C]
    assert session.take_marked() == []
    session.mark(B, PartitionChange.APPENDED)
    session.mark(TopicPartition("u", 0), PartitionChange.APPENDED)
    assert [one.topic_partition for one in session.take_marked()] == [B]


def test_a_partition_with_an_error_is_read_at_every_fetch() -> None:
    session = FetchSession(1, FOLLOWER, 1, FetchClock(0))
    for tp in (A, B):
        session.put(position(tp))
    session.take_marked()
    session.read_each_time[A] = None
    session.mark(B, PartitionChange.APPENDED)
    assert [one.topic_partition for one in session.take_marked()] == [B, A]
    assert [one.topic_partition for one in session.take_marked()] == [A]


def test_partitions_without_room_in_a_response_come_first_in_the_next() -> None:
    session = FetchSession(1, FOLLOWER, 1, FetchClock(0))
    for tp in (A, B, C):
        session.put(position(tp))
    session.mark_first([C])
    assert list(session.marked) == [C, A, B]


def test_a_waiting_fetch_receives_all_news_of_a_partition_once() -> None:
    session = FetchSession(1, FOLLOWER, 1, FetchClock(0))
    session.put(position(A))
    assert not session.mark(A, PartitionChange.APPENDED)
    session.waiting = lambda: None
    assert session.mark(A, PartitionChange.APPENDED) and session.mark(A, PartitionChange.ROLE)
    assert session.take_unchecked_changes() == {A: PartitionChange.APPENDED | PartitionChange.ROLE}
    assert session.take_unchecked_changes() == {}


def test_a_changed_position_keeps_the_high_watermark_that_was_sent() -> None:
    session = FetchSession(1, FOLLOWER, 1, FetchClock(0))
    session.put(position(A))
    session.partitions[A].sent_high_watermark = 5
    assert not session.put(position(A, offset=3))
    assert session.partitions[A].fetch_offset == 3 and session.partitions[A].sent_high_watermark == 5


def test_a_reader_in_another_leader_epoch_receives_watermark_and_log_start_again() -> None:
    session = FetchSession(1, FOLLOWER, 1, FetchClock(0))
    session.put(position(A))
    session.partitions[A].sent_high_watermark = session.partitions[A].sent_log_start_offset = 5
    later = position(A)
    later.current_leader_epoch = 1
    assert not session.put(later)
    assert (later.sent_high_watermark, later.sent_log_start_offset) == (None, None)


def test_a_forgotten_partition_leaves_no_mark() -> None:
    session = FetchSession(1, FOLLOWER, 1, FetchClock(0))
    session.put(position(A))
    assert session.remove(A) and not session.remove(A)
    assert session.take_marked() == []
