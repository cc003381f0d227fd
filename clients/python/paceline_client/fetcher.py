"""The consumer's background thread: one long-polling fetch per leader, offsets looked up, leaders followed.

Answers arrive on a stream for each broker and are taken in on its thread; where a broker has no stream for us, they
arrive on gRPC's threads, which only queue them. Positions and buffers are in `Assignment`, guarded by the consumer's
lock; this thread has the buffers filled ahead of `poll` up to a limit.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import grpc

from paceline.model.errors import (
    FencedLeaderEpochError,
    FetchSessionIdNotFoundError,
    InconsistentTopicIdError,
    InvalidFetchSessionEpochError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    PacelineError,
    UnknownServerError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import ConnectionBrokenError
from paceline.rpc.stream_caller import StreamCaller
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.log_service_pb2 import (
    FETCH_FORMAT_BATCHES,
    FetchPartition,
    FetchRequest,
    ForgottenPartition,
    ListOffsetsRequest,
)
from paceline.v1.log_service_pb2_grpc import LogServiceStub
from paceline_client.broker_streams import BrokerStreams
from paceline_client.call_errors import named_error
from paceline_client.clock import monotonic_ms
from paceline_client.errors import NoOffsetError
from paceline_client.fetch_session import FetchSessionHandler, SessionRequest, WantedPartition
from paceline_client.metadata import Broker
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.offsets import query_end, read_result
from paceline_client.subscription import Assignment, OffsetReset, PartitionState
from paceline_client.wire import FETCH_METHOD, FETCH_STREAM_METHOD, FetchAnswer, FetchedPartition, decode_fetch_answer

_log = logging.getLogger("paceline.client")

_BUSY_WAIT_MS: Final = 20
"""Wait of a fetch that leaves a partition out because its buffer is full: the reader may make room any moment."""
_FEW_BYTES: Final = 64 * 1024
"""After a larger answer the next fetch does not wait until somebody has taken this one."""
_BACKOFF_MS: Final = 50
_LONGEST_BACKOFF_MS: Final = 500
"""Pause between attempts at a partition that could not be read for some seconds."""
_LEADER_ONLY_MS: Final = 10_000
"""How long only the leader is read after a follower could not be."""
_NEWS_MS: Final = 1_000
"""How long only the leader is read after it named a follower that metadata does not know yet."""
_LOOKUP_TIMEOUT_S: Final = 5.0
_LONGEST_SLEEP_S: Final = 1.0
_DEADLINE_CHECK_MS: Final = 500


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """How fetches are made; names and meaning as Kafka's."""

    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    max_buffered_bytes: int
    request_timeout_ms: int
    hindrance_limit_ms: int
    """How long a partition may be out of reach before `poll` is told; the attempts go on all the same."""
    auto_offset_reset: OffsetReset
    client_rack: str = ""
    """Where the consumer is; a leader may then send it to a follower in the same rack (KIP-392)."""
    read_replica_max_age_ms: int = 300_000
    """The leader is asked anew after this."""


@dataclass(slots=True)
class _Outstanding:
    """A fetch under way, with the generation and offset each partition had when it was sent."""

    broker: Broker
    address: str
    asked: dict[TopicPartition, tuple[int, int]]
    topic_ids: dict[TopicPartition, str]
    """What each partition's topic was called besides its name."""
    call: Any = None
    """The call, when the broker has no stream for us."""
    stream: StreamCaller | None = None
    interrupted: bool = False


class Fetcher:
    """Owns the thread. `lock` is the consumer's; `on_news` is called with it held after every answer."""

    def __init__(
        self,
        config: FetchConfig,
        assignment: Assignment,
        metadata: MetadataRefresher,
        channels: ChannelCache,
        lock: threading.RLock,
        on_news: Callable[[], None],
        name: str,
    ) -> None:
        self._config = config
        self._assignment = assignment
        self._metadata = metadata
        self._channels = channels
        self._lock = lock
        self._on_news = on_news
        self._wake = threading.Condition(lock)
        self._woken = False
        self._polling = 0
        """Threads in `poll`."""
        self._put_off = False
        """Whether the next fetches wait for a poller to take what has come."""
        self._stopped = False
        self._answers: deque[Callable[[], None]] = deque()
        self._sessions: dict[str, FetchSessionHandler] = {}
        """By address, as what follows: what hangs at one does not hold up a broker that is at another now."""
        self._outstanding: dict[str, _Outstanding] = {}
        self._looking_up: set[TopicPartition] = set()
        self._lookups: set[Any] = set()
        self._methods: dict[str, Any] = {}
        self._streams = BrokerStreams(channels, FETCH_STREAM_METHOD, f"{name}-stream", one_at_a_time=True)
        self._next_deadline_check_ms = 0
        self._quiet_until: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self.failed: BaseException | None = None
        """Why the thread died, if it did."""
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    # For the consumer --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def wake(self) -> None:
        """Have the thread look for work."""
        with self._lock:
            self._woken = True
            self._wake.notify()

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        """Somebody waits for records inside of this, with the lock held but for the waiting.

        A few records that come meanwhile are theirs first: our thread goes on when they have been taken, not beside
        who takes them. Who sees nothing for them calls `go_on`.
        """
        self._polling += 1
        try:
            yield
        finally:
            self._polling -= 1
            self.go_on()

    def go_on(self) -> None:
        """Send what was put off; the lock is held."""
        if self._put_off:
            self._put_off = False
            self._woken = True
            self._wake.notify()

    def interrupt(self) -> None:
        """After a seek or a new assignment: end waiting fetches, so the new positions are asked for at once."""
        with self._lock:
            calls = [each.call for each in self._outstanding.values() if each.call is not None]
            streams = [each.stream for each in self._outstanding.values() if each.stream is not None]
            for each in self._outstanding.values():
                each.interrupted = True
        for call in calls:
            call.cancel()
        for stream in streams:
            stream.interrupt()
        self.wake()

    def close(self) -> None:
        """Cancel what is under way and join the thread."""
        with self._lock:
            self._stopped = True
            calls = [each.call for each in self._outstanding.values() if each.call is not None]
            calls.extend(self._lookups)
            self._woken = True
            self._wake.notify()
        for call in calls:
            call.cancel()
        self._streams.close()
        if threading.current_thread() is not self.thread:
            self.thread.join(5.0)

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except BaseException as failure:
            _log.exception("the consumer's fetcher failed")
            with self._lock:
                self.failed = failure
                self._on_news()

    def _round(self) -> bool:
        with self._lock:
            if self._stopped:
                return False
            answered = bool(self._answers)
            while self._answers:
                self._answers.popleft()()
            now_ms = monotonic_ms()
            lookup_wait_ms = self._look_up_positions(now_ms)
            requests, wait_ms = self._collect(now_ms)
            wait_ms = min(wait_ms, lookup_wait_ms)
            if now_ms >= self._next_deadline_check_ms:
                self._next_deadline_check_ms = now_ms + _DEADLINE_CHECK_MS
                self._streams.expire()
                self._leave_addresses()
            if answered:
                self._on_news()
            if not requests:
                if not self._woken and not self._answers:
                    self._wake.wait(min(wait_ms / 1000, _LONGEST_SLEEP_S))
                self._woken = False
        for outstanding, request in requests:
            self._send(outstanding, request)
        return True

    def _leave_addresses(self) -> None:
        """Forget where no broker is any more and nothing is under way."""
        known = {broker.address for broker in self._metadata.brokers()}
        if not known:
            return
        known |= self._outstanding.keys()
        self._streams.keep(known)
        for address in self._sessions.keys() - known:
            for kept in (self._sessions, self._quiet_until, self._failures):
                kept.pop(address, None)

    def _post(self, answer: Callable[[], None]) -> None:
        self._answers.append(answer)
        with self._lock:
            self._woken = True
            self._wake.notify()

    # Fetching ----------------------------------------------------------------------------------------------------

    def _collect(self, now_ms: int) -> tuple[list[tuple[_Outstanding, FetchRequest]], int]:
        """Return the fetches to send now, and how long to sleep when there are none."""
        config = self._config
        wait_ms = int(_LONGEST_SLEEP_S * 1000)
        full = self._assignment.buffered_bytes() >= config.max_buffered_bytes
        by_leader: dict[int, tuple[Broker, list[PartitionState]]] = {}
        left_out: dict[int, int] = {}
        """Brokers of which partitions are left out now, with the time until one may be asked for."""
        for state in self._assignment.states():
            if state.position is None or state.paused or state.error is not None:
                continue
            leader = self._metadata.leader_of(state.topic_partition)
            if leader is None:
                wait_ms = min(wait_ms, self._leaderless(state, now_ms))
                continue
            leader = self._source_of(state, leader, now_ms)
            if now_ms < state.retry_at_ms:
                retry_ms = state.retry_at_ms - now_ms
                wait_ms = min(wait_ms, retry_ms)
                left_out[leader.broker_id] = min(retry_ms, left_out.get(leader.broker_id, retry_ms))
                continue
            if full or state.buffered_bytes() >= 2 * config.max_partition_fetch_bytes:
                left_out[leader.broker_id] = min(_BUSY_WAIT_MS, left_out.get(leader.broker_id, _BUSY_WAIT_MS))
                continue
            by_leader.setdefault(leader.broker_id, (leader, []))[1].append(state)
        requests = []
        for broker_id, (leader, states) in by_leader.items():
            address = leader.address
            if address in self._outstanding:
                continue
            if now_ms < self._quiet_until.get(address, 0):
                wait_ms = min(wait_ms, self._quiet_until[address] - now_ms)
                continue
            requests.append(self._request(leader, states, left_out.get(broker_id, config.fetch_max_wait_ms)))
        return requests, max(1, wait_ms)

    def _source_of(self, state: PartitionState, leader: Broker, now_ms: int) -> Broker:
        """Return whom to fetch from: the follower the leader has named while that holds, else the leader."""
        if state.read_replica is None:
            return leader
        known = self._metadata.partition(state.topic_partition)
        replica = next((one for one in self._metadata.brokers() if one.broker_id == state.read_replica), None)
        if replica is None:
            # Left out for a moment, so that the leader's session looks at the partition again.
            state.retry_at_ms = now_ms + _BACKOFF_MS
            state.back_to_leader(now_ms + _NEWS_MS)
            self._metadata.request()
            return leader
        out_of_sync = known is None or state.read_replica not in known.isr
        if now_ms >= state.read_replica_until_ms or (
            out_of_sync and state.read_replica_version != self._metadata.version
        ):
            state.back_to_leader()
            return leader
        return replica

    def _rack_for(self, broker: Broker, states: list[PartitionState]) -> str:
        """Return the rack to tell: none while only leaders are to be read, for the leader would send us away again."""
        now_ms = monotonic_ms()
        at_followers = any(state.read_replica == broker.broker_id for state in states)
        if not at_followers and any(now_ms < state.leader_only_until_ms for state in states):
            return ""
        return self._config.client_rack

    def _request(
        self, leader: Broker, states: list[PartitionState], longest_wait_ms: int
    ) -> tuple[_Outstanding, FetchRequest]:
        config = self._config
        wanted: dict[TopicPartition, WantedPartition] = {}
        for state in states:
            tp = state.topic_partition
            known = self._metadata.partition(tp)
            wanted[tp] = WantedPartition(
                self._metadata.topic_id(tp.topic),
                state.fetch_offset,
                config.max_partition_fetch_bytes,
                None if known is None else known.leader_epoch,
                state.fetch_epoch,
            )
        address = leader.address
        session = self._sessions.setdefault(address, FetchSessionHandler()).build(wanted)
        outstanding = _Outstanding(
            leader,
            address,
            {state.topic_partition: (state.generation, state.fetch_offset) for state in states},
            {tp: each.topic_id for tp, each in wanted.items()},
        )
        self._outstanding[address] = outstanding
        wait_ms = min(config.fetch_max_wait_ms, longest_wait_ms)
        return outstanding, _wire_request(config, session, wait_ms, self._rack_for(leader, states))

    def _send(self, outstanding: _Outstanding, request: FetchRequest) -> None:
        try:
            stream = self._streams.get(outstanding.address)
        except Exception:
            with self._lock:
                self._outstanding.pop(outstanding.address, None)
                if self._stopped:
                    return
            raise
        if stream is None:
            self._call(outstanding, request)
            return
        timeout_s = (self._config.request_timeout_ms + request.max_wait_ms) / 1000
        outstanding.stream = stream
        stream.ask(request.SerializeToString(), timeout_s, lambda answer: self._answered(outstanding, request, answer))
        if outstanding.interrupted:
            stream.interrupt()

    def _answered(self, outstanding: _Outstanding, request: FetchRequest, answer: bytes | Exception) -> None:
        """Take in what a stream brought, on its thread, so that who polls hears it without another hand-over."""
        if isinstance(answer, grpc.RpcError) and answer.code() is grpc.StatusCode.UNIMPLEMENTED:
            self._streams.are_unknown(outstanding.address)
            self._call(outstanding, request)
            return
        outcome: FetchAnswer | Exception
        try:
            outcome = answer if isinstance(answer, Exception) else decode_fetch_answer(answer)
        except PacelineError as error:
            outcome = error
        with self._lock:
            outstanding.stream = None
            try:
                self._fetched(outstanding, outcome, outstanding.interrupted and isinstance(outcome, Exception))
            except Exception as failure:
                _log.exception("a fetch's answer was not taken in")
                self.failed = failure
            self._on_news()
            self._put_off = True
            if not self._polling or isinstance(answer, Exception) or len(answer) > _FEW_BYTES:
                self.go_on()

    def _call(self, outstanding: _Outstanding, request: FetchRequest) -> None:
        """Fetch in a call of its own, from a broker that has no stream for us."""
        try:
            call = self._method(outstanding.address).future(
                request, timeout=(self._config.request_timeout_ms + request.max_wait_ms) / 1000
            )
        except Exception:
            with self._lock:
                self._outstanding.pop(outstanding.address, None)
                if self._stopped:
                    return
            raise
        with self._lock:
            outstanding.call = call
            over = self._stopped or outstanding.interrupted
        if over:
            call.cancel()
        call.add_done_callback(lambda done: self._post(lambda: self._call_ended(outstanding, done)))

    def _call_ended(self, outstanding: _Outstanding, call: Any) -> None:
        if call.cancelled():
            self._fetched(outstanding, ConnectionBrokenError("cancelled"), interrupted=True)
        else:
            self._fetched(outstanding, call.exception() or call.result(), interrupted=False)

    def _method(self, address: str) -> Any:
        method = self._methods.get(address)
        if method is None:
            method = self._methods[address] = self._channels.get(address).unary_unary(
                FETCH_METHOD,
                request_serializer=FetchRequest.SerializeToString,
                response_deserializer=decode_fetch_answer,
            )
        return method

    def _fetched(self, outstanding: _Outstanding, outcome: FetchAnswer | Exception, interrupted: bool) -> None:
        broker = outstanding.broker
        self._outstanding.pop(outstanding.address, None)
        session = self._sessions[outstanding.address]
        if interrupted:
            session.reset()
            return
        if isinstance(outcome, Exception):
            session.reset()
            self._fetch_failed(outstanding, outcome)
            return
        self._failures.pop(outstanding.address, None)
        answer = outcome
        session.answered(answer.session_id)
        refused = {TopicPartition(each.topic, each.partition) for each in answer.partitions if each.error is not None}
        for tp in outstanding.asked.keys() - refused:
            reached = self._assignment.find(tp)
            if reached is not None:
                reached.reached()
        for fetched in answer.partitions:
            state = self._assignment.find(TopicPartition(fetched.topic, fetched.partition))
            if state is None or outstanding.asked.get(state.topic_partition) != (state.generation, state.fetch_offset):
                continue
            try:
                self._take(state, fetched, broker, outstanding.topic_ids[state.topic_partition])
            except PacelineError as error:
                state.error = error

    def _fetch_failed(self, outstanding: _Outstanding, failure: BaseException) -> None:
        broker = outstanding.broker
        error = named_error(broker, failure)
        if isinstance(error, (FetchSessionIdNotFoundError, InvalidFetchSessionEpochError)):
            return
        for tp, asked in outstanding.asked.items():
            state = self._assignment.find(tp)
            if state is not None and state.read_replica == broker.broker_id:
                state.back_to_leader(monotonic_ms() + _LEADER_ONLY_MS)
            elif state is not None and asked == (state.generation, state.fetch_offset):
                self._hinder(state, error, cured_by_waiting=error.retriable or isinstance(error, UnknownServerError))
        attempts = self._failures[outstanding.address] = self._failures.get(outstanding.address, 0) + 1
        self._quiet_until[outstanding.address] = monotonic_ms() + min(1_000, _BACKOFF_MS << min(attempts - 1, 8))
        self._metadata.request()

    def _hinder(self, state: PartitionState, error: PacelineError, cured_by_waiting: bool = True) -> None:
        """The partition cannot be read now: poll is told at once, or when waiting has not helped for long."""
        if not cured_by_waiting:
            state.error = error
            return
        state.hindered(error, monotonic_ms(), self._config.hindrance_limit_ms)
        if state.error is not None:
            self._on_news()

    def _leaderless(self, state: PartitionState, now_ms: int) -> int:
        """Ask for its leader; return when to look again, in ms."""
        if state.absent:
            return int(_LONGEST_SLEEP_S * 1000)
        self._metadata.request()
        tp = state.topic_partition
        known = self._metadata.partition(tp)
        if known is None:
            why = f"there is no {tp} any more"
        elif known.leader is None:
            why = f"{tp} has no leader"
        else:
            why = f"broker {known.leader}, which leads {tp}, is not alive"
        error = self._metadata.last_error or LeaderNotAvailableError(why)
        state.hindered(error, now_ms, self._config.hindrance_limit_ms)
        if state.error is not None:
            self._on_news()
        return _BACKOFF_MS

    def _take(self, state: PartitionState, fetched: FetchedPartition, broker: Broker, topic_id: str) -> None:
        if fetched.error is None and topic_id:
            if state.topic_id not in ("", topic_id):
                self._made_anew(state)
                return
            state.topic_id = topic_id
        if fetched.error is not None:
            self._take_error(state, fetched.error, broker)
        elif fetched.preferred_read_replica is not None:
            self._send_away(state, fetched.preferred_read_replica)
        elif fetched.diverging is not None:
            state.truncated(*fetched.diverging)
        else:
            state.take_fetched(fetched.batches, fetched.high_watermark, fetched.log_start_offset)

    def _made_anew(self, state: PartitionState) -> None:
        """The position is one in an earlier topic of the name; what was fetched ahead of that comes first."""
        if state.chunks:
            self._try_later(state)
            return
        reset = self._config.auto_offset_reset
        _log.warning("%s: the topic was made anew, going to the %s", state.topic_partition, reset.value)
        state.seek_to(reset)

    def _send_away(self, state: PartitionState, replica: int) -> None:
        """Read from the follower the leader names, which knows who is in sync before metadata tells."""
        known = self._metadata.partition(state.topic_partition)
        version = None
        if known is None or replica not in known.isr:
            version = self._metadata.version
            self._metadata.request()
        state.read_from(replica, monotonic_ms() + self._config.read_replica_max_age_ms, version)

    def _take_error(self, state: PartitionState, wire: PartitionError, broker: Broker) -> None:
        tp = state.topic_partition
        error = error_for(wire.code, f"{broker}: {tp}: {wire.message}")
        if state.read_replica == broker.broker_id:
            # Whatever a follower says, the leader knows better; also where the log begins and ends.
            state.back_to_leader(monotonic_ms() + _LEADER_ONLY_MS)
            if not (wire.HasField("current_leader") and self._metadata.apply_hint(tp, wire.current_leader)):
                self._metadata.request()
            return
        if isinstance(error, OffsetOutOfRangeError):
            self._out_of_range(state, wire)
            return
        if not error.retriable and not isinstance(error, (FencedLeaderEpochError, InconsistentTopicIdError)):
            state.error = error
            return
        self._hinder(state, error)
        moved = wire.HasField("current_leader") and self._metadata.apply_hint(tp, wire.current_leader)
        if not moved:
            self._try_later(state)
            self._metadata.request()

    def _out_of_range(self, state: PartitionState, wire: PartitionError) -> None:
        """The next position by policy; records fetched ahead come first, they were read before the log lost them."""
        if state.chunks:
            state.retry_at_ms = monotonic_ms() + _BACKOFF_MS
            return
        start = wire.log_start_offset if wire.HasField("log_start_offset") else None
        end = wire.high_watermark if wire.HasField("high_watermark") else None
        reset = self._config.auto_offset_reset
        if reset is OffsetReset.ERROR:
            state.error = NoOffsetError(
                state.topic_partition, f"offset {state.fetch_offset} is out of range, the log has [{start}, {end})"
            )
            return
        _log.warning(
            "%s: offset %s is out of range [%s, %s), going to the %s",
            state.topic_partition,
            state.fetch_offset,
            start,
            end,
            reset.value,
        )
        target = start if reset is OffsetReset.EARLIEST else end
        if target is None:
            state.seek_to(reset)
        else:
            state.seek(target)

    # Positions ---------------------------------------------------------------------------------------------------

    def _look_up_positions(self, now_ms: int) -> int:
        """Ask leaders for the ends that partitions without a position want; return when to look again, in ms."""
        wait_ms = int(_LONGEST_SLEEP_S * 1000)
        by_leader: dict[int, tuple[Broker, list[PartitionState]]] = {}
        for state in self._assignment.states():
            tp = state.topic_partition
            if state.position is not None or state.error is not None or tp in self._looking_up:
                continue
            if state.reset is None or state.reset is OffsetReset.ERROR:
                state.error = NoOffsetError(tp, 'it has no position and auto_offset_reset is "error"; seek first')
                self._on_news()
                continue
            if now_ms < state.retry_at_ms:
                wait_ms = min(wait_ms, state.retry_at_ms - now_ms)
                continue
            leader = self._metadata.leader_of(tp)
            if leader is None:
                wait_ms = min(wait_ms, self._leaderless(state, now_ms))
                continue
            by_leader.setdefault(leader.broker_id, (leader, []))[1].append(state)
        for leader, states in by_leader.values():
            self._ask_ends(leader, states)
        return wait_ms

    def _ask_ends(self, leader: Broker, states: list[PartitionState]) -> None:
        asked = {state.topic_partition: state.generation for state in states}
        queries = [query_end(state.topic_partition, state.reset or OffsetReset.EARLIEST) for state in states]
        self._looking_up.update(asked)
        call = LogServiceStub(self._channels.get(leader.address)).ListOffsets.future(
            ListOffsetsRequest(partitions=queries), timeout=_LOOKUP_TIMEOUT_S
        )
        self._lookups.add(call)
        call.add_done_callback(lambda done: self._post(lambda: self._take_ends(leader, asked, done)))

    def _take_ends(self, leader: Broker, asked: dict[TopicPartition, int], call: Any) -> None:
        self._lookups.discard(call)
        self._looking_up.difference_update(asked)
        failure = None if call.cancelled() else call.exception()
        if call.cancelled() or failure is not None:
            if isinstance(failure, grpc.RpcError):
                self._lookup_failed(asked, named_error(leader, failure))
            self._delay(asked)
            return
        for result in call.result().partitions:
            tp = TopicPartition(result.topic, result.partition)
            state = self._assignment.find(tp)
            if state is None or asked.get(tp) != state.generation or state.position is not None:
                continue
            try:
                place = read_result(result)
            except PacelineError as error:
                self._lookup_refused(state, error, result.error)
            else:
                if place is not None:
                    state.seek(place.offset)

    def _lookup_failed(self, asked: dict[TopicPartition, int], error: PacelineError) -> None:
        for tp, generation in asked.items():
            state = self._assignment.find(tp)
            if state is not None and state.generation == generation:
                self._hinder(state, error, cured_by_waiting=error.retriable or isinstance(error, UnknownServerError))

    def _lookup_refused(self, state: PartitionState, error: PacelineError, wire: PartitionError) -> None:
        if not error.retriable and not isinstance(error, FencedLeaderEpochError):
            state.error = error
            return
        self._hinder(state, error)
        if not (
            wire.HasField("current_leader") and self._metadata.apply_hint(state.topic_partition, wire.current_leader)
        ):
            self._delay([state.topic_partition])

    def _delay(self, partitions: Any) -> None:
        self._metadata.request()
        for tp in partitions:
            state = self._assignment.find(tp)
            if state is not None:
                self._try_later(state)

    def _try_later(self, state: PartitionState) -> None:
        """Leave a partition alone for a quarter of the time for which it could not be read, within limits."""
        now_ms = monotonic_ms()
        hindered_ms = 0 if state.hindered_since_ms is None else now_ms - state.hindered_since_ms
        state.retry_at_ms = now_ms + min(max(_BACKOFF_MS, hindered_ms // 4), _LONGEST_BACKOFF_MS)


def _wire_request(config: FetchConfig, session: SessionRequest, wait_ms: int, rack: str) -> FetchRequest:
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        format=FETCH_FORMAT_BATCHES,
        session_id=session.session_id,
        session_epoch=session.session_epoch,
        rack_id=rack,
        forgotten=[ForgottenPartition(topic=tp.topic, partition=tp.partition) for tp in session.forgotten],
    )
    for tp, wanted in session.partitions.items():
        partition = FetchPartition(
            topic=tp.topic,
            partition=tp.partition,
            topic_id=wanted.topic_id,
            fetch_offset=wanted.fetch_offset,
            max_bytes=wanted.max_bytes,
        )
        if wanted.current_leader_epoch is not None:
            partition.current_leader_epoch = wanted.current_leader_epoch
        if wanted.last_fetched_epoch is not None:
            partition.last_fetched_epoch = wanted.last_fetched_epoch
        request.partitions.append(partition)
    return request
