"""Convert decoded records to rows of the table and dead letters. No Spark, no network."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from paceline.model.errors import CorruptMessageError, MessageTooLargeError, UnsupportedCompressionTypeError
from paceline.pipeline.decode.batch_index import BatchIndex
from paceline.pipeline.decode.columns import HEADERS_TYPE
from paceline.pipeline.decode.records import decode_index
from paceline.pipeline.jobs.lake.parquet_files import Partition, split_rows
from paceline.pipeline.jobs.values.parser import BadRow, ValueParser, parse_values

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""Years 1 to 9999: the range that Spark, Python and a date partition have in common."""
DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)

TABLE_PARTITION: Final = ("topic", "date")
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


def table_fields(parser: ValueParser | None, include_headers: bool) -> pa.Schema:
    """Return the columns of the table's files."""
    fields: list[tuple[str, pa.DataType]] = [("partition", pa.int32()), ("offset", pa.int64())]
    fields += [("timestamp", pa.timestamp("us", tz="UTC")), ("timestampType", pa.int32()), ("key", pa.binary())]
    if parser is None:
        fields.append(("value", pa.binary()))
    else:
        fields.extend((column.name, column.arrow_type) for column in parser.columns)
    if include_headers:
        fields.append(("headers", HEADERS_TYPE))
    return pa.schema(fields)


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


def make_rows(index: BatchIndex, parser: ValueParser | None, include_headers: bool) -> Iterator[Rows | DeadLetters]:
    """Yield the rows and dead letters of a response; each requested record is either a row or in a dead letter."""
    schema = table_fields(parser, include_headers)
    columns = ["topic", "partition", "offset", "timestampMs", "timestampType", "key", "value"]
    if include_headers:
        columns.append("headers")
    for decoded in _decode(index, columns):
        if isinstance(decoded, DeadLetters):
            yield decoded
            continue
        for topic, batch in _by_topic(decoded):
            yield from _split_topic_rows(topic, batch, parser, schema)


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


def _split_topic_rows(
    topic: str, batch: pa.RecordBatch, parser: ValueParser | None, schema: pa.Schema
) -> Iterator[Rows | DeadLetters]:
    times = batch.column("timestampMs").to_numpy()
    outside = np.flatnonzero((times < MIN_TIMESTAMP_MS) | (times > MAX_TIMESTAMP_MS))
    bad = [BadRow(int(row), "timestamp-out-of-range", f"timestamp {times[row]} ms") for row in outside]
    if bad:
        yield DeadLetters(topic, _dead_rows(batch, bad))
        batch = _without(batch, bad)
    arrays = {name: batch.column(name) for name in batch.schema.names}
    if parser is not None:
        parsed = parse_values(parser, arrays["value"])
        if parsed.bad:
            yield DeadLetters(topic, _dead_rows(batch, parsed.bad))
            batch = _without(batch, parsed.bad)
            arrays = {name: batch.column(name) for name in batch.schema.names}
        arrays.update(parsed.arrays)
    if not batch.num_rows:
        return
    times = batch.column("timestampMs").to_numpy()
    micros = times * 1000
    arrays["timestamp"] = pa.Array.from_buffers(
        pa.timestamp("us", tz="UTC"), batch.num_rows, [None, pa.py_buffer(micros)]
    )
    rows = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    for day, which in split_rows(times // DAY_MS):
        partition = (("topic", topic), ("date", (_EPOCH + timedelta(days=int(day))).isoformat()))
        yield Rows(partition, rows if which is None else rows.take(pa.array(which)))


def _without(batch: pa.RecordBatch, bad: Sequence[BadRow]) -> pa.RecordBatch:
    kept = np.ones(batch.num_rows, dtype=np.bool_)
    kept[[each.row for each in bad]] = False
    return batch.filter(pa.array(kept))


def _dead_rows(batch: pa.RecordBatch, bad: Sequence[BadRow]) -> pa.RecordBatch:
    chosen = batch.take(pa.array([each.row for each in bad]))
    arrays: dict[str, Any] = {name: chosen.column(name) for name in ("partition", "offset", "key", "value")}
    arrays["last_offset"] = arrays["offset"]
    arrays["timestamp_ms"] = chosen.column("timestampMs")
    names = set(chosen.schema.names)
    arrays["headers"] = chosen.column("headers") if "headers" in names else pa.array([[]] * len(bad), type=HEADERS_TYPE)
    arrays["reason"] = pa.array([each.reason for each in bad], type=pa.string())
    # A message may quote the value, which may have an unpaired surrogate that UTF-8 cannot encode.
    messages = [each.message.encode("utf-8", "replace").decode("utf-8")[:1000] for each in bad]
    arrays["error"] = pa.array(messages, type=pa.string())
    return pa.RecordBatch.from_arrays([arrays[name] for name in DEAD_LETTER_FIELDS.names], schema=DEAD_LETTER_FIELDS)
