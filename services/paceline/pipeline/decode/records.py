"""Decode RecordBatch v2 to Arrow without a loop over records: numpy finds the fields, ``take`` copies the bytes.

Steps: index the batch headers; find the records of all batches in lock-step (`record_walk`); decode the remaining
varints of all records at once; describe keys and values as alternate slices of the fetched buffer, an Arrow binary
array that shares its memory, and let ``take`` of Arrow copy the wanted slices. Compressed batches are decompressed and
joined first. A payload with inconsistent numbers raises `CorruptMessageError`; no byte outside the buffer is read.
Source: Kafka 2.8 DefaultRecordBatch and DefaultRecord.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.log.compression import Codec, codec_of, decompress
from paceline.log.record_batch import CODEC_BITS, CONTROL_BIT, HEADER_BYTES, TIMESTAMP_TYPE_BIT
from paceline.model.errors import CorruptMessageError, MessageTooLargeError, UnsupportedCompressionTypeError
from paceline.pipeline.decode.batch_index import (
    BatchIndex,
    check_crc,
    describe_batch,
)
from paceline.pipeline.decode.columns import arrow_schema
from paceline.pipeline.decode.header_columns import decode_headers, no_headers
from paceline.pipeline.decode.record_walk import RecordPlaces, find_records
from paceline.pipeline.decode.varints import VARLONG_MAX_BYTES, Int64s, read_varints

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""Columns of a read without headers, in the order of Spark's Kafka source."""

GROUP_BYTES: Final = 32 * 1024 * 1024
"""Decompressed bytes that are decoded together; more bytes are split into several RecordBatches to limit memory."""

REPEATED_ROWS: Final = 1 << 16
"""Rows of the topic column that is created once and sliced to the length of each batch."""
_MAX_TIMESTAMP_MS: Final = 1 << 53
"""Limit of a timestamp, so that its microseconds fit 64 bits."""
_DATA_COLUMNS = frozenset({"key", "value", "headers"})


def decode_index(index: BatchIndex, columns: Sequence[str] = COLUMNS) -> Iterator[pa.RecordBatch]:
    """Yield the records of the indexed batches with start <= offset < end as Arrow record batches, in order.

    Control batches and empty batches give no rows. Only ``columns`` are decoded.

    Raises:
        CorruptMessageError: a checksum is wrong or a payload is inconsistent.
        MessageTooLargeError: a batch expands beyond the limit of `paceline.log.compression`.
        UnsupportedCompressionTypeError: the codec bits are undefined.
    """
    wanted = np.flatnonzero((index.count > 0) & (index.attributes & CONTROL_BIT == 0))
    check_crc(index)
    for payload, rows, begin, end in _payloads(index, wanted):
        batch = _decode_group(index, payload, rows, begin, end, columns)
        if batch.num_rows:
            yield batch


def _payloads(index: BatchIndex, wanted: Int64s) -> Iterator[tuple[bytes | bytearray, Int64s, Int64s, Int64s]]:
    """Yield groups of batches: a buffer, the row numbers of the batches, and their record sections in the buffer."""
    if not wanted.size:
        return
    begin = index.position[wanted] + HEADER_BYTES
    end = index.position[wanted] + index.size[wanted]
    if not (index.attributes[wanted] & CODEC_BITS).any() and len(index.buffer) < 2**31:
        yield index.buffer, wanted, begin, end
        return
    joined = bytearray()
    rows: list[int] = []
    begins: list[int] = []
    ends: list[int] = []
    for row, first, last in zip(wanted.tolist(), begin.tolist(), end.tolist(), strict=True):
        plain = _record_section(index, row, first, last)
        if rows and len(joined) + len(plain) > GROUP_BYTES:
            yield joined, np.array(rows), np.array(begins), np.array(ends)
            joined, rows, begins, ends = bytearray(), [], [], []
        rows.append(row)
        begins.append(len(joined))
        joined += plain
        ends.append(len(joined))
    yield joined, np.array(rows), np.array(begins), np.array(ends)


def _record_section(index: BatchIndex, row: int, first: int, last: int) -> bytes | bytearray:
    section = index.buffer[first:last]
    try:
        codec = codec_of(int(index.attributes[row]))
        return section if codec is Codec.NONE else decompress(codec, section)
    except (CorruptMessageError, MessageTooLargeError, UnsupportedCompressionTypeError) as error:
        raise type(error)(f"{describe_batch(index, row)}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Fields:
    """Arrays with an entry per record: its batch row, offset, timestamp delta and positions in the payload."""

    batch: Int64s
    offset: Int64s
    timestamp_delta: Int64s
    end: Int64s
    key_length_at: Int64s


def _decode_group(
    index: BatchIndex, payload: bytes | bytearray, rows: Int64s, begin: Int64s, end: Int64s, columns: Sequence[str]
) -> pa.RecordBatch:
    try:
        places = find_records(payload, begin, end, index.count[rows])
        fields = _read_fields(index, payload, rows, places)
        arrays = _data_arrays(payload, fields, columns)
        arrays.update(_plain_arrays(index, fields, columns))
    except CorruptMessageError as error:
        first, last = index.slices[int(index.slice_number[rows[0]])], int(rows[-1])
        raise CorruptMessageError(
            f"{first.topic}/{first.partition} from offset {int(index.base_offset[rows[0]])} "
            f"up to {describe_batch(index, last)}: {error}"
        ) from error
    return pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=arrow_schema(columns))


def _read_fields(index: BatchIndex, payload: bytes | bytearray, rows: Int64s, places: RecordPlaces) -> _Fields:
    view = np.frombuffer(payload, dtype=np.uint8)
    timestamp_delta, after = read_varints(view, places.body + 1, VARLONG_MAX_BYTES)
    offset_delta, after = read_varints(view, after)
    if (after >= places.end).any():
        raise CorruptMessageError("a record is too short for its fields")
    batch = rows[places.batch]
    if (offset_delta < 0).any() or (offset_delta > index.last_offset_delta[batch]).any():
        raise CorruptMessageError("an offset lies outside its batch")
    if ((np.diff(offset_delta) <= 0) & (np.diff(batch) == 0)).any():
        raise CorruptMessageError("the offsets of a batch do not increase")
    fields = _Fields(batch, index.base_offset[batch] + offset_delta, timestamp_delta, places.end, after)
    return _trim(index, rows, fields)


def _trim(index: BatchIndex, rows: Int64s, fields: _Fields) -> _Fields:
    """Drop records outside the offsets of their slice; only the first and the last batch can have such records."""
    start = np.array([piece.start_offset for piece in index.slices], dtype=np.int64)
    end = np.array([piece.end_offset for piece in index.slices], dtype=np.int64)
    owner = index.slice_number[rows]
    last = index.base_offset[rows] + index.last_offset_delta[rows]
    if (index.base_offset[rows] >= start[owner]).all() and (last < end[owner]).all():
        return fields
    owner = index.slice_number[fields.batch]
    kept = (fields.offset >= start[owner]) & (fields.offset < end[owner])
    if kept.all():
        return fields
    return _Fields(
        fields.batch[kept],
        fields.offset[kept],
        fields.timestamp_delta[kept],
        fields.end[kept],
        fields.key_length_at[kept],
    )


def _data_arrays(payload: bytes | bytearray, fields: _Fields, columns: Sequence[str]) -> dict[str, pa.Array]:
    """Return the requested key, value and headers columns, after checking that they lie inside their records."""
    if not _DATA_COLUMNS.intersection(columns):
        return {}
    view = np.frombuffer(payload, dtype=np.uint8)
    key_length, key_from = read_varints(view, fields.key_length_at)
    key_to = _field_end(key_length, key_from, fields.end)
    value_length, value_from = read_varints(view, key_to)
    value_to = _field_end(value_length, value_from, fields.end)
    header_count, headers_from = read_varints(view, value_to)
    if (header_count < 0).any() or (headers_from > fields.end).any():
        raise CorruptMessageError("a header count does not fit its record")
    if ((headers_from != fields.end) & (header_count == 0)).any():
        raise CorruptMessageError("a record has bytes after its last field")
    offsets = np.stack((key_from, key_to, value_from, value_to), axis=1).astype(np.int32).reshape(-1)
    arrays = {}
    if "key" in columns:
        arrays["key"] = gather_binary(payload, offsets, 0, key_length < 0)
    if "value" in columns:
        arrays["value"] = gather_binary(payload, offsets, 2, value_length < 0)
    if "headers" in columns:
        present = header_count.any()
        arrays["headers"] = (
            decode_headers(payload, header_count, headers_from, fields.end) if present else no_headers(len(fields.end))
        )
    return arrays


def _field_end(length: Int64s, begin: Int64s, record_end: Int64s) -> Int64s:
    """Return the ends of fields of ``length`` bytes (-1: null, empty); at least one byte must follow in the record."""
    if (length < -1).any():
        raise CorruptMessageError("a length is below -1")
    field_end = begin + np.maximum(length, 0)
    if (field_end >= record_end).any():
        raise CorruptMessageError("a field reaches beyond its record")
    return field_end


def gather_binary(
    payload: bytes | bytearray, offsets: NDArray[np.int32], first: int, is_null: NDArray[np.bool_]
) -> pa.BinaryArray:
    """Return every fourth slice of ``payload`` from slice ``first`` on, null where ``is_null``.

    ``offsets`` bound consecutive slices, four per record: key, gap, value, gap. The source array shares the payload's
    memory; only ``take`` copies the bytes.
    """
    count = len(is_null)
    if is_null.all():
        return pa.nulls(count, pa.binary())
    source = pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(payload)]
    )
    which = np.arange(first, 4 * count, 4, dtype=np.int32)
    return source.take(pa.array(which, mask=is_null if is_null.any() else None))


def _plain_arrays(index: BatchIndex, fields: _Fields, columns: Sequence[str]) -> dict[str, pa.Array]:
    arrays: dict[str, pa.Array] = {}
    batch, count = fields.batch, len(fields.batch)
    append_time = index.attributes & TIMESTAMP_TYPE_BIT != 0
    if "topic" in columns:
        arrays["topic"] = _topic_column(index, batch)
    if "partition" in columns:
        partitions = np.array([piece.partition for piece in index.slices], dtype=np.int32)
        arrays["partition"] = pa.array(partitions[index.slice_number].take(batch))
    if "offset" in columns:
        arrays["offset"] = pa.array(fields.offset)
    if "timestamp" in columns:
        micros = _timestamps_ms(index, fields, append_time) * 1000
        arrays["timestamp"] = pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), count, [None, pa.py_buffer(micros)])
    if "timestampMs" in columns:
        arrays["timestampMs"] = pa.array(_clipped_timestamps_ms(index, fields, append_time))
    if "timestampType" in columns:
        arrays["timestampType"] = pa.array(append_time.astype(np.int32)[batch])
    return arrays


def _topic_column(index: BatchIndex, batch: Int64s) -> pa.StringArray:
    names = sorted({piece.topic for piece in index.slices})
    if len(names) == 1:
        count = len(batch)
        return _repeated(names[0], max(count, REPEATED_ROWS)).slice(0, count)
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([number_of[piece.topic] for piece in index.slices], dtype=np.int32)
    return pa.array(names, type=pa.string()).take(pa.array(numbers[index.slice_number][batch]))


@lru_cache(maxsize=2)
def _repeated(name: str, count: int) -> pa.StringArray:
    return pa.repeat(pa.scalar(name, pa.string()), count)


def _timestamps_ms(index: BatchIndex, fields: _Fields, append_time: NDArray[np.bool_]) -> Int64s:
    """Return each record's time: base plus delta, or the batch's append time for LogAppendTime."""
    base, delta = index.base_timestamp[fields.batch], fields.timestamp_delta
    limit = _MAX_TIMESTAMP_MS // 2
    own_time = ~append_time[fields.batch]
    appended = index.max_timestamp[fields.batch]
    wrong = np.where(own_time, _beyond(base, limit) | _beyond(delta, limit), _beyond(appended, limit))
    if wrong.any():
        offset = int(fields.offset[np.argmax(wrong)])
        raise CorruptMessageError(
            f"the timestamp of the record at offset {offset} is out of range for Spark; omit it with the option columns"
        )
    times = np.where(own_time, base + np.where(own_time, delta, 0), appended)
    return times.astype(np.int64, copy=False)


def _clipped_timestamps_ms(index: BatchIndex, fields: _Fields, append_time: NDArray[np.bool_]) -> Int64s:
    """Return each record's time, clipped at 2^62 ms so that a sum fits 64 bits."""
    limit = 1 << 62
    own = np.clip(index.base_timestamp[fields.batch], -limit, limit) + np.clip(fields.timestamp_delta, -limit, limit)
    times = np.where(append_time[fields.batch], index.max_timestamp[fields.batch], own)
    return times.astype(np.int64, copy=False)


def _beyond(numbers: Int64s, limit: int) -> NDArray[np.bool_]:
    return (numbers > limit) | (numbers < -limit)
