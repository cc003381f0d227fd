"""Find the positions of the records in many batches.

A record starts with its length, so its position is known only after the previous record. Each numpy step therefore
decodes the i-th length of every batch (in lock-step). With fewer than `LOCKSTEP_MIN_BATCHES` batches such a step costs
more than a plain loop. The loop then scans each batch; it skips runs of records of equal size, which are common.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from paceline.model.errors import CorruptMessageError
from paceline.pipeline.decode.varints import Bytes, Int64s, read_varint, read_varints

LOCKSTEP_MIN_BATCHES: Final = 32
FIRST_RUN_CHECK: Final = 16
"""Records between two checks for a run of equal records; the interval doubles after each check without success."""
EQUAL_BEFORE_RUN: Final = 4
"""Number of consecutive records of equal size after which the scan searches for the end of their run."""
RECORD_MIN_BYTES: Final = 7
"""Length, attributes, timestamp delta, offset delta, two lengths and the header count take a byte each."""


def _advances() -> NDArray[np.int16]:
    """Return the size of a record by its first two bytes, little-endian; 0 when the length field is longer.

    A length of one or two bytes covers records of up to 8 KiB; longer and negative lengths give 0.
    """
    pairs = np.arange(1 << 16, dtype=np.int32)
    low, high = pairs & 0xFF, pairs >> 8
    is_short = low < 0x80
    raw = np.where(is_short, low, (low & 0x7F) | (high << 7))
    known = (is_short | (high < 0x80)) & (raw & 1 == 0)
    return np.where(known, (raw >> 1) + np.where(is_short, 1, 2), 0).astype(np.int16)


_ADVANCES: Final = _advances()


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """Positions of the records, in the order of the batches."""

    body: Int64s
    """Position of each record's attributes byte, after the length."""
    end: Int64s
    """Position after each record."""
    batch: Int64s
    """Row of the batch that each record belongs to."""


def find_records(payload: bytes | bytearray, begin: Int64s, end: Int64s, count: Int64s) -> RecordPlaces:
    """Return the places of the records of batches whose record sections are ``begin`` to ``end`` in ``payload``.

    Guarantees that every record lies inside its batch, directly after the previous record, and that the records fill
    the batch.

    Raises:
        CorruptMessageError: lengths and counts are inconsistent.
    """
    if (count * RECORD_MIN_BYTES > end - begin).any():
        raise CorruptMessageError("a batch claims more records than its bytes can hold")
    starts = np.empty(int(count.sum()), dtype=np.int64)
    first = np.cumsum(count) - count
    order = np.argsort(-count, kind="stable")
    descending = count[order]
    cursor, slot = begin[order], first[order]
    view = np.frombuffer(payload, dtype=np.uint8)
    done = _lockstep(view, cursor, slot, descending, starts)
    _scan_rest(payload, cursor, slot, descending - done, end[order], starts)
    length, body = read_varints(view, starts)
    stop = body + length
    _check_places(length, cursor, end[order])
    return RecordPlaces(body, stop, np.repeat(np.arange(len(count)), count))


def _lockstep(view: Bytes, cursor: Int64s, slot: Int64s, count: Int64s, starts: Int64s) -> Int64s:
    """Advance all batches by one record per step while enough of them have records left; return the records done.

    ``cursor`` and ``slot`` (position and number of each batch's next record) are updated in place.
    """
    if len(count) < LOCKSTEP_MIN_BATCHES:
        return np.zeros_like(count)
    steps = int(count[LOCKSTEP_MIN_BATCHES - 1])
    # Batches are sorted by count, so the batches with records left form a prefix that only gets shorter.
    alive_at_step = np.searchsorted(-count, -np.arange(steps), side="left").tolist()
    for alive in alive_at_step:
        at, position = slot[:alive], cursor[:alive]
        starts[at] = position
        low, high = view.take(position, mode="clip"), view.take(position + 1, mode="clip")
        advance = _ADVANCES.take(high * np.uint16(256) + low)
        if advance.all():
            position += advance
        else:
            length, after = read_varints(view, position)
            np.add(after, length, out=position)
        at += 1
    return np.minimum(count, steps)


def _scan_rest(
    payload: bytes | bytearray, cursor: Int64s, slot: Int64s, left: Int64s, end: Int64s, starts: Int64s
) -> None:
    view = np.frombuffer(payload, dtype=np.uint8)
    for row in np.flatnonzero(left).tolist():
        first, last = int(slot[row]), int(slot[row] + left[row])
        cursor[row] = _scan_one(payload, view, int(cursor[row]), int(end[row]), starts[first:last])


def _scan_one(payload: bytes | bytearray, view: Bytes, position: int, end: int, starts: Int64s) -> int:
    """Find the records of one batch; return the position after the last record.

    After a few records of equal size, `_equal_run` finds the next records of that size without a loop.
    """
    found, count, ahead = 0, len(starts), FIRST_RUN_CHECK
    while found < count:
        some, position = _scan_some(payload, position, end, min(ahead, count - found))
        starts[found : found + len(some)] = some
        found += len(some)
        size = position - some[-1]
        if size < RECORD_MIN_BYTES or some[-EQUAL_BEFORE_RUN:] != _equal_record_positions(size, position):
            ahead *= 2
            continue
        ahead = FIRST_RUN_CHECK
        run = _equal_run(view, some[-1], size, min(count - found, (end - position) // size))
        starts[found : found + run] = position + size * np.arange(run)
        found += run
        position += run * size
    return position


def _equal_record_positions(size: int, position: int) -> list[int]:
    """Return the positions of the last `EQUAL_BEFORE_RUN` records before ``position`` if all have this size."""
    return list(range(position - size * EQUAL_BEFORE_RUN, position, size))


def _scan_some(payload: bytes | bytearray, position: int, end: int, count: int) -> tuple[list[int], int]:
    """Return the positions of the next ``count`` records, and the position after the last."""
    starts: list[int] = []
    for _ in range(count):
        if not 0 <= position < end:
            raise CorruptMessageError("a record lies outside its batch")
        starts.append(position)
        byte = payload[position]
        if byte < 0x80:
            position += 1 + ((byte >> 1) ^ -(byte & 1))
        elif position + 1 < end and payload[position + 1] < 0x80:
            raw = (byte & 0x7F) | payload[position + 1] << 7
            position += 2 + ((raw >> 1) ^ -(raw & 1))
        else:
            length, position = read_varint(payload, position, end)
            position += length
    return starts, position


def _equal_run(view: Bytes, begin: int, size: int, most: int) -> int:
    """Return how many of the next ``most`` records have the same length bytes as the record at ``begin``."""
    prefix = 1
    while view[begin + prefix - 1] >= 0x80:
        prefix += 1
    behind = begin + size
    run, window = 0, 64
    while run < most:
        window = min(window, most - run)
        rows = np.lib.stride_tricks.as_strided(
            view[behind + run * size :], (window, prefix), (size, 1), writeable=False
        )
        same = (rows == view[begin : begin + prefix]).all(axis=1)
        if not same.all():
            return run + int(np.argmin(same))
        run += window
        window *= 8
    return run


def _check_places(length: Int64s, cursor: Int64s, end: Int64s) -> None:
    """Check that every length is at least the minimum and that the records end exactly at the end of the batch."""
    if (length < RECORD_MIN_BYTES - 1).any() or (cursor != end).any():
        raise CorruptMessageError("the record lengths do not add up to the batch")
