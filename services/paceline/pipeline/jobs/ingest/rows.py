"""Convert decoded records to rows of the table and dead letters. No Spark, no network."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, Final

import pyarrow as pa

from paceline.model.errors import CorruptMessageError, MessageTooLargeError, UnsupportedCompressionTypeError
from paceline.pipeline.decode.batch_index import BatchIndex
from paceline.pipeline.decode.columns import HEADERS_TYPE, arrow_schema
from paceline.pipeline.decode.records import decode_index
from paceline.pipeline.jobs.ingest.parquet_files import Partition, split_rows

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""Years 1 to 9999: the range that Spark, Python and a date partition have in common."""
DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)

DEAD_LETTER_PARTITION: Final = ("topic",)

DEAD_LETTER_FIELDS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("reason", pa.string()),
        ("error", pa.string()),
    ]
)
"""``last_offset`` differs from ``offset`` only for a batch that cannot be decoded, whose bytes are in ``value``."""

_UNDECODABLE = (CorruptMessageError, MessageTooLargeError, UnsupportedCompressionTypeError)


def table_fields(include_headers: bool) -> pa.Schema:
    """Return the columns of the table's files."""
    names = ["partition", "offset", "timestamp", "timestampType", "key", "value"]
    return arrow_schema([*names, "headers"] if include_headers else names)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one partition of the table."""

    partition: Partition
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters of one topic."""

    topic: str
    batch: pa.RecordBatch


def make_rows(index: BatchIndex, include_headers: bool) -> Iterator[Rows | DeadLetters]:
    """Yield the rows and dead letters of a response; each requested record is either a row or in a dead letter."""
    schema = table_fields(include_headers)
    columns = ["topic", "partition", "offset", "timestampMs", "timestampType", "key", "value"]
    if include_headers:
        columns.append("headers")
    for decoded in _decode(index, columns):
        if isinstance(decoded, DeadLetters):
            yield decoded
            continue
        for topic, batch in _by_topic(decoded):
            yield from _split_topic_rows(topic, batch, schema)


def _decode(index: BatchIndex, columns: Sequence[str]) -> Iterator[pa.RecordBatch | DeadLetters]:
    """Decode the response; if decoding fails, decode batch by batch and yield bad batches as dead letters."""
    try:
        decoded = list(decode_index(index, columns))
    except _UNDECODABLE:
        for row in range(len(index)):
            single = _single(index, row)
            try:
                yield from list(decode_index(single, columns))
            except _UNDECODABLE as error:
                yield _dead_batch(single, error)
        return
    yield from decoded


def _single(index: BatchIndex, row: int) -> BatchIndex:
    names = ("position", "size", "slice_number", "base_offset", "last_offset_delta", "attributes", "base_timestamp",
             "max_timestamp", "count")  # fmt: skip
    return replace(index, **{name: getattr(index, name)[row : row + 1] for name in names})


def _dead_batch(index: BatchIndex, error: Exception) -> DeadLetters:
    piece = index.slices[int(index.slice_number[0])]
    position, base = int(index.position[0]), int(index.base_offset[0])
    last = base + int(index.last_offset_delta[0])
    row: dict[str, Any] = {
        "partition": piece.partition,
        "offset": max(base, piece.start_offset),
        "last_offset": min(last, piece.end_offset - 1),
        "timestamp_ms": int(index.max_timestamp[0]),
        "key": None,
        "value": bytes(index.buffer[position : position + int(index.size[0])]),
        "headers": [],
        "reason": "undecodable-batch",
        "error": str(error),
    }
    return DeadLetters(piece.topic, pa.RecordBatch.from_pylist([row], schema=DEAD_LETTER_FIELDS))


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = batch.column("topic")
    if topics[0] == topics[len(topics) - 1]:
        names = topics.unique()
        if len(names) == 1:
            yield names[0].as_py(), batch
            return
    encoded = topics.dictionary_encode()
    for number, rows in split_rows(encoded.indices.to_numpy()):
        yield encoded.dictionary[int(number)].as_py(), batch if rows is None else batch.take(pa.array(rows))


def _split_topic_rows(topic: str, batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[Rows | DeadLetters]:
    times = batch.column("timestampMs").to_numpy()
    is_bad = (times < MIN_TIMESTAMP_MS) | (times > MAX_TIMESTAMP_MS)
    if is_bad.any():
        yield DeadLetters(topic, _dead_rows(batch.filter(pa.array(is_bad))))
        batch, times = batch.filter(pa.array(~is_bad)), times[~is_bad]
    if not batch.num_rows:
        return
    arrays = {name: batch.column(name) for name in batch.schema.names}
    micros = pa.py_buffer(times * 1000)
    arrays["timestamp"] = pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), batch.num_rows, [None, micros])
    rows = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    for day, which in split_rows(times // DAY_MS):
        partition = (("topic", topic), ("date", (_EPOCH + timedelta(days=int(day))).isoformat()))
        yield Rows(partition, rows if which is None else rows.take(pa.array(which)))


def _dead_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the dead letters of records whose timestamp is out of range."""
    count, times = batch.num_rows, batch.column("timestampMs")
    arrays: dict[str, Any] = {name: batch.column(name) for name in ("partition", "offset", "key", "value")}
    arrays["last_offset"] = arrays["offset"]
    arrays["timestamp_ms"] = times
    has_headers = "headers" in batch.schema.names
    arrays["headers"] = batch.column("headers") if has_headers else pa.array([[]] * count, type=HEADERS_TYPE)
    arrays["reason"] = pa.array(["timestamp-out-of-range"] * count, type=pa.string())
    arrays["error"] = pa.array([f"timestamp {time} ms" for time in times.to_pylist()], type=pa.string())
    return pa.RecordBatch.from_arrays([arrays[name] for name in DEAD_LETTER_FIELDS.names], schema=DEAD_LETTER_FIELDS)
