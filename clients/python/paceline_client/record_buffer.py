"""The producer's unresolved records: their batches and the memory they use.

Pure. The subclass `Accumulator` decides when batches are sent and handles their results.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.log.record_batch import parse_header
from paceline.model.errors import InvalidRequestError, MessageTooLargeError, PacelineError
from paceline.model.identifiers import TopicPartition
from paceline_client.batch import ProducerBatch
from paceline_client.codec import FinishedBatch, Headers, Row, new_encoder, record_bytes
from paceline_client.delivery_errors import with_doubt
from paceline_client.errors import sendable
from paceline_client.partition_queue import PartitionQueue


@dataclass(frozen=True, slots=True)
class AccumulatorConfig:
    """Limits; the names are Kafka's."""

    batch_size: int = 512 * 1024
    linger_ms: int = 5
    buffer_memory: int = 32 * 1024 * 1024
    max_record_bytes: int = 1_000_000
    delivery_timeout_ms: int = 120_000
    max_in_flight: int = 5
    enable_idempotence: bool = True
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000


class RecordBuffer:
    """Collects records into batches and resolves batches. Callers must hold a lock."""

    def __init__(self, config: AccumulatorConfig) -> None:
        self.config = config
        self._checks_each = config.max_record_bytes < config.batch_size
        """Whether a record that fits into a batch may still exceed max_record_bytes."""
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: OrderedDict[TopicPartition, PartitionQueue] = OrderedDict()
        """Queues with batches, in the order of service."""
        self._incomplete: dict[int, ProducerBatch] = {}
        self._ended: list[ProducerBatch] = []
        self.buffered_bytes = 0
        """Encoded bytes of unresolved records; the caller blocks appends when this reaches ``buffer_memory``."""

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        """Return the queue of a partition; create it if it does not exist."""
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = PartitionQueue(topic_partition)
        return queue

    def append(
        self,
        queue: PartitionQueue,
        timestamp_ms: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        now_ms: int,
    ) -> tuple[ProducerBatch, int, bool]:
        """Add a record; return its batch, its index, and whether to wake the sender because a batch began.

        Raises:
            MessageTooLargeError: the record alone is larger than ``max_record_bytes``.
            InvalidRequestError: the timestamp is out of range, or a header's name is not Unicode.
            TypeError: key or value is not bytes.
        """
        batch = queue.open
        if batch is not None:
            index = batch.count
            taken = self.append_to(batch, timestamp_ms, key, value, headers)
            if taken:
                return batch, index, False
            batch.sealed = True
            queue.open = None
        batch = self.new_batch(queue, timestamp_ms, key, value, headers, now_ms)
        return batch, 0, True

    def append_to(
        self, batch: ProducerBatch, timestamp_ms: int | None, key: bytes | None, value: bytes | None, headers: Headers
    ) -> bool:
        """Add a record to an open batch; return False when it is full. Raises the errors of `append`."""
        encoder = batch.encoder
        assert encoder is not None
        if self._checks_each:
            self._check_size(key, value, headers)
        try:
            taken = encoder.append(batch.count, timestamp_ms, key, value, headers)  # type: ignore[arg-type]
        except (OverflowError, UnicodeError) as error:
            self._seal(batch)
            raise InvalidRequestError(f"the record cannot be sent: {error}") from error
        except BaseException:
            self._seal(batch)
            raise
        if taken is None:
            return False
        batch.count += 1
        batch.charged_bytes += taken.size
        self.buffered_bytes += taken.size
        return True

    def append_run(self, batch: ProducerBatch, rows: Sequence[Row], start: int, with_keys: bool) -> int:
        """Add rows from ``start`` onwards to an open batch; return the index after the last added row.

        Stops when the batch is full, and at a row with a key unless ``with_keys``. Costs half as much per record as
        `append_to`, because counters are updated once. Raises the errors of `append`; ``batch.count`` then includes the
        rows before.
        """
        encoder = batch.encoder
        assert encoder is not None
        append = encoder.append
        first = index = batch.count
        size = encoder.size()
        at = start
        try:
            while at < len(rows):
                timestamp_ms, key, value, headers = rows[at]
                if key is not None and not with_keys:
                    break
                if self._checks_each:
                    self._check_size(key, value, headers)
                if append(index, timestamp_ms, key, value, headers) is None:
                    break
                index += 1
                at += 1
        except (OverflowError, UnicodeError) as error:
            self._seal(batch)
            raise InvalidRequestError(f"the record cannot be sent: {error}") from error
        except BaseException:
            self._seal(batch)
            raise
        finally:
            batch.count = index
            taken = encoder.size() - size if index > first else 0
            batch.charged_bytes += taken
            self.buffered_bytes += taken
        return at

    def new_batch(
        self,
        queue: PartitionQueue,
        timestamp_ms: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        now_ms: int,
    ) -> ProducerBatch:
        """Begin a batch with this record."""
        self._check_size(key, value, headers)
        batch = ProducerBatch(queue.topic_partition, new_encoder(self.config.batch_size), now_ms)
        self.append_to(batch, timestamp_ms, key, value, headers)
        self._enqueue(queue, batch)
        queue.open = batch
        return batch

    def add_finished(self, queue: PartitionQueue, data: bytes | bytearray, now_ms: int) -> ProducerBatch:
        """Add a batch that the caller has encoded, after the records that are there."""
        if queue.open is not None:
            self._seal(queue.open)
        batch = ProducerBatch(queue.topic_partition, FinishedBatch(data), now_ms)
        batch.count, batch.charged_bytes, batch.sealed = parse_header(data).record_count, len(data), True
        self.buffered_bytes += len(data)
        self._enqueue(queue, batch)
        return batch

    def _enqueue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.pending.append(batch)
        self._active.setdefault(queue.topic_partition, queue)
        self._incomplete[id(batch)] = batch

    def _check_size(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        with sendable("record"):
            size = record_bytes(key, value, headers)
        if size > self.config.max_record_bytes:
            raise MessageTooLargeError(
                f"the record has {size} bytes with its overhead, max_record_bytes is {self.config.max_record_bytes}"
            )

    def _seal(self, batch: ProducerBatch) -> None:
        """Close a batch after an encoder error: the encoder may or may not have appended the record at this offset."""
        batch.sealed = True
        queue = self._queues.get(batch.topic_partition)
        if queue is not None and queue.open is batch:
            queue.open = None

    # Results ---------------------------------------------------------------------------------------------------

    def _resolve(
        self,
        batch: ProducerBatch,
        base_offset: int | None,
        log_append_time_ms: int | None,
        error: PacelineError | None,
    ) -> None:
        if batch.done:
            return
        self.buffered_bytes -= batch.charged_bytes
        self._incomplete.pop(id(batch), None)
        batch.encoder = None
        self._ended.append(batch)
        batch.resolve(base_offset, log_append_time_ms, None if error is None else with_doubt(batch, error))

    def take_ended(self) -> list[ProducerBatch]:
        """Return the batches resolved since the last call, in order."""
        ended, self._ended = self._ended, []
        return ended

    def incomplete(self) -> list[ProducerBatch]:
        """Return the unresolved batches, oldest first."""
        return list(self._incomplete.values())

    def has_incomplete(self) -> bool:
        """Return whether a batch is unresolved."""
        return bool(self._incomplete)

    def queues(self) -> Iterator[PartitionQueue]:
        """Yield the queues that have batches."""
        yield from self._active.values()
