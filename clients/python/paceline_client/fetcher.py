"""The consumer's background thread: keeps one long-polling fetch per leader in flight and follows leader changes.

Responses arrive on one stream per broker, or from a broker without streams on gRPC's threads, and are processed there.
Positions and buffers are in `Assignment`, guarded by the consumer's lock; this thread fills the buffers ahead of `poll`
up to a limit.

`fetch_request.py` has the fetch itself, `fetch_response.py` processes the result of a partition,
`position_lookup.py` finds start positions, `read_replicas.py` reads from followers, `partition_errors.py` handles
partitions that cannot be read.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from paceline.model.errors import FetchSessionIdNotFoundError, InvalidFetchSessionEpochError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import ChannelCache
from paceline.v1.log_service_pb2 import FetchRequest
from paceline_client.broker_streams import BrokerStreams
from paceline_client.call_errors import named_error
from paceline_client.clock import monotonic_ms
from paceline_client.fetch_request import FetchConfig, OutstandingFetch, wire_request
from paceline_client.fetch_response import PartitionResults
from paceline_client.fetch_session import FetchSessionHandler, WantedPartition
from paceline_client.metadata import Broker
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.partition_errors import BACKOFF_MS, LONGEST_SLEEP_MS, PartitionErrors
from paceline_client.position_lookup import PositionLookup
from paceline_client.read_replicas import LEADER_ONLY_MS, rack_to_tell, source_of
from paceline_client.subscription import Assignment, PartitionState
from paceline_client.throttle import Throttles
from paceline_client.wire import FETCH_METHOD, FetchAnswer, decode_fetch_answer

LOG = logging.getLogger("paceline.client")

_BUSY_WAIT_MS: Final = 20
"""Wait of a fetch that omits a partition because its buffer is full: `poll` may free the buffer any moment."""
_SMALL_RESPONSE_BYTES: Final = 64 * 1024
"""After a larger response the next fetch is sent at once, without waiting until `poll` has taken the records."""
_DEADLINE_CHECK_MS: Final = 500


class Fetcher:
    """Owns the fetcher thread. `lock` is the consumer's; `on_news` is called with the lock held after each response."""

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
        self._lock = lock
        self._on_news = on_news
        self._wake = threading.Condition(lock)
        self._woken = False
        self._polling = 0
        """Number of threads in `poll`."""
        self._has_deferred = False
        """Whether the next fetches wait until `poll` has taken the records."""
        self._stopped = False
        self._answers: deque[Callable[[], None]] = deque()
        self._sessions: dict[str, FetchSessionHandler] = {}
        """Fetches in flight by address, not by broker id: a hanging address must not block a broker that has moved."""
        self._outstanding: dict[str, OutstandingFetch] = {}
        self._streams = BrokerStreams(channels, FETCH_METHOD, f"{name}-stream", one_at_a_time=True)
        self._next_deadline_check_ms = 0
        self._quiet_until: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self.throttles = Throttles()
        errors = self._errors = PartitionErrors(metadata, config.failure_limit_ms, on_news)
        self._partitions = PartitionResults(config, metadata, errors)
        self._positions = PositionLookup(assignment, metadata, channels, errors, self._post, on_news)
        self.failed: BaseException | None = None
        """Error that ended the thread, None while it runs."""
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    # For the consumer --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def wake(self) -> None:
        """Wake the thread to look for work."""
        with self._lock:
            self._woken = True
            self._wake.notify()

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        """Mark that a thread waits for records in `poll`; the lock is held except during the wait.

        When a few records arrive during the wait, the polling thread takes them before the fetcher sends the next
        fetches, so that the two threads do not compete for the CPU. A poller without records calls `go_on`.
        """
        self._polling += 1
        try:
            yield
        finally:
            self._polling -= 1
            self.go_on()

    def go_on(self) -> None:
        """Send the deferred fetches; the lock must be held."""
        if self._has_deferred:
            self._has_deferred = False
            self._woken = True
            self._wake.notify()

    def interrupt(self) -> None:
        """Cancel waiting fetches after a seek or a new assignment, so that the new positions are fetched at once."""
        with self._lock:
            outstanding = list(self._outstanding.values())
            for each in outstanding:
                each.interrupted = True
        for each in outstanding:
            each.end()
        self.wake()

    def close(self) -> None:
        """Cancel the calls in flight and join the thread."""
        with self._lock:
            self._stopped = True
        self.interrupt()
        self._streams.close()
        if threading.current_thread() is not self.thread:
            self.thread.join(5.0)

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except BaseException as failure:
            LOG.exception("the consumer's fetcher failed")
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
            lookup_wait_ms = self._positions.look_up(now_ms)
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
                    self._wake.wait(min(wait_ms, LONGEST_SLEEP_MS) / 1000)
                self._woken = False
        for outstanding, request in requests:
            self._send(outstanding, request)
        return True

    def _leave_addresses(self) -> None:
        """Remove addresses that no longer belong to a broker and have no call in flight."""
        known = {broker.address for broker in self._metadata.brokers()}
        for address in self._sessions.keys() - known - self._outstanding.keys():
            for kept in (self._sessions, self._quiet_until, self._failures):
                kept.pop(address, None)

    def _post(self, answer: Callable[[], None]) -> None:
        self._answers.append(answer)
        with self._lock:
            self._woken = True
            self._wake.notify()

    # Fetching ----------------------------------------------------------------------------------------------------

    def _collect(self, now_ms: int) -> tuple[list[tuple[OutstandingFetch, FetchRequest]], int]:
        """Return the fetches to send now, and how long to sleep when there are none."""
        config, metadata = self._config, self._metadata
        wait_ms = LONGEST_SLEEP_MS
        full = self._assignment.buffered_bytes() >= config.max_buffered_bytes
        by_leader: dict[int, tuple[Broker, list[PartitionState]]] = {}
        left_out: dict[int, int] = {}
        """Brokers with partitions that are omitted now, and the time until such a partition may be fetched."""
        for state in self._assignment.states():
            if state.position is None or state.paused or state.error is not None:
                continue
            leader = metadata.cluster.leader_of(state.topic_partition)
            if leader is None:
                wait_ms = min(wait_ms, self._errors.leaderless(state, now_ms))
                continue
            leader = source_of(state, leader, metadata, now_ms)
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
            quiet_ms = max(self._quiet_until.get(address, 0) - now_ms, self.throttles.left_ms(address, now_ms))
            if quiet_ms > 0:
                wait_ms = min(wait_ms, quiet_ms)
                continue
            requests.append(self._request(leader, states, left_out.get(broker_id, config.fetch_max_wait_ms)))
        return requests, max(1, wait_ms)

    def _request(
        self, leader: Broker, states: list[PartitionState], longest_wait_ms: int
    ) -> tuple[OutstandingFetch, FetchRequest]:
        config = self._config
        wanted: dict[TopicPartition, WantedPartition] = {}
        for state in states:
            tp = state.topic_partition
            known = self._metadata.cluster.partition(tp)
            wanted[tp] = WantedPartition(
                self._metadata.cluster.topic_id(tp.topic),
                state.fetch_offset,
                config.max_partition_fetch_bytes,
                None if known is None else known.leader_epoch,
                state.fetch_epoch,
            )
        address = leader.address
        session = self._sessions.setdefault(address, FetchSessionHandler()).build(wanted)
        outstanding = OutstandingFetch(
            leader,
            address,
            {state.topic_partition: (state.generation, state.fetch_offset) for state in states},
            {tp: each.topic_id for tp, each in wanted.items()},
        )
        self._outstanding[address] = outstanding
        wait_ms = min(config.fetch_max_wait_ms, longest_wait_ms)
        rack = rack_to_tell(config.client_rack, leader, states)
        return outstanding, wire_request(config, session, wait_ms, rack)

    def _send(self, outstanding: OutstandingFetch, request: FetchRequest) -> None:
        timeout_s = (self._config.request_timeout_ms + request.max_wait_ms) / 1000
        answered = partial(self._answered, outstanding)
        try:
            outstanding.end = self._streams.ask(outstanding.address, request.SerializeToString(), timeout_s, answered)
        except Exception:
            with self._lock:
                self._outstanding.pop(outstanding.address, None)
                if self._stopped:
                    return
            raise
        if outstanding.interrupted:
            outstanding.end()

    def _answered(self, outstanding: OutstandingFetch, answer: bytes | Exception) -> None:
        """Process a response on the thread on which it arrived, so that `poll` wakes without another thread switch."""
        outcome: FetchAnswer | Exception
        try:
            outcome = answer if isinstance(answer, Exception) else decode_fetch_answer(answer)
        except PacelineError as error:
            outcome = error
        with self._lock:
            try:
                self._fetched(outstanding, outcome, outstanding.interrupted and isinstance(outcome, Exception))
            except Exception as failure:
                LOG.exception("processing a fetch response failed")
                self.failed = failure
            self._on_news()
            self._has_deferred = True
            if not self._polling or isinstance(answer, Exception) or len(answer) > _SMALL_RESPONSE_BYTES:
                self.go_on()

    def _fetched(self, outstanding: OutstandingFetch, outcome: FetchAnswer | Exception, interrupted: bool) -> None:
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
        self.throttles.note(outstanding.address, answer.throttle_ms, monotonic_ms())
        session.answered(answer.session_id)
        refused = {TopicPartition(each.topic, each.partition) for each in answer.partitions if each.error is not None}
        for tp in outstanding.asked.keys() - refused:
            reached = self._assignment.find(tp)
            if reached is not None:
                reached.read_succeeded()
        take = self._partitions.take
        for fetched in answer.partitions:
            state = self._assignment.find(TopicPartition(fetched.topic, fetched.partition))
            if state is None or outstanding.asked.get(state.topic_partition) != (state.generation, state.fetch_offset):
                continue
            try:
                take(state, fetched, broker, outstanding.topic_ids[state.topic_partition])
            except PacelineError as error:
                state.error = error

    def _fetch_failed(self, outstanding: OutstandingFetch, failure: BaseException) -> None:
        broker = outstanding.broker
        error = named_error(broker, failure)
        if isinstance(error, (FetchSessionIdNotFoundError, InvalidFetchSessionEpochError)):
            return
        for tp, asked in outstanding.asked.items():
            state = self._assignment.find(tp)
            if state is not None and state.read_replica == broker.broker_id:
                state.back_to_leader(monotonic_ms() + LEADER_ONLY_MS)
            elif state is not None and asked == (state.generation, state.fetch_offset):
                self._errors.call_failed(state, error)
        attempts = self._failures[outstanding.address] = self._failures.get(outstanding.address, 0) + 1
        self._quiet_until[outstanding.address] = monotonic_ms() + min(1_000, BACKOFF_MS << min(attempts - 1, 8))
        self._metadata.request()
