"""Fetch the partitions that one broker leads: one request at a time, applied partition by partition.

A response is applied to a partition only if it answers the request in flight, and the partition is still fetched, at
the offset and in the leader epoch of the request. A partition with an error is delayed, or fails until the next
LeaderAndIsr for it; all other partitions continue.
Source: docs/protocol/replication.md#applying-a-fetch-response.
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import partial
from typing import Final

from paceline.broker.fetcher.fetch_state import FetchState
from paceline.broker.fetcher.follower_log import FollowerLog
from paceline.broker.fetcher.leader_contact import LeaderContact
from paceline.broker.interfaces import BrokerTransport
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.partition import Partition
from paceline.broker.storage.replica_storage import ReplicaStorage
from paceline.log.damage import DamagedLogError
from paceline.log.directory_space import Room
from paceline.log.partition_log import PartitionLog
from paceline.model.control import LiveBroker
from paceline.model.errors import (
    BrokerNotAvailableError,
    CorruptMessageError,
    ErrorCode,
    InvalidRecordError,
    InvalidTransitionError,
    KafkaStorageError,
    LogDirFullError,
)
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import (
    EpochEnd,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from paceline.model.state_change import StateChangeKind
from paceline.replication.fetch_session import INITIAL_EPOCH, MAX_EPOCH, NO_SESSION
from paceline.replication.truncation import truncation_point

_FIRST_DELAY_DIVISOR: Final = 16
_READERS_MS: Final = 10_000
"""Time after a client's latest fetch for which the client is expected to continue reading from this follower."""
_QUOTA_CHECK_MS: Final = 250
"""Interval at which replicas that wait for the quota are checked."""
_NOT_YET_ERRORS: Final = (
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
)
"""Errors that usually mean that a control request has reached this follower but not yet the leader."""
_SESSION_ERRORS = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)


class Activity(Enum):
    """Activity of a fetcher."""

    IDLE = auto()
    FETCHING = auto()
    PAUSED = auto()
    """The latest request failed; the next one waits for the back-off."""
    CLOSED = auto()


VALID_PREVIOUS: Final = {
    Activity.IDLE: {Activity.FETCHING, Activity.PAUSED},
    Activity.FETCHING: {Activity.IDLE},
    Activity.PAUSED: {Activity.IDLE},
    Activity.CLOSED: set(Activity),
}


class ReplicaFetcher:
    """A fetcher for one leader. Runs on the node's scheduler; the transport owns the connection."""

    def __init__(
        self,
        leader: LiveBroker,
        fetcher_id: int,
        transport: BrokerTransport,
        hosted: HostedPartitions,
        storage: ReplicaStorage,
        on_failed: Callable[[TopicPartition], None],
        on_idle: Callable[[], None],
    ) -> None:
        self.leader = leader
        self.fetcher_id = fetcher_id
        self._config = config = hosted.config
        self._scheduler = scheduler = hosted.scheduler
        self._transport = transport
        self._hosted = hosted
        self._storage = storage
        self._quota = hosted.quotas.follower
        self._on_failed = on_failed
        self._on_idle = on_idle
        self._states: dict[TopicPartition, FetchState] = {}
        self._named: dict[TopicPartition, None] = {}
        """Partitions in the leader's session, or to be put into the next session."""
        self._changed: dict[TopicPartition, None] = {}
        """Partitions that the next incremental request must list."""
        self._forgotten: dict[TopicPartition, None] = {}
        """Partitions that the next incremental request must remove from the session."""
        self._delayed_count = 0
        self._held_back: dict[TopicPartition, FetchState] = {}
        """Delayed partitions that wait for the quota."""
        self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH
        self._activity = Activity.IDLE
        self._latest: ReplicaFetchRequest | None = None
        self._answered_ms = scheduler.now_ms()
        self.contact = LeaderContact(leader, config)
        self._was_answered = False
        self.is_broken = False
        """Whether the connection broke after the leader had answered, and the leader has not answered since."""
        self._read_until_ms = scheduler.now_ms()
        """Time until which clients are expected to read from this follower."""
        self.request_count = 0
        self.bytes_in = 0

    def __len__(self) -> int:
        return len(self._states)

    @property
    def states(self) -> dict[TopicPartition, FetchState]:
        """States of the partitions, read-only."""
        return self._states

    def add(self, partition: Partition) -> None:
        """Fetch a partition in its current leader epoch; does nothing when it is already fetched in that epoch.

        A log without leader epochs is first truncated to its high watermark, because only committed
        records are known to be in the leader's log.
        """
        topic_partition = partition.topic_partition
        known = self._states.get(topic_partition)
        if known is not None and known.partition is partition and known.leader_epoch == partition.leader_epoch:
            return
        log, follower_log = partition.log, FollowerLog(partition, self._hosted)
        assert log is not None
        if log.latest_epoch is None and log.high_watermark < log.log_end_offset:
            follower_log.truncate_to(log.high_watermark, "no leader epoch is known")
        self.remove(topic_partition)
        self._states[topic_partition] = FetchState(
            partition,
            follower_log,
            self._scheduler.now_ms(),
            partition.leader_epoch,
            log.log_end_offset,
            log.latest_epoch,
        )
        self._include(topic_partition)

    def remove(self, topic_partition: TopicPartition) -> FetchState | None:
        """Stop fetching a partition; a response in flight is not applied to it."""
        state = self._states.pop(topic_partition, None)
        if state is not None:
            self._exclude(topic_partition)
            if state.delayed:
                self._delayed_count -= 1
        return state

    def _enter(self, activity: Activity) -> None:
        if self._activity not in VALID_PREVIOUS[activity]:
            raise InvalidTransitionError(f"{self._activity} does not precede {activity}")
        self._activity = activity

    def close(self) -> None:
        """Drop all partitions and close the connection."""
        self._enter(Activity.CLOSED)
        self._states = {}
        self._transport.close_fetcher(self.leader.broker_id, self.fetcher_id)

    def run(self) -> None:
        """Send the next request if none is in flight and a partition can be fetched, or the latest request failed."""
        if self._activity is not Activity.IDLE:
            return
        if self._quota.lists_any:
            self._hold_back_throttled()
        if len(self._states) <= self._delayed_count and self.contact.unanswered_since_ms is None:
            return
        request = self._latest = self._build()
        self._enter(Activity.FETCHING)
        self.request_count += 1
        if self.contact.unanswered_since_ms is None:
            self.contact.unanswered_since_ms = self._scheduler.now_ms()
        self._transport.replica_fetch(
            self.leader,
            self.fetcher_id,
            request,
            self._config.replica_socket_timeout_ms,
            lambda answer: self._answered(request, answer),
        )

    def _build(self) -> ReplicaFetchRequest:
        if self._session_epoch == INITIAL_EPOCH:
            listed = [state for state in self._states.values() if not state.delayed]
            forgotten: list[TopicPartition] = []
            self._named = {}
        else:
            listed = [self._states[topic_partition] for topic_partition in self._changed]
            forgotten = list(self._forgotten)
            for topic_partition in forgotten:
                del self._named[topic_partition]
        self._changed = {}
        self._forgotten = {}
        config = self._config
        return ReplicaFetchRequest(
            replica_id=config.broker_id,
            broker_epoch=self._hosted.contact.broker_epoch,
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            partitions=[self._name(state) for state in listed],
            forgotten=forgotten,
            wants_high_watermark=self._has_readers(),
        )

    def _name(self, state: FetchState) -> FetchPosition:
        partition = state.partition
        log = partition.log
        assert log is not None
        self._named[partition.topic_partition] = None
        state.sent_offset = state.fetch_offset
        state.sent_log_start_offset = log.log_start_offset
        return FetchPosition(
            partition.topic_partition,
            partition.topic_id,
            state.fetch_offset,
            # Without room one batch is too much, but high watermark and log start allow retention to make room.
            1 if log.directory.space.room is Room.FULL else self._config.replica_fetch_max_bytes,
            state.leader_epoch,
            state.last_fetched_epoch,
            state.sent_log_start_offset,
        )

    def note_reader(self) -> bool:
        """Record a client's read of a partition of this fetcher; return whether the leader has answered recently.

        While clients read from this follower, the leader is asked to report every high watermark at once (KIP-392).
        """
        now_ms = self._scheduler.now_ms()
        self._read_until_ms = now_ms + _READERS_MS
        return now_ms - self._answered_ms <= self._config.replica_lag_time_max_ms

    def _has_readers(self) -> bool:
        return self._scheduler.now_ms() < self._read_until_ms

    def _include(self, topic_partition: TopicPartition) -> None:
        self._changed[topic_partition] = None
        self._forgotten.pop(topic_partition, None)

    def _exclude(self, topic_partition: TopicPartition) -> None:
        self._changed.pop(topic_partition, None)
        if topic_partition in self._named:
            self._forgotten[topic_partition] = None

    # Responses

    def _answered(self, request: ReplicaFetchRequest, answer: ReplicaFetchResponse | Exception) -> None:
        if self._activity is not Activity.FETCHING or self._latest is not request:
            return
        self._enter(Activity.IDLE)
        self._note_connection(answer)
        if isinstance(answer, Exception) or answer.error is not ErrorCode.NONE:
            self._request_failed(request, None if isinstance(answer, Exception) else answer.error)
        else:
            self._advance_session(request, answer)
            self._answered_ms = self._scheduler.now_ms()
            self._apply(answer.results)
            self._storage.make_log_starts_durable()
            self._hosted.deliver_changes()
        if not self._states:
            self._on_idle()
        self.run()

    def _note_connection(self, answer: ReplicaFetchResponse | Exception) -> None:
        cause = self.contact.ended(answer if isinstance(answer, Exception) else None, self._scheduler.now_ms())
        if cause is not None:
            self._hosted.listener.leader_does_not_answer(self.leader.broker_id, cause)
        if not isinstance(answer, Exception):
            self._was_answered, self.is_broken = True, False
        elif isinstance(answer, BrokerNotAvailableError) and self._was_answered and not self.is_broken:
            self.is_broken = True
            self._hosted.listener.fetch_connection_broke()

    def _request_failed(self, request: ReplicaFetchRequest, error: ErrorCode | None) -> None:
        """Restart with a full fetch: at once when only the session was lost, otherwise after the back-off."""
        if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._session_id = NO_SESSION
        self._session_epoch = INITIAL_EPOCH
        if error in _SESSION_ERRORS and request.session_epoch != INITIAL_EPOCH:
            return
        self._enter(Activity.PAUSED)
        self._scheduler.call_later(self._config.replica_fetch_backoff_ms, self._resume)

    def _resume(self) -> None:
        if self._activity is Activity.PAUSED:
            self._enter(Activity.IDLE)
            self.run()

    def _advance_session(self, request: ReplicaFetchRequest, answer: ReplicaFetchResponse) -> None:
        if request.session_epoch == INITIAL_EPOCH:
            self._session_id = answer.session_id
            self._session_epoch = INITIAL_EPOCH if answer.session_id == NO_SESSION else 1
        else:
            self._session_epoch = 1 if self._session_epoch == MAX_EPOCH else self._session_epoch + 1

    def _apply(self, results: Iterable[ReplicaFetchResult]) -> None:
        delayed: list[FetchState] = []
        for result in results:
            state = self._states.get(result.topic_partition)
            if state is None or not self._is_current(state, result):
                continue
            try:
                fine = self._apply_to(state, result)
            except DamagedLogError as error:
                # This replica's own log is damaged, not the leader's data.
                self._storage.log_damaged(result.topic_partition, error)
                fine = False
            except (CorruptMessageError, InvalidRecordError):
                fine = False
            except LogDirFullError:
                # The log may have taken some of the batches.
                assert state.partition.log is not None
                self._moved(state, state.partition.log)
                fine = False
            except KafkaStorageError as error:
                self._fail(state, str(error))
                self._storage.storage_failed()
                continue
            except Exception as error:
                # Any other error affects only this partition; all others continue (KAFKA-8346).
                self._fail(state, f"{type(error).__name__}: {error}")
                continue
            if not fine:
                delayed.append(state)
        self._delay(delayed)

    def _is_current(self, state: FetchState, result: ReplicaFetchResult) -> bool:
        partition = state.partition
        return (
            not state.delayed
            and state.sent_offset == state.fetch_offset
            and partition.leader_epoch == state.leader_epoch
            and not partition.is_leader
            and partition.log is not None
            and (result.error is not ErrorCode.NONE or result.leader_epoch in (-1, state.leader_epoch))
        )

    def _apply_to(self, state: FetchState, result: ReplicaFetchResult) -> bool:
        """Apply one result; return False when the partition must be delayed, True also after `_fail` has removed it."""
        log = state.partition.log
        assert log is not None
        if result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(state, log, result)
        if result.error is ErrorCode.FENCED_LEADER_EPOCH:
            self._fail(state, f"leader epoch {state.leader_epoch} is fenced")
            return True
        if result.error is not ErrorCode.NONE:
            if result.error not in _NOT_YET_ERRORS:
                state.delay_ms = None
            else:
                self._lengthen_delay(state)
            return False
        if result.batches and self._awaits_settings(state, log):
            self._lengthen_delay(state)
            return False
        state.delay_ms = None
        if result.diverging_epoch is not None:
            return self._diverged(state, log, result.diverging_epoch)
        if state.fetch_offset != log.log_end_offset:
            self._fail(state, f"fetched at {state.fetch_offset}, the log ends at {log.log_end_offset}")
            return True
        state.follower_log.append(result.batches, result.high_watermark, result.log_start_offset)
        self.bytes_in += len(result.batches)
        if result.batches:
            is_added = self._hosted.broker_id in state.partition.adding_replicas
            self._hosted.traffic.copied(result.topic_partition.topic, len(result.batches), is_added)
        if self._quota.is_throttled(result.topic_partition):
            self._quota.record(len(result.batches), self._scheduler.now_ms())
        self._moved(state, log)
        state.lag = max(0, result.high_watermark - state.fetch_offset)
        return True

    def _lengthen_delay(self, state: FetchState) -> None:
        first_ms = self._config.replica_fetch_backoff_ms / _FIRST_DELAY_DIVISOR
        state.delay_ms = first_ms if state.delay_ms is None else state.delay_ms * 2

    def _awaits_settings(self, state: FetchState, log: PartitionLog) -> bool:
        """Whether the log's first records must wait until the topic's settings are read.

        Otherwise its segments would have the broker's default size. After half of ``replica.lag.time.max.ms`` the
        records are copied nevertheless.
        """
        if not self._hosted.topic_configs.is_unread(state.partition.topic_partition.topic) or log.size_bytes:
            return False
        return self._scheduler.now_ms() - state.since_ms < self._config.replica_lag_time_max_ms / 2

    def _moved(self, state: FetchState, log: PartitionLog) -> bool:
        """Set the fetch position to the log's end; return whether the next request must list the partition."""
        before = (state.sent_offset, state.last_fetched_epoch, state.sent_log_start_offset)
        state.take_position(log)
        changed = before != (state.fetch_offset, state.last_fetched_epoch, log.log_start_offset)
        if changed:
            self._include(state.partition.topic_partition)
        return changed

    def _diverged(self, state: FetchState, log: PartitionLog, leader_end: EpochEnd) -> bool:
        offset = truncation_point(leader_end, log.log_end_offset, log.end_offset_for_epoch)
        reason = f"epoch {leader_end.epoch} of the leader ends at {leader_end.end_offset}"
        state.follower_log.truncate_to(offset, reason)
        return self._moved(state, log)

    def _out_of_range(self, state: FetchState, log: PartitionLog, result: ReplicaFetchResult) -> bool:
        if result.log_end_offset < 0 or result.log_start_offset < 0:
            return False
        # After an unclean election the leader's log may end before the first local record. Its records may then differ
        # from the records that were deleted from the beginning of this log.
        lies_beyond = result.log_start_offset < result.log_end_offset <= log.log_start_offset
        if lies_beyond or result.log_start_offset > log.log_end_offset:
            state.follower_log.restart_at(result.log_start_offset)
        elif result.log_end_offset < log.log_end_offset:
            state.follower_log.truncate_to(result.log_end_offset, "the leader's log ends there")
        return self._moved(state, log)

    def _fail(self, state: FetchState, reason: str) -> None:
        topic_partition = state.partition.topic_partition
        self.remove(topic_partition)
        self._on_failed(topic_partition)
        self._hosted.emit(StateChangeKind.FETCHER_FAILED, state.partition, cause=reason)

    # Delays

    def _delay(self, states: list[FetchState]) -> None:
        """Omit partitions from fetches for the back-off, or for less time after a transient error."""
        by_delay: dict[float, list[FetchState]] = {}
        backoff_ms = self._config.replica_fetch_backoff_ms
        for state in states:
            state.delayed = True
            self._exclude(state.partition.topic_partition)
            delay_ms = backoff_ms if state.delay_ms is None else min(state.delay_ms, backoff_ms)
            by_delay.setdefault(delay_ms, []).append(state)
        self._delayed_count += len(states)
        for delay_ms, delayed in by_delay.items():
            self._scheduler.call_later(delay_ms, partial(self._end_delay, delayed))

    def _end_delay(self, states: list[FetchState]) -> None:
        for state in states:
            topic_partition = state.partition.topic_partition
            if self._states.get(topic_partition) is state:
                state.delayed = False
                self._delayed_count -= 1
                self._include(topic_partition)
        self.run()

    # The quota

    def _hold_back_throttled(self) -> None:
        """Omit throttled replicas that are not in sync from fetches while the quota is exceeded."""
        if not self._quota.is_exceeded(self._scheduler.now_ms()):
            return
        held = {
            topic_partition: state
            for topic_partition, state in self._states.items()
            if not state.delayed and self._quota.is_throttled(topic_partition) and not state.is_in_sync
        }
        for topic_partition, state in held.items():
            state.delayed = True
            self._exclude(topic_partition)
        self._delayed_count += len(held)
        if held and not self._held_back:
            self._scheduler.call_later(_QUOTA_CHECK_MS, self._release_throttled)
        self._held_back.update(held)

    def _release_throttled(self) -> None:
        """Continue with replicas that need not wait any more, and check the remaining replicas again later."""
        if self._activity is Activity.CLOSED:
            return
        exceeded = self._quota.is_exceeded(self._scheduler.now_ms())
        free = [state for tp, state in self._held_back.items() if not exceeded or not self._quota.is_throttled(tp)]
        for state in free:
            del self._held_back[state.partition.topic_partition]
        if self._held_back:
            self._scheduler.call_later(_QUOTA_CHECK_MS, self._release_throttled)
        self._end_delay(free)
