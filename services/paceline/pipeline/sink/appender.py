"""Append finished record batches to partitions, in order, with one batch in flight per partition.

A batch is retried until its leader acknowledges it, so it may be appended twice; the order of a partition's batches
never changes. A separate thread sends batches while the caller prepares the next batches.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc

from paceline.model.errors import LeaderNotAvailableError, PacelineError, UnknownServerError, error_for
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.cluster import Cluster, named_failure
from paceline.pipeline.sink.options import WriteOptions
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1 import log_service_pb2

ROUND_BYTES: Final = 4 * 1024 * 1024
"""Size at which the queued batches go to the sending thread; `append` then waits for the previous round."""
MAX_REQUEST_BYTES: Final = 3 * 1024 * 1024
"""Maximum size of the batches in a request; brokers refuse requests above 4 MiB (``socket.request.max.bytes``)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Appended(Generic[T]):
    """Partition and base offset of an appended batch."""

    topic_partition: TopicPartition
    base_offset: int
    tag: T
    """The ``tag`` that was passed to `BatchAppender.append`."""


@dataclass(slots=True)
class _Queued(Generic[T]):
    batch: bytes | bytearray
    tag: T


class BatchAppender(Generic[T]):
    """Appends batches; `append` may block while earlier batches are sent, `flush` waits for all batches."""

    def __init__(
        self,
        cluster: Cluster,
        options: WriteOptions,
        on_appended: Callable[[Appended[T]], None] = lambda _: None,
        explain: Callable[[PacelineError, T], PacelineError] = lambda error, _: error,
    ) -> None:
        """``on_appended`` runs on the sending thread. ``explain`` returns the error of a refused batch, by its tag."""
        self._cluster = cluster
        self._options = options
        self._on_appended = on_appended
        self._explain = explain
        self._policy = RetryPolicy(deadline_ms=options.delivery_timeout_ms)
        self._pending: dict[TopicPartition, deque[_Queued[T]]] = {}
        self._pending_bytes = 0
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="paceline-append")
        self._sending: Future[None] | None = None
        self._closed = threading.Event()
        self._calls: list[Any] = []
        """Produce calls in flight."""

    def append(self, topic_partition: TopicPartition, batch: bytes | bytearray, tag: T) -> None:
        """Queue a batch after the earlier batches of its partition.

        Raises:
            PacelineError: an earlier batch could not be appended.
        """
        self._pending.setdefault(topic_partition, deque()).append(_Queued(batch, tag))
        self._pending_bytes += len(batch)
        if self._pending_bytes >= ROUND_BYTES:
            self._send_pending()

    def flush(self) -> None:
        """Wait until every queued batch is acknowledged.

        Raises:
            PacelineError: a batch was refused, or the delivery timeout passed without progress; the last error.
        """
        self._send_pending()
        self._wait()

    def close(self) -> None:
        """Cancel the calls in flight and end the sending thread; batches not flushed may or may not be appended."""
        self._closed.set()
        self._pending.clear()
        self._cancel_calls()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _cancel_calls(self) -> None:
        for call in self._calls:
            call.cancel()

    def _send_pending(self) -> None:
        self._wait()
        if self._pending:
            round_, self._pending, self._pending_bytes = self._pending, {}, 0
            self._sending = self._pool.submit(self._send_all, round_)

    def _wait(self) -> None:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            sending.result()

    def _send_all(self, queues: dict[TopicPartition, deque[_Queued[T]]]) -> None:
        while queues and not self._closed.is_set():
            call_with_retry(
                self._policy,
                lambda left: self._send_heads(queues, left),
                is_over=self._closed.is_set,
                wake=self._closed,
            )
        self._calls = []

    def _send_heads(self, queues: dict[TopicPartition, deque[_Queued[T]]], seconds: float | None) -> None:
        """Send the first batch of each partition, all leaders at the same time.

        Raises:
            PacelineError: no batch was appended, or the error of a batch is not retriable.
        """
        until = time.monotonic() + (seconds if seconds is not None else self._options.delivery_timeout_ms / 1000)
        if any(self._cluster.leader_address(tp) is None for tp in queues):
            names = sorted({tp.topic for tp in queues})
            self._cluster.refresh(names, max(until - time.monotonic(), 0.001), self._closed)
        by_leader: dict[str, list[TopicPartition]] = {}
        failure: PacelineError | None = None
        for tp in queues:
            address = self._cluster.leader_address(tp)
            if address is None:
                failure = LeaderNotAvailableError(f"{tp} has no leader")
            else:
                by_leader.setdefault(address, []).append(tp)
        timeout_s = min(self._options.request_timeout_ms / 1000, max(until - time.monotonic(), 0.001))
        calls = [
            (address, chunk, self._start(address, chunk, queues, timeout_s))
            for address, owned in by_leader.items()
            for chunk in self._chunks(owned, queues)
        ]
        self._calls = [call for _, _, call in calls]
        if self._closed.is_set():
            self._cancel_calls()
        progress = False
        for address, chunk, call in calls:
            try:
                progress = self._take_answer(address, chunk, call, queues) or progress
            except PacelineError as error:
                if not error.retriable:
                    raise
                failure = error
        if failure is not None:
            names = sorted({tp.topic for tp in queues})
            self._cluster.refresh(names, max(until - time.monotonic(), 0.001), self._closed)
            if not progress:
                raise failure

    def _chunks(
        self, owned: list[TopicPartition], queues: dict[TopicPartition, deque[_Queued[T]]]
    ) -> list[list[TopicPartition]]:
        chunks: list[list[TopicPartition]] = [[]]
        size = 0
        for tp in owned:
            length = len(queues[tp][0].batch)
            if chunks[-1] and size + length > MAX_REQUEST_BYTES:
                chunks.append([])
                size = 0
            chunks[-1].append(tp)
            size += length
        return chunks

    def _start(
        self, address: str, chunk: list[TopicPartition], queues: dict[TopicPartition, deque[_Queued[T]]], seconds: float
    ) -> Any:
        acks = log_service_pb2.ACKS_ALL if self._options.acks_all else log_service_pb2.ACKS_LEADER
        request = log_service_pb2.ProduceRequest(acks=acks, timeout_ms=max(1, int(seconds * 1000)))
        for tp in chunk:
            request.partitions.add(topic=tp.topic, partition=tp.partition, batch=bytes(queues[tp][0].batch))
        return self._cluster.start_produce(address, request, seconds + 1)

    def _take_answer(
        self, address: str, chunk: list[TopicPartition], call: Any, queues: dict[TopicPartition, deque[_Queued[T]]]
    ) -> bool:
        """Remove acknowledged batches from the queues; return whether there were any.

        Raises:
            PacelineError: no batch was acknowledged, or the error of a batch is not retriable; raised after all results
                of the response were processed.
        """
        try:
            answer = call.result()
        except grpc.RpcError as error:
            raise named_failure(f"{address}: {chunk[0]}", error) from error
        failure: PacelineError | None = None
        acknowledged = 0
        for result in answer.partitions:
            tp = TopicPartition(result.topic, result.partition)
            if result.HasField("error"):
                refusal = error_for(result.error.code, f"{tp}: {result.error.message}")
                refusal = self._explain(refusal, queues[tp][0].tag)
                failure = refusal if failure is None or failure.retriable else failure
                continue
            done = queues[tp].popleft()
            if not queues[tp]:
                del queues[tp]
            acknowledged += 1
            self._on_appended(Appended(tp, result.base_offset, done.tag))
        if failure is None and acknowledged < len(chunk):
            failure = UnknownServerError(f"{address} did not answer every partition")
        if failure is not None and (acknowledged == 0 or not failure.retriable):
            raise failure
        return acknowledged > 0
