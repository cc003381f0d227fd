"""Answer fetches of followers and clients on the leader.

A follower reads up to the log end and its fetch reports its progress; a client reads up to the high watermark. In a
session only marked partitions are read. A fetch with too few bytes waits; before its response it reads again, without
reporting progress a second time.
Source: docs/protocol/replication.md#fetch-on-the-leader, #visibility and #waiting-fetch.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from paceline.broker.fetcher.fetcher_manager import FetcherManager
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.requests.append_coalescing import AppendCoalescer
from paceline.broker.requests.delayed_fetch import DelayedFetch, DelayedSessionFetch, FetchAnswer, FetchRun
from paceline.broker.requests.fetch_types import FetchLimits, PartitionRead, Reader
from paceline.broker.requests.read_from_follower import check_follower_read, preferred_follower
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.damage import DamagedLogError
from paceline.log.partition_log import PartitionLog
from paceline.log.read_place import ReadPlace
from paceline.model.errors import (
    FencedLeaderEpochError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    PacelineError,
    ReplicaNotAvailableError,
    StaleBrokerEpochError,
    UnknownLeaderEpochError,
)
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind
from paceline.replication.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchSession,
    FetchSessionCache,
)
from paceline.replication.purgatory import Cancel
from paceline.replication.truncation import divergence

EXPECT_MS: Final = 1_000
"""Time after becoming leader during which the broker expects the followers to fetch in the new epoch."""
EXPECTED_WAIT_MS: Final = 20
"""Longest wait of a follower's fetch during that time: its next request may include the partition."""
_FENCES: Final = (FencedLeaderEpochError, UnknownLeaderEpochError, StaleBrokerEpochError)


class FetchHandler:
    """Handles fetches from the hosted partitions."""

    def __init__(
        self,
        hosted: HostedPartitions,
        storage: ReplicaStorage,
        fetchers: FetcherManager,
        coalescer: AppendCoalescer,
        rng: random.Random,
    ) -> None:
        """``fetchers`` know whether this broker follows a reachable leader; ``rng`` draws session ids."""
        self._hosted = hosted
        self._storage = storage
        self._fetchers = fetchers
        self._purgatory = hosted.waiting_fetches
        self._scheduler = hosted.scheduler
        self._quota = hosted.quotas.leader
        self._coalescer = coalescer
        slots = hosted.config.max_incremental_fetch_session_cache_slots
        self.sessions = FetchSessionCache(slots, rng, self._leave)
        self._expected: dict[int, int] = {}
        self._traffic = hosted.traffic
        self.request_count = 0
        self._unfinished: deque[tuple[FetchRun, list[FetchPosition]]] = deque()
        self._is_answering = False

    def expect(self, replica_ids: Iterable[int]) -> None:
        """Answer the waiting fetches of these followers now and their later fetches soon: a new leader epoch begins.

        A follower has one fetch in flight, and only its next fetch can include a newly followed partition. Without this
        method each new epoch would begin with a pause of up to ``replica.fetch.wait.max.ms``.
        """
        until_ms = self._scheduler.now_ms() + EXPECT_MS
        expected = dict.fromkeys(replica_ids, until_ms)
        self._expected.update(expected)
        for session in self.sessions.owned_by(expected):
            self._end_wait(session)

    def _max_wait_ms(self, reader: Reader, max_wait_ms: int, now_ms: int) -> int:
        until_ms = None if reader.replica_id is None else self._expected.get(reader.replica_id)
        if until_ms is None:
            return max_wait_ms
        if now_ms >= until_ms:
            del self._expected[reader.replica_id]  # type: ignore[arg-type]
            return max_wait_ms
        return min(max_wait_ms, EXPECTED_WAIT_MS)

    def fetch(
        self,
        reader: Reader,
        limits: FetchLimits,
        session_id: int,
        session_epoch: int,
        positions: list[FetchPosition],
        forgotten: Iterable[TopicPartition],
        answer: FetchAnswer,
    ) -> Cancel | None:
        """Read, and call ``answer`` once, now or when there is enough data or ``max_wait_ms`` has passed.

        Returns a function that cancels the wait, None without a wait.

        Raises:
            FetchSessionIdNotFoundError: see `FetchSessionCache.resume`; ``answer`` is not called.
            InvalidFetchSessionEpochError: likewise.
        """
        self.request_count += 1
        now_ms = self._scheduler.now_ms()
        if self._expected:
            limits.max_wait_ms = self._max_wait_ms(reader, limits.max_wait_ms, now_ms)
        owner = reader.replica_id
        incremental = session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH)
        if incremental:
            session: FetchSession | None = self.sessions.resume(session_id, session_epoch, owner, now_ms)
        else:
            self.sessions.close(session_id, owner)
            session = None
            if session_epoch == INITIAL_EPOCH and positions:
                session = self.sessions.open(owner, reader.broker_epoch, now_ms)
        if session is None:
            looked_at = positions
        else:
            answered_ms = session.clock.answered_ms
            self._end_wait(session)
            # The follower no longer waits for the response that `_end_wait` sent, so that response does not count.
            session.clock.answered_ms = answered_ms
            session.broker_epoch = reader.broker_epoch
            for topic_partition in forgotten:
                self._forget(session, topic_partition)
            for position in positions:
                session.put(position)
            looked_at = session.take_marked()
        run = FetchRun(reader, limits, session, incremental, answer)
        if owner is None and session is None and positions and limits.min_bytes > 1 and limits.max_wait_ms > 0:
            # Count before reading: many such fetches that arrive together would each read bytes only to count them.
            operation = DelayedFetch(self, run, positions)
            keys = [position.topic_partition for position in positions]
            return self._purgatory.await_completion(operation, keys, limits.max_wait_ms)
        try:
            reads = self._read_all(run, looked_at, record=True, now_ms=now_ms)
        finally:
            self._hosted.deliver_changes()
        cancel = self._answer_or_wait(run, reads)
        if owner is not None:
            self._hosted.waiting_for_proofs.check_and_complete(owner)
        return cancel

    def _answer_or_wait(self, run: FetchRun, reads: list[PartitionRead]) -> Cancel | None:
        limits, session = run.limits, run.session
        byte_count = sum(len(read.batches) for read in reads)
        nothing_to_wait_for = not (reads if session is None else session.partitions)
        if (
            limits.max_wait_ms <= 0
            or nothing_to_wait_for
            or (byte_count >= limits.min_bytes and not self.hold_if_expected(run))
            or any(read.ends_wait for read in reads)
            or (
                run.reader.wants_high_watermark
                and session is not None
                and any(_differs_from_last_response(read) for read in reads)
            )
        ):
            self.answer(run, reads)
            return None
        if session is None:
            operation = DelayedFetch(self, run, [read.position for read in reads])
            keys = [read.position.topic_partition for read in reads]
            return self._purgatory.await_completion(operation, keys, limits.max_wait_ms)
        # Perhaps no later change marks these partitions, but the response and the next fetch must check them.
        session.mark_first(
            read.position.topic_partition for read in reads if read.available or _differs_from_last_response(read)
        )
        session.take_unchecked_changes()
        waiting = DelayedSessionFetch(self, run, {r.position.topic_partition: len(r.batches) for r in reads})
        session.waiting = waiting.try_complete
        return self._purgatory.await_completion(waiting, (session,), limits.max_wait_ms)

    def hold_if_expected(self, run: FetchRun) -> bool:
        """Return whether a follower's fetch with data must wait for expected appends."""
        return (
            run.session is not None
            and run.reader.replica_id is not None
            and self._coalescer.hold_if_expected(run.session)
        )

    def finish(self, run: FetchRun, positions: list[FetchPosition]) -> None:
        """Read again for a fetch that has waited, and answer it."""
        session = run.session
        if session is not None:
            session.waiting = None
            session.take_unchecked_changes()
            positions = session.take_marked()
        elif run.limits.min_bytes > 1:
            if self._is_answering:
                self._unfinished.append((run, positions))
                return
            self._is_answering = True
            self._scheduler.call_later(0, self._finish_next)
        self.answer(run, self._read_all(run, positions, record=False, now_ms=self._scheduler.now_ms()))

    def _finish_next(self) -> None:
        """Answer one fetch for each turn of the event loop: hundreds may expire together, each with much to read."""
        self._is_answering = False
        if self._unfinished:
            self.finish(*self._unfinished.popleft())

    def answer(self, run: FetchRun, reads: list[PartitionRead]) -> None:
        """Answer with the results; in a session, omit unchanged partitions and record the other partitions' offsets."""
        session = run.session
        if session is None:
            run.answer(0, reads)
        else:
            reported = [read for read in reads if not run.incremental or _differs_from_last_response(read)]
            for read in reported:
                position = read.position
                # A diverging follower ignores the other fields of the response.
                is_adopted = read.error is None and read.diverging_epoch is None
                position.sent_high_watermark = read.high_watermark if is_adopted else None
                position.sent_log_start_offset = read.log_start_offset if is_adopted else None
                if read.batches or read.diverging_epoch is not None or read.preferred_replica is not None:
                    session.marked[position.topic_partition] = None
            left_out = [read.position.topic_partition for read in reads if read.available and not read.batches]
            session.mark_first(left_out)
            reads = reported
            run.answer(session.session_id, reads)
        self._count(run.reader, reads)
        if run.reader.replica_id is not None:
            self._note_answered(run, reads)
        if run.reader.replica_id is not None and self._quota.lists_any:
            self._count_throttled(reads)

    def _note_answered(self, run: FetchRun, reads: list[PartitionRead]) -> None:
        """Record the time of a follower's response: the next fetch proves that it still followed after this time."""
        now_ms = self._scheduler.now_ms()
        if run.session is not None:
            run.session.clock.answered_ms = now_ms
            return
        assert run.reader.replica_id is not None
        for read in reads:
            partition = self._hosted.online.get(read.position.topic_partition)
            if partition is not None:
                partition.fetch_answered(run.reader.replica_id, now_ms)

    def _count(self, reader: Reader, reads: list[PartitionRead]) -> None:
        traffic = self._traffic
        for read in reads:
            topic = read.position.topic_partition.topic
            if reader.replica_id is None:
                traffic.fetched(topic, len(read.batches), read.error is not None)
                partition = self._hosted.online.get(read.position.topic_partition) if read.batches else None
                if partition is not None:
                    partition.bytes_out += len(read.batches)
            elif read.batches:
                traffic.sent_to_follower(topic, len(read.batches), read.to_added_replica)

    def _count_throttled(self, reads: list[PartitionRead]) -> None:
        """Count bytes sent to followers of throttled replicas, including in-sync replicas."""
        quota = self._quota
        throttled = sum(len(read.batches) for read in reads if quota.is_throttled(read.position.topic_partition))
        quota.record(throttled, self._scheduler.now_ms())

    def _holds_back(self, partition: Partition, reader: Reader) -> bool:
        """Whether a follower must wait for this leader's quota; an in-sync follower never does."""
        if reader.replica_id is None or not self._quota.lists_any or reader.replica_id in partition.maximal_isr:
            return False
        return self._quota.holds_back(partition.topic_partition, self._scheduler.now_ms())

    def _read_all(
        self, run: FetchRun, positions: Sequence[FetchPosition], record: bool, now_ms: int
    ) -> list[PartitionRead]:
        reads = []
        remaining = run.limits.max_bytes
        at_least_one = True
        for position in positions:
            read = self._read(run, position, min(position.max_bytes, remaining), at_least_one, record, now_ms)
            reads.append(read)
            if read.batches:
                remaining = max(0, remaining - len(read.batches))
                at_least_one = False
        return reads

    def _read(
        self, run: FetchRun, position: FetchPosition, max_bytes: int, at_least_one: bool, record: bool, now_ms: int
    ) -> PartitionRead:
        read = PartitionRead(position)
        session, reader = run.session, run.reader
        try:
            partition = self._validate(reader, position, read)
            if session is not None:
                partition.sessions[session] = None
            if read.diverging_epoch is not None:
                return read
            if read.available and (max_bytes > 0 or at_least_one) and not self._holds_back(partition, reader):
                log, limit = self._readable(partition, reader)
                read.batches = log.read(position.fetch_offset, max_bytes, limit, at_least_one)
            if reader.replica_id is not None:
                if record:
                    self._record(run, partition, position, read, now_ms)
                read.settled = partition.is_settled(reader.replica_id)
                read.to_added_replica = reader.replica_id in partition.adding_replicas
        except DamagedLogError as error:
            read.error = self._storage.log_damaged(position.topic_partition, error)
            read.batches = b""
            read.settled = False
        except PacelineError as error:
            read.error = error
            read.batches = b""
            read.settled = False
            if isinstance(error, KafkaStorageError):
                self._storage.storage_failed()
            elif isinstance(error, _FENCES) and reader.replica_id is not None:
                self._report_fence(reader.replica_id, position.topic_partition, error)
        if session is not None:
            if read.settled:
                session.read_each_time.pop(position.topic_partition, None)
            else:
                session.read_each_time[position.topic_partition] = None
        return read

    def _report_fence(self, replica_id: int, topic_partition: TopicPartition, error: PacelineError) -> None:
        """Report a refusal once per follower and leader epoch: a follower may repeat its fetch many times."""
        partition = self._hosted.online.get(topic_partition)
        follower = None if partition is None or not partition.is_leader else partition.followers.get(replica_id)
        if partition is not None and follower is not None and not follower.fence_reported:
            follower.fence_reported = True
            cause = f"the leader refused the fetch of broker {replica_id}: {error}"
            self._hosted.emit(StateChangeKind.FETCH_FENCED, partition, cause=cause, replica=replica_id)

    def _validate(self, reader: Reader, position: FetchPosition, read: PartitionRead) -> Partition:
        partition = self._hosted.lookup(position.topic_partition)
        partition.check_topic_id(position.topic_id)
        if reader.rack and not partition.is_leader:
            if not self._fetchers.note_reader(position.topic_partition):
                raise NotLeaderOrFollowerError(
                    f"this follower does not fetch {position.topic_partition} from a reachable leader"
                )
            check_follower_read(partition, position, read)
            return partition
        if reader.replica_id is None:
            log = partition.serving_log(position.current_leader_epoch)
        else:
            log = partition.leader_log(position.current_leader_epoch)
        if reader.replica_id is not None and reader.replica_id not in partition.followers:
            raise ReplicaNotAvailableError(
                f"broker {reader.replica_id} has no replica of {position.topic_partition} in leader epoch "
                f"{partition.leader_epoch}"
            )
        if reader.replica_id is None:
            partition.check_high_watermark_is_current()
        read.leader_epoch = partition.leader_epoch
        read.log_start_offset = log.log_start_offset
        read.log_end_offset = log_end_offset = log.log_end_offset
        read.high_watermark = log.high_watermark
        read.diverging_epoch = divergence(
            position.fetch_offset,
            position.last_fetched_epoch,
            read.log_start_offset,
            log_end_offset,
            log.end_offset_for_epoch,
        )
        limit = log_end_offset if reader.replica_id is not None else read.high_watermark
        read.available = position.fetch_offset < limit
        if reader.rack and read.diverging_epoch is None and position.fetch_offset >= read.log_start_offset:
            read.preferred_replica = preferred_follower(self._hosted, partition, reader.rack, position.fetch_offset)
            read.available = read.available and read.preferred_replica is None
        return partition

    def _readable(self, partition: Partition, reader: Reader) -> tuple[PartitionLog, int]:
        """Return the log and the exclusive offset up to which the reader may read."""
        log = partition.begin_client_read() if reader.rack else partition.leader_log()
        return log, log.log_end_offset if reader.replica_id is not None else log.high_watermark

    def _record(
        self, run: FetchRun, partition: Partition, position: FetchPosition, read: PartitionRead, now_ms: int
    ) -> None:
        reader, session = run.reader, run.session
        assert reader.replica_id is not None
        clock = None if session is None else session.clock
        follower = partition.followers.get(reader.replica_id)
        previous = None if follower is None else follower.clock
        known = partition.record_follower_fetch(reader.replica_id, reader.broker_epoch, position, now_ms, clock)
        if known and previous is not None and previous is not clock:
            self._close_other_sessions(reader.replica_id, partition, session)
        if not known:
            read.batches = b""
            read.available = False
        elif partition.log is not None:
            # This fetch may have advanced the high watermark, and the follower may learn the new value immediately.
            read.high_watermark = partition.log.high_watermark

    def _close_other_sessions(self, owner: int, partition: Partition, session: FetchSession | None) -> None:
        """Close a follower's other sessions with this partition.

        A late copy of an earlier full fetch opens a session that the follower never uses, and takes the partition's
        clock away from the session in use. Closing the session in use makes the follower's next fetch fail with
        FETCH_SESSION_ID_NOT_FOUND, so that the follower opens a new session. Otherwise an idle follower would seem
        silent, and its leader could not prove its leadership.
        """
        others = [one for one in partition.sessions if one.owner == owner and one is not session]
        for other in others:
            self.sessions.close(other.session_id, owner)

    def would_answer(self, run: FetchRun, position: FetchPosition) -> bool | int:
        """Return True when this position requires an immediate response, otherwise its available bytes.

        For a fetch with min_bytes of at most 1 any data suffices, and the result is 1. The log is not read: the bytes
        are counted by positions in its files.
        """
        read = PartitionRead(position)
        try:
            partition = self._validate(run.reader, position, read)
            if read.diverging_epoch is not None or read.preferred_replica is not None:
                return True
            if not read.available or self._holds_back(partition, run.reader):
                return 0
            if run.limits.min_bytes <= 1:
                return 1
            log, limit = self._readable(partition, run.reader)
            topic_partition, offset = position.topic_partition, position.fetch_offset
            place = run.places.get(topic_partition) or run.places.setdefault(topic_partition, ReadPlace(offset))
            byte_count = log.bytes_below(limit, place)
            return True if byte_count is None else min(byte_count, max(position.max_bytes, 1))
        except PacelineError:
            return True

    def _end_wait(self, session: FetchSession) -> None:
        """Answer the session's waiting fetch, if there is one, with the data available now."""
        if session.waiting is not None:
            self._purgatory.force(session)

    def _forget(self, session: FetchSession, topic_partition: TopicPartition) -> None:
        if session.remove(topic_partition):
            self._detach(session, topic_partition, forgotten=True)

    def _leave(self, session: FetchSession) -> None:
        self._end_wait(session)
        for topic_partition in session.partitions:
            self._detach(session, topic_partition, forgotten=False)

    def _detach(self, session: FetchSession, topic_partition: TopicPartition, forgotten: bool) -> None:
        partition = self._hosted.online.get(topic_partition)
        if partition is not None:
            partition.leave_session(session, forgotten)


def _differs_from_last_response(read: PartitionRead) -> bool:
    """Whether the response to an incremental fetch must include the partition."""
    position = read.position
    return bool(
        read.batches
        or read.error is not None
        or read.diverging_epoch is not None
        or read.preferred_replica is not None
        or position.sent_high_watermark != read.high_watermark
        or position.sent_log_start_offset != read.log_start_offset
    )
