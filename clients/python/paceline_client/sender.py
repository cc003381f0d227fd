"""The producer's background thread: drains the accumulator, sends Produce requests, processes responses.

A request carries a batch of every ready partition of one leader. Several requests per broker are in flight, on one
stream, or as unary calls when the broker has no streams. Responses arrive on the threads of streams or of gRPC, which
process successful responses under the producer's lock and queue all other responses for this thread. User callbacks run
only on this thread, without the lock.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import grpc

from paceline.model.client_io import RequiredAcks
from paceline.model.errors import (
    LeaderNotAvailableError,
    PacelineError,
    UnknownServerError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import error_info
from paceline.v1.log_service_pb2 import (
    ProducePartitionResult,
    ProduceResponse,
)
from paceline_client.accumulator import Accumulator
from paceline_client.batch import ProducerBatch
from paceline_client.broker_streams import BrokerStreams
from paceline_client.call_errors import named_error
from paceline_client.clock import monotonic_ms
from paceline_client.errors import ProducerClosedError, ProducerFatalError
from paceline_client.metadata import Broker
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.partition_queue import Gap, Leader
from paceline_client.produce_request import SenderConfig, SentRequest
from paceline_client.producer_ids import ProducerIds
from paceline_client.throttle import Throttles
from paceline_client.wire import PRODUCE_METHOD

LOG = logging.getLogger("paceline.client")

_LONGEST_SLEEP_S: Final = 1.0
_DEADLINE_CHECK_MS: Final = 250


class Sender:
    """Owns the sender thread. `lock` is the producer's: `Producer` holds it to append, the sender to update batches."""

    def __init__(
        self,
        config: SenderConfig,
        accumulator: Accumulator,
        metadata: MetadataRefresher,
        channels: ChannelCache,
        lock: threading.RLock,
        on_space: Callable[[], None],
        name: str,
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._metadata = metadata
        self._lock = lock
        self._on_space = on_space
        self._wake = threading.Condition(lock)
        self._woken = False
        self._answers: deque[Callable[[], None]] = deque()
        self._in_flight: dict[str, int] = {}
        """Requests in flight by address, not by broker id: a hanging address must not block a broker that has moved."""
        self.throttles = Throttles()
        self._producer_ids = ProducerIds(accumulator, metadata, channels, self._post)
        self._streams = BrokerStreams(channels, PRODUCE_METHOD, f"{name}-stream")
        self._next_deadline_check_ms = 0
        self._unreported: list[ProducerBatch] = []
        """Resolved batches whose callbacks have not run."""
        self._reporting: list[ProducerBatch] = []
        """Batches whose callbacks are running; the callbacks of the last batch may have returned."""
        self._draining = False
        self._stopped = False
        self._sleeping = False
        """Whether the sender thread waits for a notification, so that it is not handing a request to a stream."""
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    # For the producer --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def wake(self) -> None:
        """Wake the thread to look for work; may be called with or without the lock."""
        with self._lock:
            self._woken = True
            self._wake.notify()

    def metadata_refreshed(self) -> None:
        """Retry at new leaders at once; while a batch waits for a new leader, request the next refresh."""
        with self._lock:
            if self._accumulator.retry_at_new_leaders(self._leader, monotonic_ms()):
                self._metadata.request()
        self.wake()

    def send_now(self) -> None:
        """Send ready batches on the caller's thread, which holds the lock; leave complex cases to the sender thread.

        A record without linger then reaches its broker without a thread switch. This happens only while the sender
        thread sleeps, because it hands requests to streams without the lock, and requests must not overtake each other.
        """
        if self._sleeping and not self._answers and not self._stopped:
            requests, _ = self._collect(monotonic_ms())
            for sent in requests:
                self._send(sent)
            if requests:
                return
        self.wake()

    def close(self, timeout_s: float) -> None:
        """Send batches for at most ``timeout_s``, fail the rest with `ProducerClosedError`, join the thread."""
        with self._lock:
            self._draining = True
            self._accumulator.flushing += 1
            self._woken = True
            self._wake.notify()
        if threading.current_thread() is self.thread:
            timeout_s = 0.0
        else:
            self.thread.join(max(0.0, timeout_s))
        with self._lock:
            self._stopped = True
            self._woken = True
            self._wake.notify()
        self._streams.close()
        if threading.current_thread() is not self.thread:
            self.thread.join(5.0)

    def unannounced(self) -> list[ProducerBatch]:
        """Return the resolved batches whose callbacks have not run; the lock must be held."""
        return self._unreported + [batch for batch in self._reporting if not batch.announced]

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: PacelineError = ProducerClosedError("the producer was closed before this record was delivered")
        try:
            while self._round():
                pass
        except BaseException as failure:
            LOG.exception("producer sender thread failed")
            error = ProducerFatalError(f"the producer's sender failed: {failure!r}")
        with self._lock:
            self._accumulator.fail_all(error)
            self._stopped = True
            ended = self._reporting = self._unreported + self._accumulator.take_ended()
            self._unreported = []
        self._report(ended)

    def _round(self) -> bool:
        """Process responses, send ready batches, sleep until notified; return False when the thread must end."""
        with self._lock:
            if self._stopped:
                return False
            while self._answers:
                self._answers.popleft()()
            now_ms = monotonic_ms()
            self._accumulator.expire(now_ms)
            requests, wait_ms = self._collect(now_ms)
            wait_ms = min(wait_ms, self._check_deadlines(now_ms))
            ended = self._reporting = self._unreported + self._accumulator.take_ended()
            self._unreported = []
            if not requests and not ended:
                if self._draining and not self._accumulator.incomplete():
                    return False
                if not self._woken and not self._answers:
                    self._sleeping = True
                    self._wake.wait(min(wait_ms / 1000, _LONGEST_SLEEP_S))
                    self._sleeping = False
                self._woken = False
        for sent in requests:
            self._send(sent)
        self._report(ended)
        return True

    def _report(self, ended: list[ProducerBatch]) -> None:
        """Run the callbacks of resolved batches, without the lock."""
        if not ended:
            return
        self._on_space()
        for batch in ended:
            callbacks, batch.callbacks = batch.callbacks, None
            batch.data = None
            for index, callback in callbacks or ():
                try:
                    callback(None if batch.error else batch.metadata(index), batch.error)
                except BaseException:  # including SystemExit, which would end the shared sender thread
                    LOG.exception("delivery callback failed")
            batch.announce()

    # Sending -----------------------------------------------------------------------------------------------------

    def _collect(self, now_ms: int) -> tuple[list[SentRequest], int]:
        """Drain sendable batches, grouped by leader; also return the sleep time when there are none."""
        if self._accumulator.needs_producer_id():
            self._producer_ids.ask(now_ms)
        ready = self._accumulator.ready(now_ms)
        wait_ms = ready.next_check_ms
        if self._producer_ids.ask_again_ms > now_ms:
            wait_ms = min(wait_ms, self._producer_ids.ask_again_ms - now_ms)
        by_leader: dict[int, tuple[Broker, list[TopicPartition]]] = {}
        epochs: dict[TopicPartition, int | None] = {}
        for topic_partition in ready.partitions:
            leader, epochs[topic_partition], topic_id = self._metadata.leadership(topic_partition)
            if leader is None:
                self._without_leader(topic_partition, now_ms)
                wait_ms = min(wait_ms, 100)
                continue
            self._accumulator.locate(topic_partition, topic_id, epochs[topic_partition])
            by_leader.setdefault(leader.broker_id, (leader, []))[1].append(topic_partition)
        requests = []
        for leader, partitions in by_leader.values():
            address = leader.address
            if self._in_flight.get(address, 0) >= self._config.max_in_flight:
                continue
            throttled_ms = self.throttles.left_ms(address, now_ms)
            if throttled_ms:
                wait_ms = min(wait_ms, throttled_ms)
                continue
            batches = self._accumulator.drain(partitions, self._config.max_request_bytes, now_ms)
            if batches:
                self._in_flight[address] = self._in_flight.get(address, 0) + 1
                requests.append(SentRequest(leader, address, batches, epochs))
        return requests, wait_ms

    def _leader(self, topic_partition: TopicPartition) -> Leader | None:
        broker, epoch, _ = self._metadata.leadership(topic_partition)
        return None if broker is None else (broker.broker_id, epoch)

    def _without_leader(self, topic_partition: TopicPartition, now_ms: int) -> None:
        known = self._metadata.cluster.partition(topic_partition)
        if known is not None and known.leader is not None:
            error = LeaderNotAvailableError(f"{topic_partition}: its leader, broker {known.leader}, is not alive")
        else:
            error = LeaderNotAvailableError(f"{topic_partition} has no leader")
        self._accumulator.record_error(topic_partition, self._metadata.last_error or error)
        self._metadata.request()

    def _send(self, sent: SentRequest) -> None:
        """Encode and send; every failure is converted into a response."""
        timeout_s = self._config.request_timeout_ms / 1000
        try:
            body = sent.encode(self._config, self._accumulator)
            self._streams.ask(sent.address, body, timeout_s, partial(self._answered, sent))
        except Exception as failure:
            self._post(partial(self._failed_locally, sent, failure, answered=True))

    def _check_deadlines(self, now_ms: int) -> int:
        """Fail overdue requests periodically; return the time until the next check, in ms."""
        if now_ms >= self._next_deadline_check_ms:
            self._next_deadline_check_ms = now_ms + _DEADLINE_CHECK_MS
            self._streams.expire()
        if any(self._in_flight.values()):
            return self._next_deadline_check_ms - now_ms
        return int(_LONGEST_SLEEP_S * 1000)

    def _answered(self, sent: SentRequest, outcome: bytes | Exception) -> None:
        """Process a response on the thread on which it arrived."""
        if isinstance(outcome, bytes):
            try:
                self._take_response(sent, outcome)
            except Exception as failure:
                LOG.exception("processing a produce response failed")
                self._post(partial(self._broken, failure))
        else:
            # A stream may also have ended without a response: deadline, close, or failure.
            answered = isinstance(outcome, grpc.RpcError) and error_info(outcome) is not None
            self._post(partial(self._failed, sent, named_error(sent.broker, outcome), answered))

    def _take_response(self, sent: SentRequest, data: bytes) -> None:
        try:
            response = ProduceResponse.FromString(data)
        except Exception as failure:
            self._post(partial(self._failed_locally, sent, failure, answered=False))
            return
        if any(result.HasField("error") for result in response.partitions):
            self._post(partial(self._succeeded, sent, response))
            return
        # Announcing here, without a switch to the sender thread, wakes the waiting thread 0.05 ms sooner.
        with self._lock:
            if self._stopped:
                return
            self._succeeded(sent, response)
            ended = self._accumulator.take_ended()
            self._unreported += [batch for batch in ended if batch.callbacks]
            if self._unreported or self._draining or self._accumulator.has_incomplete():
                self._woken = True
                self._wake.notify()
        self._report([batch for batch in ended if not batch.callbacks])

    def _post(self, answer: Callable[[], None]) -> None:
        self._answers.append(answer)
        with self._lock:
            self._woken = True
            self._wake.notify()

    # Answers -----------------------------------------------------------------------------------------------------

    def _broken(self, failure: Exception) -> None:
        """Fail the producer after an internal error."""
        raise failure

    def _failed_locally(self, sent: SentRequest, failure: BaseException, answered: bool) -> None:
        """Handle a request that failed locally; ``answered`` means that it was definitely not sent."""
        error = UnknownServerError(f"{sent.broker}: the request could not be made: {failure!r}")
        self._failed(sent, error, answered)

    def _failed(self, sent: SentRequest, error: PacelineError, answered: bool) -> None:
        self._in_flight[sent.address] -= 1
        self._metadata.request()
        now_ms = monotonic_ms()
        for batch in sent.batches:
            self._accumulator.fail(batch, error, now_ms, answered, sent.leader_of(batch.topic_partition))

    def _succeeded(self, sent: SentRequest, response: ProduceResponse) -> None:
        self._in_flight[sent.address] -= 1
        if response.throttle_ms:
            before_ms = self.throttles.total_ms
            self.throttles.note(sent.address, response.throttle_ms, monotonic_ms())
            self._streams.extend(sent.address, (self.throttles.total_ms - before_ms) / 1_000)
        if self._config.acks is RequiredAcks.NONE:
            for batch in sent.batches:
                self._accumulator.complete(batch, None, None)
            return
        results = {TopicPartition(result.topic, result.partition): result for result in response.partitions}
        now_ms = monotonic_ms()
        refused = []
        for batch in sent.batches:
            result = results.get(batch.topic_partition)
            if result is None or result.HasField("error"):
                refused.append((batch, result))
                continue
            appended_ms = result.log_append_time_ms if result.log_append_time_ms >= 0 else None
            self._accumulator.complete(batch, result.base_offset, appended_ms)
        # Process fatal errors last, because they fail every unresolved batch.
        for batch, result in refused:
            self._take_refusal(sent, batch, result, now_ms)

    def _take_refusal(
        self, sent: SentRequest, batch: ProducerBatch, result: ProducePartitionResult | None, now_ms: int
    ) -> None:
        if result is None:
            error: PacelineError = UnknownServerError(f"{sent.broker}: no result for {batch.topic_partition}")
            self._accumulator.fail(batch, error, now_ms, answered=False)
            return
        error = error_for(result.error.code, f"{sent.broker}: {batch.topic_partition}: {result.error.message}")
        if result.error.HasField("retry_after_ms"):
            error = error.with_metadata(retry_delay_ms=result.error.retry_after_ms)
        again = self._accumulator.fail(batch, error, now_ms, leader=sent.leader_of(batch.topic_partition))
        if batch.was_oldest and self._accumulator.queue(batch.topic_partition).gap is Gap.LOST:
            LOG.warning("leader lost acknowledged records: partition=%s error=%s", batch.topic_partition, error)
        moved = self._metadata.apply_hint(batch.topic_partition, result.error)
        if moved and again:
            needs_metadata = self._accumulator.retry_at_new_leaders(self._leader, now_ms)
        else:
            needs_metadata = again or error.retriable
        if needs_metadata:
            self._metadata.request()
