"""`Publisher`: send the records of all publishers, with the producers of the Python client.

Three producers share one set of connections: one for small records, one for records above `LARGE_BYTES`, so that they
do not delay small ones, and one for batches that carry a caller's producer id.
"""

import asyncio
import contextlib
import time
from collections import deque
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
from paceline_client.codec import Row, codec_named, finish, new_encoder, record_bytes
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


class Path(Enum):
    """The producer that sends a record; none for a record that is too large."""

    SMALL = auto()
    LARGE = auto()
    NUMBERED = auto()
    REFUSED = auto()


@dataclass(slots=True)
class _Part:
    """The records of a request for one partition and path."""

    answer: "Answer"
    lane: TopicPartition | Path
    """The partition, or for records without a key the path: there is no order between small and large ones."""
    path: Path
    partition: int | None
    rows: list[Row] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    """Indexes of the rows in the request."""
    size: int = 0
    missing: int = 0
    batch: bytes | bytearray = b""
    """With a producer id: the records as one batch, which has one result."""


@dataclass(slots=True)
class Answer:
    """The results of one request; `done` is called with it when the last result has arrived."""

    request: PublishRequest
    done: "Callable[[Answer], None]"
    results: list[tuple[int, int] | PacelineError] = field(default_factory=list)
    missing: int = 0
    failure: PacelineError | None = None
    """Why the request as a whole was refused."""

    def take(self, indexes: list[int], result: tuple[int, int] | PacelineError) -> None:
        """Store the partition and the first offset of records that follow each other there, or their error."""
        for place, index in enumerate(indexes):
            self.results[index] = result if isinstance(result, PacelineError) else (result[0], result[1] + place)
        self.missing -= len(indexes)
        if not self.missing:
            self.done(self)

    def response(self) -> PublishResponse:
        """Return the answer.

        Raises:
            PacelineError: the request was refused, or it has one record or one batch, which failed.
        """
        if self.failure is not None:
            raise self.failure
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


class Room:
    """The bytes of records without a result, of all publishers; used on the event loop alone."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._changed = asyncio.Event()

    def add(self, size: int) -> None:
        """Count bytes; a negative number ends the count of bytes that were added before."""
        self.total_bytes += size
        if size < 0:
            self._changed.set()

    async def wait(self) -> None:
        """Wait while too many bytes have no result."""
        while self.total_bytes >= TOTAL_BYTES:
            self._changed.clear()
            await self._changed.wait()


class Publisher:
    """Sends records; its methods run on the event loop and do not block."""

    def __init__(self, connections: Connections, room: Room) -> None:
        """Create the producers on the event loop."""
        self._connections = connections
        self.room = room
        self._loop = asyncio.get_running_loop()
        self._producers: dict[Path, Producer] = {}
        self._waiting: dict[ProducerBatch, list[tuple[int, PublishLane, _Part, int, int]]] = {}
        """For each batch: place of the first record in it, and the range of the part's records."""
        self._resolved: deque[ProducerBatch] = deque()
        self._is_woken = False
        self._bytes: dict[TopicPartition | Path, int] = {}
        self.published = 0

    async def close(self) -> None:
        """Wait for the results of sent records, and close the producers."""
        for producer in self._producers.values():
            with contextlib.suppress(PacelineError):
                await asyncio.to_thread(producer.close, 10.0)

    def producer(self, path: Path) -> Producer:
        """Return a producer; it is created on first use, and again after a fatal error."""
        found = self._producers.get(path)
        if found is None:
            numbered = path is Path.NUMBERED
            found = self._producers[path] = Producer(
                self._connections,
                enable_idempotence=not numbered,
                max_in_flight=1 if numbered else 5,
                linger_ms=5 if path is Path.SMALL else 0,
                max_record_bytes=MAX_RECORD_BYTES,
                buffer_memory=2 * TOTAL_BYTES,
                delivery_timeout_ms=_DELIVERY_MS,
                request_timeout_ms=10_000,
                max_block_ms=1,
                client_id="paceline-gateway",
            )
        return found

    def send(self, lane: "PublishLane", part: _Part) -> None:
        """Send a part and deliver its results to its answer later."""
        at, part.missing, topic = 0, len(part.indexes), part.answer.request.topic
        while at < len(part.indexes):
            try:
                producer = self.producer(part.path)
                if part.path is Path.NUMBERED:
                    sent, end = producer.send_batch(topic, part.partition or 0, part.batch), 1
                else:
                    sent, end = producer.send_rows(topic, part.rows, at, part.partition)
            except PacelineError as error:
                if isinstance(error, ProducerFatalError):
                    self._replace(part.path)
                lane.finished(part, at, at + 1, error)
                at += 1
                continue
            if sent.batch not in self._waiting:
                self._waiting[sent.batch] = []
                sent.batch.when_resolved(self._wake)
            self._waiting[sent.batch].append((sent.index, lane, part, at, end))
            at = end

    def accepted(self, part: _Part) -> None:
        """Count the bytes of a part until it has its results."""
        self._bytes[part.lane] = self._bytes.get(part.lane, 0) + part.size
        self.room.add(part.size)

    def ended(self, part: _Part) -> None:
        """Stop counting the bytes of a part."""
        left = self._bytes.pop(part.lane) - part.size
        if left:
            self._bytes[part.lane] = left
        self.room.add(-part.size)

    @property
    def is_waiting(self) -> bool:
        """Whether a record waits for its result."""
        return bool(self._bytes)

    def is_crowded(self, lane: TopicPartition | Path) -> bool:
        """Whether too many bytes of a partition have no result, for example because it has no leader."""
        return self._bytes.get(lane, 0) >= PARTITION_BYTES

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 when it is not known."""
        return self._connections.metadata.cluster.partition_count(topic)

    async def look_up(self, topic: str) -> None:
        """Wait for the metadata of a topic.

        Raises:
            PacelineError: the topic does not exist, or no broker answered.
        """
        await asyncio.to_thread(self._connections.metadata.wait_for_topic, topic, _METADATA_S)

    def _replace(self, path: Path) -> None:
        broken = self._producers.pop(path, None)
        if broken is not None:
            self._loop.run_in_executor(None, broken.close, 0.0)

    def _wake(self, batch: ProducerBatch) -> None:
        """Settle a batch on the event loop, which one call wakes for several batches."""
        self._resolved.append(batch)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._is_woken = False
        while self._resolved:
            batch = self._resolved.popleft()
            error = None if batch.error is None else public_publish_error(batch.error)
            partition, base = batch.topic_partition.partition, batch.base_offset or 0
            for place, lane, part, start, end in self._waiting.pop(batch):
                lane.finished(part, start, end, error or (partition, base + place))
                self.published += end - start if error is None else 0


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
                answer.failure = error
                answer.done(answer)

    def _split(self, answer: Answer) -> None:
        """Check a request and send its records."""
        try:
            parts = self._parts(answer)
        except PacelineError as error:
            answer.failure = error
            answer.done(answer)
            return
        answer.missing = len(answer.results)
        for part in parts:
            refusal: PacelineError | None = None
            if part.path is Path.REFUSED:
                refusal = MessageTooLargeError(f"a record has at most {MAX_RECORD_BYTES} bytes, not {part.size}")
            elif part.partition is not None and self._publisher.is_crowded(part.lane):
                refusal = ThrottledError(f"{part.lane} has no results for {PARTITION_BYTES} bytes; try again")
            if refusal is not None:
                answer.take(part.indexes, refusal)
                continue
            self._publisher.accepted(part)
            if self._order.add(part.lane, part.path, part):
                self._publisher.send(self, part)

    def _parts(self, answer: Answer) -> list[_Part]:
        """Return the records of a request by partition and path."""
        request, topic = answer.request, answer.request.topic
        _check(request)
        count = self._publisher.partition_count(topic)
        fixed = request.partition if request.HasField("partition") else None
        if fixed is not None and not 0 <= fixed < count:
            raise UnknownTopicOrPartitionError(f"topic {topic} has {count} partitions, no partition {fixed}")
        if request.HasField("producer"):
            assert fixed is not None
            batch = _numbered_batch(request)
            answer.results = answer.results[:1]
            lane = TopicPartition(topic, fixed)
            return [_Part(answer, lane, Path.NUMBERED, fixed, [], [0], len(batch), 0, batch)]
        parts: list[_Part] = []
        last: dict[int | None, _Part] = {}
        for index, record in enumerate(_records_of(request)):
            row = _, key, value, headers = _row(record)
            size = record_bytes(key, value, headers)
            target = fixed
            if target is None and key is not None:
                target = key_hash(key) % count
            path = Path.SMALL if size <= LARGE_BYTES else Path.LARGE if size <= MAX_RECORD_BYTES else Path.REFUSED
            part = last.get(target)
            if part is None or part.path is not path:
                part = _Part(answer, path if target is None else TopicPartition(topic, target), path, target)
                last[target] = part
                parts.append(part)
            part.rows.append(row)
            part.indexes.append(index)
            part.size += size
        return parts

    def finished(self, part: _Part, start: int, end: int, result: tuple[int, int] | PacelineError) -> None:
        """Record the result of a range of records, and send the parts that waited for the end of this part."""
        part.missing -= end - start
        if not part.missing:
            self._publisher.ended(part)
            for following in self._order.done(part.lane):
                self._publisher.send(self, following)
        part.answer.take(part.indexes[start:end], result)


def _row(record: PublishRecord | PublishRequest) -> Row:
    headers = [(one.key, one.value if one.HasField("value") else None) for one in record.headers]
    if record.message_id:
        headers.append((MESSAGE_ID, record.message_id.encode()))
    timestamp_ms = record.timestamp_ms if record.HasField("timestamp_ms") else None
    key = record.key if record.HasField("key") else None
    return timestamp_ms, key, record.value if record.HasField("value") else None, headers


def _records_of(request: PublishRequest) -> "Sequence[PublishRecord | PublishRequest]":
    return request.records or (request,)


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
    rows = [_row(one) for one in _records_of(request)]
    size = 100 + sum(record_bytes(key, value, headers) for _, key, value, headers in rows)
    if size > MAX_RECORD_BYTES:
        raise MessageTooLargeError(f"the records have {size} bytes as one batch, the limit is {MAX_RECORD_BYTES}")
    encoder = new_encoder(size)
    now_ms = time.time_ns() // 1_000_000
    for index, (timestamp_ms, key, value, headers) in enumerate(rows):
        encoder.append(index, now_ms if timestamp_ms is None else timestamp_ms, key, value, headers)
    producer = request.producer
    return finish(encoder, codec_named(None), producer.producer_id, producer.producer_epoch, producer.base_sequence)
