"""`Producer`: send records and get futures; batches, routes and retries in the background."""

import atexit
import contextlib
import itertools
import os
import random
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Literal, Self

from paceline.log.record_batch import MAX_INT32
from paceline.model.client_io import RequiredAcks
from paceline.model.errors import InvalidRequestError, PacelineError, RequestTimedOutError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline_client.accumulator import Accumulator
from paceline_client.batch import BulkFuture, DeliveryCallback, ProducerBatch, RecordFuture, wait_for_all
from paceline_client.clock import monotonic_ms
from paceline_client.codec import Headers, Row, codec_named
from paceline_client.connections import ClientConnections, Connections
from paceline_client.errors import BufferExhaustedError, ProducerClosedError, nothing_sent
from paceline_client.partition_queue import PartitionQueue
from paceline_client.partitioner import StickyPartitioner, key_hash
from paceline_client.produce_request import SenderConfig
from paceline_client.record_buffer import AccumulatorConfig
from paceline_client.sender import Sender

DEFAULT_BATCH_SIZE: Final = 512 * 1024
DEFAULT_LINGER_MS: Final = 5
DEFAULT_BUFFER_MEMORY: Final = 32 * 1024 * 1024
_CHUNK: Final = 512
"""Records that `send_many` appends before it releases the lock for the sender."""
_AT_EXIT_S: Final = 10.0

_ACKS: Final = {
    "all": RequiredAcks.ALL,
    "leader": RequiredAcks.LEADER,
    "none": RequiredAcks.NONE,
    "-1": RequiredAcks.ALL,
    "1": RequiredAcks.LEADER,
    "0": RequiredAcks.NONE,
}
_NO_HEADERS: list[tuple[str, bytes | None]] = []
_names = itertools.count(1)


class _Route:
    """The partitions of a topic, cached for `send`."""

    __slots__ = ("count", "queues", "sticky")

    def __init__(self, queues: list[PartitionQueue], sticky: StickyPartitioner) -> None:
        self.queues = queues
        self.count = len(queues)
        self.sticky = sticky


class Producer:
    """Writes records. Thread-safe; close it, or use it with ``with``.

    Every record is delivered once and in order per partition (with ``acks="all"`` and idempotence), or its future has
    an error within ``delivery_timeout_ms``. A batch is sent when it has ``batch_size`` bytes or is ``linger_ms`` old.
    Larger batches give more throughput (the default is 512 KiB instead of Kafka's 16 KiB, because a gRPC call costs
    more than a socket write; 256 KiB gave three quarters of the rate), ``linger_ms=0`` gives the lowest latency.

    Creating a producer does not wait for the cluster; the first `send` waits at most ``max_block_ms``. The background
    threads are daemons; at interpreter exit open producers are closed, waiting up to ten seconds for undelivered
    records. After a fork the child must create its own producer: gRPC does not survive a fork.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Connections,
        *,
        acks: Literal["all", "leader", "none", -1, 0, 1] | RequiredAcks = "all",
        enable_idempotence: bool | None = None,
        compression: str | None = None,
        linger_ms: int = DEFAULT_LINGER_MS,
        batch_size: int = DEFAULT_BATCH_SIZE,
        buffer_memory: int = DEFAULT_BUFFER_MEMORY,
        max_record_bytes: int = 1_000_000,
        max_block_ms: int = 60_000,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        max_request_bytes: int = 2 * 1024 * 1024,
        max_in_flight: int = 5,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        client_id: str | None = None,
        seed: int | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Create a producer.

        Args:
            bootstrap: ``"host:port,host:port"`` or a list, whose addresses without an answer are skipped, or shared
                `Connections`.
            acks: "all", "leader" or "none" (or Kafka's -1, 1, 0).
            enable_idempotence: no duplicates, no reordering; the default with acks "all", which it requires.
            compression: "none", "gzip", "snappy", "lz4" or "zstd", per batch.
            linger_ms: how long a batch waits for more records.
            batch_size: maximum bytes of a batch before compression; below the topic's ``max.message.bytes`` (1 MB).
            buffer_memory: maximum bytes of records without a result; `send` blocks when it is used up.
            max_record_bytes: maximum size of a record; larger records are refused at once.
            max_block_ms: longest wait of `send` for metadata or memory.
            delivery_timeout_ms: time after which every record has a result.
            request_timeout_ms: longest wait for a response.
            max_request_bytes: maximum bytes of a request, unless a single batch is larger.
            max_in_flight: maximum requests per broker, and batches per partition, in flight.
            retry_backoff_ms: pause after the first failed attempt; doubles up to ``retry_backoff_max_ms``.
            retry_backoff_max_ms: longest pause.
            client_id: prefix of thread names, and the name that brokers see (default ``paceline``).
            seed: random seed for the choice of partitions for records without a key.
            tls: certificate files; default: the files in ``PACELINE_SSL_CA_FILE`` etc., otherwise plaintext.

        Raises:
            InvalidRequestError: a setting is not valid.
        """
        required = _acks_named(acks)
        idempotent = required is RequiredAcks.ALL if enable_idempotence is None else enable_idempotence
        if idempotent and required is not RequiredAcks.ALL:
            raise InvalidRequestError('enable_idempotence needs acks="all"')
        if min(batch_size, buffer_memory, max_in_flight, delivery_timeout_ms, request_timeout_ms) < 1 or linger_ms < 0:
            raise InvalidRequestError("sizes, limits and timeouts must be positive, linger_ms not negative")
        if request_timeout_ms > MAX_INT32:
            raise InvalidRequestError(f"request_timeout_ms must be at most {MAX_INT32}, not {request_timeout_ms}")
        self._name = client_id or f"paceline-producer-{next(_names)}"
        sender_config = SenderConfig(
            required, codec_named(compression), request_timeout_ms, max_request_bytes, max_in_flight
        )
        self._max_block_s = max_block_ms / 1000
        self._buffer_memory = buffer_memory
        self._linger_ms = linger_ms
        self._accumulator = Accumulator(
            AccumulatorConfig(
                batch_size=batch_size,
                linger_ms=linger_ms,
                buffer_memory=buffer_memory,
                max_record_bytes=max_record_bytes,
                delivery_timeout_ms=delivery_timeout_ms,
                max_in_flight=max_in_flight,
                enable_idempotence=idempotent,
                retry_backoff_ms=retry_backoff_ms,
                retry_backoff_max_ms=retry_backoff_max_ms,
            )
        )
        self._delivery_s = (delivery_timeout_ms + request_timeout_ms) / 1000
        self._rng = random.Random(seed)
        self._lock = threading.RLock()
        self._space = threading.Condition(self._lock)
        self._routes: dict[str, _Route] = {}
        self._closed = False
        self._pid = os.getpid()
        self._connections = ClientConnections(bootstrap, tls=tls, user_agent=client_id or "", name=self._name)
        self._channels = self._connections.channels
        self._metadata = self._connections.metadata
        self._sender = Sender(
            sender_config,
            self._accumulator,
            self._metadata,
            self._channels,
            self._lock,
            self._announce_space,
            f"{self._name}-sender",
        )
        self._connections.listen(self._metadata_changed)
        self._sender.start()
        _open_producers.add(self)

    # Sending -----------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> RecordFuture:
        """Send one record; returns at once unless it must wait for metadata or memory.

        Args:
            topic: the topic.
            value: the value; None is a tombstone.
            key: records with the same key go to the same partition (murmur2, as in Kafka); None uses the sticky
                partition.
            partition: the partition, overriding the key.
            headers: (name, value) pairs in order.
            timestamp_ms: milliseconds since the Unix epoch; the wall clock when None.
            on_delivery: called on the sender thread with (metadata, None) or (None, error); must not block.

        Raises:
            BufferExhaustedError: no memory within ``max_block_ms``.
            UnknownTopicOrPartitionError: the topic or partition does not exist.
            BootstrapError: no broker answered within ``max_block_ms``.
            MessageTooLargeError: the record is larger than ``max_record_bytes``.
            InvalidRequestError: the timestamp is out of range, or a header's name is not Unicode.
            ProducerClosedError: the producer is closed.
            ProducerFatalError: the producer cannot continue; create a new producer.
        """
        if timestamp_ms is not None and not isinstance(timestamp_ms, int):
            raise _type_error("timestamp_ms", "an int, milliseconds since 1970", timestamp_ms)
        if key is not None and not isinstance(key, bytes | bytearray | memoryview):
            raise _type_error("key", "bytes or None", key)
        route = self._routes.get(topic)
        if route is None or (partition is not None and partition >= route.count):
            route = self._find_route(topic, partition)
        # The encoder accepts only a list; records returned by a consumer have headers in a tuple.
        pairs = list(headers) if headers else _NO_HEADERS
        with self._lock:
            accumulator = self._accumulator
            if self._closed or accumulator.fatal is not None or accumulator.buffered_bytes >= self._buffer_memory:
                self._wait_for_space()
            queue = self._choose(topic, route, key, partition)
            batch = queue.open
            try:
                if batch is not None:
                    index = batch.count
                    if accumulator.append_to(batch, timestamp_ms, key, value, pairs):
                        if on_delivery is not None:
                            batch.add_callback(index, on_delivery)
                        return RecordFuture(batch, index)
                    if key is None and partition is None:
                        queue = self._next_sticky(topic, route)
                batch, index, news = accumulator.append(queue, timestamp_ms, key, value, pairs, monotonic_ms())
            except TypeError:
                _check_types(value, pairs)
                raise
            if on_delivery is not None:
                batch.add_callback(index, on_delivery)
            if news:
                if self._linger_ms:
                    self._sender.wake()
                else:
                    self._sender.send_now()
            return RecordFuture(batch, index)

    def send_many(
        self,
        topic: str,
        records: Iterable[tuple[bytes | None, bytes | None]],
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BulkFuture:
        """Send (key, value) pairs, faster than `send`.

        Without ``timestamp_ms`` all records of a chunk get the time at which the chunk was read. Blocks while memory is
        used up, and raises the errors of `send`; records before the failed record are sent. The iterable is consumed
        without holding a lock, so it may be slow.
        """
        iterator = iter(records)
        batches: dict[int, ProducerBatch] = {}
        count = 0
        while pairs := list(itertools.islice(iterator, _CHUNK)):
            route = self._routes.get(topic)
            if route is None or (partition is not None and partition >= route.count):
                route = self._find_route(topic, partition)
            stamp = timestamp_ms if timestamp_ms is not None else time.time_ns() // 1_000_000
            rows: list[Row] = [(stamp, key, value, _NO_HEADERS) for key, value in pairs]
            with self._lock:
                self._append_chunk(topic, route, rows, partition, batches)
            count += len(rows)
        return BulkFuture(list(batches.values()), count)

    def send_batch(self, topic: str, partition: int, batch: bytes | bytearray) -> RecordFuture:
        """Send a record batch that the caller has encoded and compressed; return the future of its first record.

        An idempotent producer writes its id and sequence number into the batch. Another producer sends the batch
        unchanged, with the producer state that the caller may have written into it; ``max_in_flight=1`` keeps the
        order of such batches. ``batch_size``, ``max_record_bytes`` and ``compression`` do not apply.

        Raises:
            PacelineError: as `send`.
        """
        route = self._routes.get(topic)
        if route is None or partition >= route.count:
            route = self._find_route(topic, partition)
        with self._lock:
            self._wait_for_space()
            added = self._accumulator.add_finished(self._choose(topic, route, None, partition), batch, monotonic_ms())
            self._sender.wake()
            return RecordFuture(added, 0)

    def send_rows(self, topic: str, rows: Sequence[Row], start: int, partition: int | None) -> tuple[RecordFuture, int]:
        """Send the rows from ``start`` onwards that fit into one batch; keys do not choose the partition.

        Return the future of the first row, and the index after the last row that was sent: call again for the rest.
        Raises the errors of `send` for the first row, before any row is sent.
        """
        route = self._routes.get(topic)
        if route is None or (partition is not None and partition >= route.count):
            route = self._find_route(topic, partition)
        with self._lock:
            self._wait_for_space()
            queue = self._choose(topic, route, None, partition)
            batch, index, news = self._accumulator.append(queue, *rows[start], monotonic_ms())
            with contextlib.suppress(PacelineError):  # the call for that row raises it
                self._accumulator.append_run(batch, rows, start + 1, with_keys=True)
            if news:
                self._sender.wake()
            return RecordFuture(batch, index), start + batch.count - index

    def _append_chunk(
        self,
        topic: str,
        route: _Route,
        rows: list[Row],
        partition: int | None,
        batches: dict[int, ProducerBatch],
    ) -> None:
        accumulator = self._accumulator
        append_to = accumulator.append_to
        run_limit = self._buffer_memory - accumulator.config.batch_size
        wake = False
        at = 0
        while at < len(rows):
            stamp, key, value, _ = rows[at]
            if accumulator.buffered_bytes >= self._buffer_memory or self._closed or accumulator.fatal is not None:
                self._sender.wake()
                self._wait_for_space()
            if partition is None and key is not None:
                queue = route.queues[key_hash(key) % route.count]
            else:
                queue = self._choose(topic, route, key, partition)
            batch = queue.open
            keyless = key is None or partition is not None
            if batch is not None and keyless and accumulator.buffered_bytes < run_limit:
                # Append a run of records for this partition at once. The buffer has at least ``batch_size`` free bytes,
                # enough for all records that the batch accepts.
                after = accumulator.append_run(batch, rows, at, partition is not None)
                if after > at:
                    batches[id(batch)] = batch
                    at = after
                    continue
            at += 1
            if batch is None or not append_to(batch, stamp, key, value, _NO_HEADERS):
                if batch is not None and key is None and partition is None:
                    queue = self._next_sticky(topic, route)
                batch, _, news = accumulator.append(queue, stamp, key, value, _NO_HEADERS, monotonic_ms())
                wake = wake or news
            batches[id(batch)] = batch
        if wake:
            self._sender.wake()

    def sends_at_once(self, topic: str, partition: object) -> bool:
        """Whether `send` would need to wait neither for memory nor for metadata."""
        accumulator, route = self._accumulator, self._routes.get(topic)
        if route is None or (isinstance(partition, int) and partition >= route.count):
            return False
        return not self._closed and accumulator.fatal is None and accumulator.buffered_bytes < self._buffer_memory

    def _choose(self, topic: str, route: _Route, key: bytes | None, partition: int | None) -> PartitionQueue:
        if partition is not None:
            if not 0 <= partition < route.count:
                raise nothing_sent(
                    UnknownTopicOrPartitionError(
                        f"topic {topic} has {route.count} partitions, no partition {partition}"
                    )
                )
            return route.queues[partition]
        if key is not None:
            return route.queues[key_hash(key) % route.count]
        current = route.sticky.current
        if 0 <= current < route.count and route.queues[current].open is not None:
            return route.queues[current]
        return self._next_sticky(topic, route)

    def _next_sticky(self, topic: str, route: _Route) -> PartitionQueue:
        return route.queues[route.sticky.choose(self._metadata.cluster.available_partitions(topic), route.count)]

    def _find_route(self, topic: str, partition: int | None = None) -> _Route:
        """Return the partitions of a topic; wait for metadata when the topic or the requested partition is unknown."""
        self._raise_if_forked()
        if self._closed:
            raise ProducerClosedError("the producer is closed")
        count = self._metadata.wait_for_partition(topic, partition or 0, self._max_block_s)
        with self._lock:
            route = self._routes.get(topic)
            if route is None or route.count != count:
                route = self._make_route(topic, count)
            return route

    def _raise_if_forked(self) -> None:
        if os.getpid() != self._pid:
            raise ProducerClosedError("the producer was created before a fork; create a new producer in this process")

    def _disable_after_fork(self) -> None:
        """Close the producer in a forked child, which has no sender thread; replace locks that may have been held."""
        self._lock = threading.RLock()
        self._space = threading.Condition(self._lock)
        self._closed = True
        self._routes = {}

    def _make_route(self, topic: str, count: int) -> _Route:
        queues = [self._accumulator.queue(TopicPartition(topic, index)) for index in range(count)]
        before = self._routes.get(topic)
        route = _Route(queues, before.sticky if before else StickyPartitioner(self._rng))
        self._routes[topic] = route
        return route

    def _wait_for_space(self) -> None:
        """Wait until the buffer has room for a record; the caller holds the lock, which is released during the wait."""
        deadline = time.monotonic() + self._max_block_s
        while True:
            if self._closed:
                raise ProducerClosedError("the producer is closed")
            if self._accumulator.fatal is not None:
                raise self._accumulator.fatal
            if self._accumulator.buffered_bytes < self._buffer_memory:
                return
            left = deadline - time.monotonic()
            if left <= 0 or threading.current_thread() is self._sender.thread:
                raise BufferExhaustedError(
                    f"{self._accumulator.buffered_bytes} bytes are waiting for delivery, buffer_memory is "
                    f"{self._buffer_memory}, and nothing was delivered within {self._max_block_s:.1f} s"
                    f"{self._accumulator.cause_suffix()}"
                )
            self._sender.wake()
            self._space.wait(left)

    # Waiting and closing -----------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record sent so far has a result and its callback has returned.

        A record that failed raises its error from its future, not from `flush`.

        Args:
            timeout_s: None means the delivery timeout plus one request.

        Raises:
            RequestTimedOutError: the timeout expired first.
            InvalidRequestError: called from a delivery callback, which would wait for itself.
            ProducerClosedError: called in a forked child, which has no sender thread.
        """
        if threading.current_thread() is self._sender.thread:
            raise InvalidRequestError("flush may not be called from a delivery callback")
        self._raise_if_forked()
        timeout_s = self._delivery_s if timeout_s is None else timeout_s
        with self._lock:
            waiting = self._sender.unannounced() + self._accumulator.incomplete()
            self._accumulator.flushing += 1
        try:
            self._sender.wake()
            if not wait_for_all(waiting, timeout_s):
                left = sum(batch.count for batch in waiting if not batch.announced)
                with self._lock:
                    cause = self._accumulator.cause_suffix()
                raise RequestTimedOutError(
                    f"{left} records have no result, or callbacks that have not returned, after {timeout_s:.1f} s"
                    f"{cause}"
                )
        finally:
            with self._lock:
                self._accumulator.flushing -= 1

    def close(self, timeout_s: float | None = None) -> None:
        """Send the waiting records, then stop and join the threads. Later calls do nothing.

        Records without a result after ``timeout_s`` (None: the delivery timeout plus one request) fail with
        `ProducerClosedError`.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._space.notify_all()
        _open_producers.discard(self)
        try:
            self._sender.close(self._delivery_s if timeout_s is None else timeout_s)
        finally:
            self._connections.close()

    @property
    def throttle_time_ms(self) -> int:
        """Time for which brokers have asked this producer to wait, because it was above a quota."""
        return self._sender.throttles.total_ms

    def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic, waiting for metadata at most ``max_block_ms``."""
        return self._find_route(topic).count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the producer; after an exception do not wait for undelivered records."""
        self.close(timeout_s=None if kind is None else 0.0)

    # Notifications from the threads --------------------------------------------------------------------------------

    def _announce_space(self) -> None:
        with self._lock:
            self._space.notify_all()

    def _metadata_changed(self) -> None:
        """Update partition counts and wake the sender for new leaders."""
        with self._lock:
            for topic, route in list(self._routes.items()):
                count = self._metadata.cluster.partition_count(topic)
                if count and count != route.count:  # it can decrease only when the topic was re-created
                    self._make_route(topic, count)
        self._sender.metadata_refreshed()


def _acks_named(acks: str | int | RequiredAcks) -> RequiredAcks:
    if isinstance(acks, RequiredAcks):
        return acks
    try:
        return _ACKS[str(acks).lower()]
    except KeyError:
        raise InvalidRequestError(f'acks must be "all", "leader" or "none", not {acks!r}') from None


_open_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


@atexit.register
def _close_open_producers() -> None:
    for producer in list(_open_producers):
        producer.close(timeout_s=_AT_EXIT_S)


def _disable_open_producers() -> None:
    for producer in list(_open_producers):
        producer._disable_after_fork()
    _open_producers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_open_producers)


def _check_types(value: object, headers: list[tuple[str, bytes | None]]) -> None:
    """Raise a TypeError for the argument that the encoder rejected.

    Raises:
        TypeError: an argument has the wrong type.
    """
    if value is not None and not isinstance(value, bytes | bytearray | memoryview):
        raise _type_error("value", "bytes or None", value)
    for pair in headers:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise _type_error("headers", "pairs of a name (str) and a value (bytes or None)", pair)
        if pair[1] is not None and not isinstance(pair[1], bytes | bytearray | memoryview):
            raise _type_error(f"the value of header {pair[0]!r}", "bytes or None", pair[1])


def _type_error(name: str, wanted: str, found: object) -> TypeError:
    return TypeError(f"{name} must be {wanted}, not {type(found).__name__}")
