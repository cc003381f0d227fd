"""`Publisher`: send the records of all publishers, with the producers of the Python client.

Three producers share one set of connections: one for small records, one for records above `LARGE_BYTES`, so that they
do not delay small ones, and one for batches that carry a caller's producer id.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from paceline.gateway.publish_order import PublishOrder
from paceline.gateway.service.convert import partition_error, public_publish_error
from paceline.model.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    PacelineError,
    ThrottledError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.v1.gateway_service_pb2 import PublishRecord, PublishRequest, PublishResponse, PublishResult
from paceline_client import Connections, Producer, ProducerFatalError
from paceline_client.batch import ProducerBatch
from paceline_client.codec import codec_named, finish, new_encoder, record_bytes
from paceline_client.partitioner import key_hash

LARGE_BYTES: Final = 256 * 1024
MAX_RECORD_BYTES: Final = 1_000_000
MAX_RECORDS: Final = 10_000
MESSAGE_ID: Final = "message-id"
PARTITION_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one partition that may wait for their results; further records of the partition are throttled."""
TOTAL_BYTES: Final = 64 * 1024 * 1024
_DELIVERY_MS: Final = 30_000
_METADATA_S: Final = 10.0
_MAX_INT32: Final = 2**31 - 1


class Path(Enum):
    """The producer that sends a record."""

    SMALL = auto()
    LARGE = auto()
    NUMBERED = auto()


@dataclass(slots=True)
class _Part:
    """One record of a request, or all records of a request with a producer id."""

    answer: "Answer"
    index: int
    record: PublishRecord | PublishRequest
    size: int
    path: Path
    partition: int | None
    lane: TopicPartition | int
    batch: bytes | bytearray = b""


@dataclass(slots=True)
class Answer:
    """The results of one request; `done` is called with it when the last result has arrived."""

    request: PublishRequest
    done: "Callable[[Answer], None]"
    results: list[tuple[int, int] | PacelineError] = field(default_factory=list)
    missing: int = 0
    size: int = 0

    def take(self, index: int, result: tuple[int, int] | PacelineError) -> None:
        """Store the result of a record."""
        self.results[index] = result
        self.missing -= 1
        if not self.missing:
            self.done(self)

    def response(self) -> PublishResponse:
        """Return the answer.

        Raises:
            PacelineError: the request has one record, which failed, or its producer id was refused.
        """
        results = self.results
        if not self.request.records or self.request.HasField("producer"):
            first = results[0]
            if isinstance(first, PacelineError):
                raise first
            if not self.request.records:
                return PublishResponse(partition=first[0], offset=first[1])
            count = len(self.request.records)
            results = [(first[0], first[1] + index) for index in range(count)]
        return PublishResponse(
            results=[
                PublishResult(error=partition_error(one))
                if isinstance(one, PacelineError)
                else PublishResult(partition=one[0], offset=one[1])
                for one in results
            ]
        )


class Publisher:
    """Sends records; its methods run on the event loop and do not block."""

    def __init__(self, connections: Connections) -> None:
        """Create the producers on the event loop."""
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._producers: dict[Path, Producer] = {}
        self._waiting: dict[ProducerBatch, list[tuple[int, PublishLane, _Part]]] = {}
        self._bytes: dict[TopicPartition, int] = {}
        self.total_bytes = 0
        """Bytes of records without a result."""
        self.published = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def wait_for_room(self) -> None:
        """Wait while too many bytes have no result."""
        while self.total_bytes >= TOTAL_BYTES:
            self._has_room.clear()
            await self._has_room.wait()

    async def close(self) -> None:
        """Wait for the results of sent records, and close the producers."""
        for producer in self._producers.values():
            with contextlib.suppress(PacelineError):
                await asyncio.to_thread(producer.close, 10.0)

    def snapshot(self) -> dict[str, float]:
        """Return numbers for metrics."""
        return {"gateway_published_records_total": self.published, "gateway_unanswered_bytes": self.total_bytes}

    def producer(self, path: Path) -> Producer:
        """Return a producer; it is created on first use, and again after a fatal error."""
        found = self._producers.get(path)
        if found is None:
            numbered = path is Path.NUMBERED
            found = self._producers[path] = Producer(
                self._connections,
                enable_idempotence=not numbered,
                max_in_flight=1 if numbered else 5,
                linger_ms=1 if path is Path.SMALL else 0,
                max_record_bytes=MAX_RECORD_BYTES,
                buffer_memory=2 * TOTAL_BYTES,
                delivery_timeout_ms=_DELIVERY_MS,
                request_timeout_ms=10_000,
                max_block_ms=1,
                client_id="paceline-gateway",
            )
        return found

    def send(self, lane: "PublishLane", part: _Part) -> None:
        """Send a part and deliver its result to its answer later."""
        request = part.answer.request
        try:
            producer = self.producer(part.path)
            if part.path is Path.NUMBERED:
                assert part.partition is not None
                sent = producer.send_batch(request.topic, part.partition, part.batch)
            else:
                record = part.record
                headers = [(one.key, one.value if one.HasField("value") else None) for one in record.headers]
                if record.message_id:
                    headers.append((MESSAGE_ID, record.message_id.encode()))
                sent = producer.send(
                    request.topic,
                    record.value if record.HasField("value") else None,
                    record.key if record.HasField("key") else None,
                    part.partition,
                    headers,
                    record.timestamp_ms if record.HasField("timestamp_ms") else None,
                )
        except PacelineError as error:
            if isinstance(error, ProducerFatalError):
                self._replace(part.path)
            lane.finished(part, error)
            return
        tp = sent.batch.topic_partition
        self._bytes[tp] = self._bytes.get(tp, 0) + part.size
        self.total_bytes += part.size
        waiting = self._waiting.get(sent.batch)
        if waiting is None:
            waiting = self._waiting[sent.batch] = []
            sent.batch.when_resolved(self._wake)
        waiting.append((sent.index, lane, part))

    def is_crowded(self, topic_partition: TopicPartition) -> bool:
        """Whether too many bytes of a partition have no result, for example because it has no leader."""
        return self._bytes.get(topic_partition, 0) >= PARTITION_BYTES

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 when it is not known."""
        return self._connections.metadata.cluster.partition_count(topic)

    async def look_up(self, topic: str) -> None:
        """Wait for the metadata of a topic.

        Raises:
            PacelineError: the topic does not exist, or no broker answered.
        """
        await asyncio.to_thread(self._connections.metadata.wait_for_topic, topic, _METADATA_S)
        # The producers share the metadata, but each makes its list of partitions on the first call.
        for path in (Path.SMALL, Path.LARGE, Path.NUMBERED):
            if path in self._producers or path is Path.SMALL:
                self.producer(path).partitions_for(topic)

    def _replace(self, path: Path) -> None:
        broken = self._producers.pop(path, None)
        if broken is not None:
            self._loop.run_in_executor(None, broken.close, 0.0)

    def _wake(self, batch: ProducerBatch) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._settle, batch)

    def _settle(self, batch: ProducerBatch) -> None:
        tp = batch.topic_partition
        error = None if batch.error is None else public_publish_error(batch.error)
        size = 0
        base = batch.base_offset or 0
        parts = self._waiting.pop(batch)
        for index, lane, part in parts:
            size += part.size
            lane.finished(part, (tp.partition, base + index) if error is None else error)
        if error is None:
            self.published += len(parts)
        left = self._bytes[tp] - size
        if left:
            self._bytes[tp] = left
        else:
            del self._bytes[tp]
        self.total_bytes -= size
        self._has_room.set()


class PublishLane:
    """The requests of one stream, or one call; keeps their order per partition."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._order: PublishOrder[_Part] = PublishOrder()
        self._looking_up: dict[str, list[Answer]] = {}
        """Requests that wait for the metadata of their topic, in order."""
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, request: PublishRequest, done: Callable[[Answer], None]) -> Answer:
        """Send a request; ``done`` is called when it has its results, perhaps during this call."""
        answer = Answer(request, done)
        answer.results = [InvalidRequestError("no result")] * len(_records_of(request))
        waiting = self._looking_up.get(request.topic)
        if waiting is not None:
            waiting.append(answer)
        elif self._publisher.partition_count(request.topic) and request.topic:
            self._split(answer)
        else:
            self._looking_up[request.topic] = [answer]
            task = asyncio.get_running_loop().create_task(self._look_up(request.topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return answer

    async def _look_up(self, topic: str) -> None:
        error: PacelineError | None = None
        try:
            if not topic:
                raise InvalidRequestError("topic is empty")
            await self._publisher.look_up(topic)
        except PacelineError as failure:
            error = failure
        for answer in self._looking_up.pop(topic):
            if error is None:
                self._split(answer)
            else:
                _fail(answer, error)

    def _split(self, answer: Answer) -> None:
        """Check a request and send its records."""
        try:
            parts = self._parts(answer)
        except PacelineError as error:
            _fail(answer, error)
            return
        answer.missing = len(parts)
        answer.size = sum(part.size for part in parts)
        for part in parts:
            tp = part.lane if isinstance(part.lane, TopicPartition) else None
            if part.size > MAX_RECORD_BYTES and part.path is not Path.NUMBERED:
                large = MessageTooLargeError(f"the record has {part.size} bytes, the limit is {MAX_RECORD_BYTES}")
                answer.take(part.index, large)
            elif tp is not None and self._publisher.is_crowded(tp):
                answer.take(part.index, ThrottledError(f"{tp} has no results for {PARTITION_BYTES} bytes; try again"))
            elif self._order.add(part.lane, part.path, part):
                self._publisher.send(self, part)

    def _parts(self, answer: Answer) -> list[_Part]:
        request, topic = answer.request, answer.request.topic
        _check(request)
        count = self._publisher.partition_count(topic)
        partition = request.partition if request.HasField("partition") else None
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopicOrPartitionError(f"topic {topic} has {count} partitions, no partition {partition}")
        if request.HasField("producer"):
            assert partition is not None
            batch = _numbered_batch(request)
            lane = TopicPartition(topic, partition)
            return [_Part(answer, 0, request, len(batch), Path.NUMBERED, partition, lane, batch)]
        parts = []
        for index, record in enumerate(_records_of(request)):
            size = len(record.value) + len(record.key)
            if record.headers:
                size += sum(len(one.key) + len(one.value) for one in record.headers)
            target = partition
            if target is None and record.HasField("key"):
                target = key_hash(record.key) % count
            path = Path.LARGE if size > LARGE_BYTES else Path.SMALL
            lane_of: TopicPartition | int = -1 if target is None else TopicPartition(topic, target)
            if target is None and path is Path.LARGE:
                lane_of = -2  # without a key there is no order between small and large records
            parts.append(_Part(answer, index, record, size, path, target, lane_of))
        return parts

    def finished(self, part: _Part, result: tuple[int, int] | PacelineError) -> None:
        """Record the result of a part, and send the parts that waited for it."""
        part.answer.take(part.index, result)
        for following in self._order.done(part.lane):
            self._publisher.send(self, following)


def _records_of(request: PublishRequest) -> "Sequence[PublishRecord | PublishRequest]":
    return request.records or (request,)


def _fail(answer: Answer, error: PacelineError) -> None:
    answer.results = [error] * len(answer.results)
    answer.done(answer)


def _check(request: PublishRequest) -> None:
    if len(request.records) > MAX_RECORDS:
        raise InvalidRequestError(f"records has {len(request.records)} records, the limit is {MAX_RECORDS}")
    if request.records and (
        request.HasField("key") or request.HasField("value") or request.headers or request.message_id
    ):
        raise InvalidRequestError("a request has either records or one record in key, value, headers and message_id")
    if not request.HasField("producer"):
        return
    producer = request.producer
    if not request.HasField("partition"):
        raise InvalidRequestError("producer needs an explicit partition")
    if producer.producer_id < 0 or not 0 <= producer.producer_epoch <= 32_767 or producer.base_sequence < 0:
        raise InvalidRequestError("producer_id, producer_epoch (to 32767) and base_sequence must not be negative")


def _numbered_batch(request: PublishRequest) -> bytes | bytearray:
    """Return the records as one batch with the caller's producer id, epoch and sequence.

    Raises:
        MessageTooLargeError: the batch is larger than a record may be.
    """
    rows = []
    for one in _records_of(request):
        headers = [(each.key, each.value if each.HasField("value") else None) for each in one.headers]
        if one.message_id:
            headers.append((MESSAGE_ID, one.message_id.encode()))
        rows.append(
            (one, one.key if one.HasField("key") else None, one.value if one.HasField("value") else None, headers)
        )
    size = 100 + sum(record_bytes(key, value, headers) for _, key, value, headers in rows)
    if size > MAX_RECORD_BYTES:
        raise MessageTooLargeError(f"the records have {size} bytes as one batch, the limit is {MAX_RECORD_BYTES}")
    encoder = new_encoder(size)
    now_ms = time.time_ns() // 1_000_000
    for index, (one, key, value, headers) in enumerate(rows):
        timestamp = one.timestamp_ms if one.HasField("timestamp_ms") else now_ms
        encoder.append(index, timestamp, key, value, headers)
    producer = request.producer
    return finish(encoder, codec_named(None), producer.producer_id, producer.producer_epoch, producer.base_sequence)
