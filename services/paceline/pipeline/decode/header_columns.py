"""Decode the headers column, a list of (key, value) per record, in lock-step over the records that have headers.

Source: Kafka 2.8 DefaultRecord; column type of Spark's Kafka source.
"""

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from paceline.model.errors import CorruptMessageError
from paceline.pipeline.decode.columns import HEADERS_TYPE
from paceline.pipeline.decode.varints import Bytes, Int64s, read_varint, read_varints

Bools = NDArray[np.bool_]

LOCKSTEP_MIN_RECORDS: Final = 32
HEADER_MIN_BYTES: Final = 2


def no_headers(count: int) -> pa.ListArray:
    """Return ``count`` nulls: a record without headers has a null in the column, as in Spark's Kafka source."""
    return pa.nulls(count, HEADERS_TYPE)


def decode_headers(payload: bytes | bytearray, count: Int64s, begin: Int64s, end: Int64s) -> pa.ListArray:
    """Return the headers column of records; each record has ``count`` headers between ``begin`` and ``end``.

    Raises:
        CorruptMessageError: a header is cut, its key is null, or the headers do not fill their record.
    """
    if (count * HEADER_MIN_BYTES > end - begin).any():
        raise CorruptMessageError("a record claims more headers than its bytes can hold")
    bounds = np.empty((int(count.sum()), 4), dtype=np.int64)
    is_null = np.zeros(len(bounds), dtype=np.bool_)
    order = np.argsort(-count, kind="stable")
    order = order[: int(np.count_nonzero(count))]
    left, cursor, slot, stop = count[order], begin[order], (np.cumsum(count) - count)[order], end[order]
    view = np.frombuffer(payload, dtype=np.uint8)
    step = 0
    while (alive := int(np.searchsorted(-left, -step, side="left"))) >= LOCKSTEP_MIN_RECORDS:
        at = slot[:alive] + step
        bounds[at], is_null[at] = _one_header_each(view, cursor[:alive], stop[:alive])
        cursor[:alive] = bounds[at, 3]
        step += 1
    for row in range(alive):
        first, last = int(slot[row]) + step, int(slot[row]) + int(left[row])
        _scan_headers(payload, int(cursor[row]), int(stop[row]), bounds, is_null, range(first, last))
        cursor[row] = bounds[last - 1, 3]
    if (cursor != stop).any():
        raise CorruptMessageError("the headers do not fill their record")
    return _lists(count, _entries(payload, bounds, is_null))


def _one_header_each(view: Bytes, cursor: Int64s, stop: Int64s) -> tuple[Int64s, Bools]:
    key_length, key_from = read_varints(view, cursor)
    key_to = key_from + key_length
    if (key_length < 0).any() or (key_to >= stop).any():
        raise CorruptMessageError("a header key does not fit its record")
    value_length, value_from = read_varints(view, key_to)
    value_to = value_from + np.maximum(value_length, 0)
    if (value_length < -1).any() or (value_to > stop).any():
        raise CorruptMessageError("a header value does not fit its record")
    return np.stack((key_from, key_to, value_from, value_to), axis=1), value_length < 0


def _scan_headers(
    payload: bytes | bytearray, position: int, end: int, bounds: Int64s, is_null: Bools, slots: range
) -> None:
    for slot in slots:
        key_length, key_from = read_varint(payload, position, end)
        key_to = key_from + key_length
        if key_length < 0 or key_to >= end:
            raise CorruptMessageError("a header key does not fit its record")
        value_length, value_from = read_varint(payload, key_to, end)
        position = value_from + max(value_length, 0)
        if value_length < -1 or position > end:
            raise CorruptMessageError("a header value does not fit its record")
        bounds[slot] = (key_from, key_to, value_from, position)
        is_null[slot] = value_length < 0


def _entries(payload: bytes | bytearray, bounds: Int64s, is_null: Bools) -> pa.StructArray:
    offsets = bounds.astype(np.int32).reshape(-1)
    source = pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(payload)]
    )
    which = np.arange(0, len(offsets), 4, dtype=np.int32)
    keys = _as_text(source.take(pa.array(which)))
    values = source.take(pa.array(which + 2, mask=is_null if is_null.any() else None))
    return pa.StructArray.from_arrays([keys, values], fields=list(HEADERS_TYPE.value_type))


def _as_text(keys: pa.BinaryArray) -> pa.StringArray:
    """Decode header keys, which are UTF-8 by convention.

    Replace invalid bytes as Java does, so that the query continues.
    """
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], type=pa.string())


def _lists(count: Int64s, entries: pa.StructArray) -> pa.ListArray:
    offsets = np.zeros(len(count) + 1, dtype=np.int32)
    np.cumsum(count, out=offsets[1:])
    has_none = count == 0
    mask = pa.array(has_none) if has_none.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=HEADERS_TYPE, mask=mask)
