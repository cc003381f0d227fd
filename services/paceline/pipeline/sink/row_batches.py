"""Encode rows into record batches: one open batch per partition, passed on when it is full.

A row goes to the partition in its column ``partition``. If that is null and the row has a key, the ``default``
partitioner computes the partition from the key, as Kafka's clients do. For all other rows the partitioner chooses a
partition.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from paceline.model.errors import UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.errors import InvalidRowError
from paceline.pipeline.sink.options import WriteOptions
from paceline_client.codec import BatchEncoder, finish, new_encoder
from paceline_client.partitioner import StickyPartitioner, partition_for_key

MAX_OPEN_BYTES: Final = 32 * 1024 * 1024
"""Total size of the open batches of all partitions at which every open batch is passed on."""

PartitionCount = Callable[[str], int | None]
"""Returns the number of partitions of a topic, None when the topic does not exist."""


class _Topic:
    """Chooses partitions of a topic for rows without a partition and, with ``default``, without a key."""

    def __init__(self, name: str, count: int, max_bytes: int, partitioner: str, rng: random.Random) -> None:
        self.max_bytes = max_bytes
        self.partitions = [TopicPartition(name, number) for number in range(count)]
        self._sticky = StickyPartitioner(rng) if partitioner != "roundrobin" else None
        self._next = rng.randrange(count)

    def without_key(self) -> TopicPartition:
        if self._sticky is None:
            self._next = (self._next + 1) % len(self.partitions)
            return self.partitions[self._next]
        if self._sticky.current < 0:
            self.change_sticky()
        return self.partitions[self._sticky.current]

    def change_sticky(self) -> None:
        if self._sticky is not None:
            self._sticky.choose((), len(self.partitions))


class _OpenBatch:
    __slots__ = ("count", "encoder")

    def __init__(self, encoder: BatchEncoder) -> None:
        self.encoder = encoder
        self.count = 0


class RowBatches:
    """Encodes the rows of one task into batches by partition."""

    def __init__(
        self,
        options: WriteOptions,
        partition_count: PartitionCount,
        on_batch: Callable[[TopicPartition, bytes | bytearray, int], None],
        size_limit: Callable[[str, int], int],
        rng: random.Random | None = None,
    ) -> None:
        """Encode no row yet.

        Args:
            options: options of the write.
            partition_count: see `PartitionCount`.
            on_batch: receives the partition, the encoded batch and its number of records.
            size_limit: returns the size of the largest batch that a topic takes, looked up anew if below a given size.
            rng: chooses partitions.
        """
        self._options = options
        self._partition_count = partition_count
        self._on_batch = on_batch
        self._size_limit = size_limit
        self._rng = rng or random.Random()
        self._topics: dict[str, _Topic] = {}
        self._open: dict[TopicPartition, _OpenBatch] = {}
        self._open_bytes = 0
        self.records = 0

    def add(self, rows: pa.RecordBatch, columns: tuple[str, ...]) -> None:
        """Encode rows and pass full batches to ``on_batch``.

        Raises:
            InvalidRowError: a row has no topic, a partition that does not exist, a header without a key, or more bytes
                than its topic takes.
            UnknownTopicOrPartitionError: a topic does not exist.
        """
        for topic, partition, key, value, headers, timestamp_ms in _rows(rows, columns, self._options.topic):
            tp = self._route(topic, partition, key)
            batch = self._open.get(tp)
            if batch is None:
                batch = self._begin(tp)
            before = batch.encoder.size()
            if batch.encoder.append(batch.count, timestamp_ms, key, value, headers) is None:
                self._hand_over(tp)
                batch = self._begin(tp)
                before = batch.encoder.size()
                # A new batch accepts its first row at any size.
                batch.encoder.append(0, timestamp_ms, key, value, headers)
            batch.count += 1
            self.records += 1
            self._open_bytes += batch.encoder.size() - before
            if self._open_bytes >= MAX_OPEN_BYTES:
                self.finish()

    def finish(self) -> None:
        """Pass every open batch to ``on_batch``."""
        for tp in list(self._open):
            self._hand_over(tp)

    def _begin(self, tp: TopicPartition) -> _OpenBatch:
        most = min(self._options.batch_bytes, self._topics[tp.topic].max_bytes)
        batch = self._open[tp] = _OpenBatch(new_encoder(most))
        self._open_bytes += batch.encoder.size()  # A new batch has a header.
        return batch

    def _hand_over(self, tp: TopicPartition) -> None:
        batch = self._open.pop(tp)
        self._open_bytes -= batch.encoder.size()
        topic, data = self._topics[tp.topic], finish(batch.encoder, self._options.codec)
        if len(data) > topic.max_bytes:
            topic.max_bytes = self._size_limit(tp.topic, len(data))
        if len(data) > topic.max_bytes:
            raise InvalidRowError(
                f"{tp}: a row makes a batch of {len(data)} bytes, the topic takes {topic.max_bytes} (max.message.bytes)"
            )
        self._on_batch(tp, data, batch.count)
        topic.change_sticky()

    def _route(self, name: str | None, partition: int | None, key: bytes | None) -> TopicPartition:
        if name is None:
            raise InvalidRowError(
                "a row has no topic: its column topic is null; set the option topic, or a topic in every row"
            )
        topic = self._topics.get(name)
        if topic is None:
            if name == self._options.staging_topic:
                raise InvalidRowError(f"a row names {name}, the staging topic, whose records are the sink's own")
            count = self._partition_count(name)
            if not count:
                raise UnknownTopicOrPartitionError(f"topic {name} does not exist")
            topic = self._topics[name] = _Topic(
                name, count, self._size_limit(name, 0), self._options.partitioner, self._rng
            )
        if partition is not None:
            if not 0 <= partition < len(topic.partitions):
                raise InvalidRowError(
                    f"a row names partition {partition} of {name}, which has {len(topic.partitions)} partitions"
                )
            return topic.partitions[partition]
        if key is not None and self._options.partitioner == "default":
            return topic.partitions[partition_for_key(key, len(topic.partitions))]
        return topic.without_key()


_Row = tuple[str | None, int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


def _rows(rows: pa.RecordBatch, columns: tuple[str, ...], topic: str | None) -> Iterator[_Row]:
    count = rows.num_rows

    def column(name: str) -> list[Any]:
        return _plain(rows.column(rows.schema.get_field_index(name))) if name in columns else [None] * count

    topics = [topic] * count if topic is not None else column("topic")
    now_ms = time.time_ns() // 1_000_000
    times = column("timestamp")
    headers = column("headers")
    return (
        (name, partition, key, value, _headers(pairs), now_ms if time_us is None else time_us // 1000)
        for name, partition, key, value, pairs, time_us in zip(
            topics, column("partition"), column("key"), column("value"), headers, times, strict=True
        )
    )


def _plain(column: pa.Array) -> list[Any]:
    """Return the column's values as Python objects, timestamps as microseconds."""
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist())
    return list(column.to_pylist())


def _headers(pairs: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    if not pairs:
        return []
    if any(pair is None or pair["key"] is None for pair in pairs):
        raise InvalidRowError("a header has no key")
    return [(pair["key"], pair["value"]) for pair in pairs]


def as_binary(rows: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    """Return the rows with the named text columns converted to UTF-8 bytes."""
    columns, fields = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        is_text = field.name in names and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
        columns.append(column.cast(pa.binary()) if is_text else column)
        fields.append(pa.field(field.name, columns[-1].type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
