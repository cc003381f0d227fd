"""Finding the records of many batches: all batches in lock-step while there are many, a plain scan for few, long ones.

A record starts with its length, so the place of a record is known only after the one before. One numpy step therefore
decodes the i-th length of every batch; when fewer than `LOCKSTEP_MIN_BATCHES` batches are left, such a step costs more
than a plain loop over them. Source: spec/pipeline.md section 4.1, method D.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from paceline.model.errors import CorruptMessageError
from paceline.pipeline.varints import Bytes, Int64s, read_varint, read_varints

LOCKSTEP_MIN_BATCHES: Final = 64
RECORD_MIN_BYTES: Final = 7
"""Length, attributes, timestamp delta, offset delta, two lengths and the header count take a byte each."""


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """Where the records lie, batch after batch in the order of the batches."""

    body: Int64s
    """Position of each record's attributes byte, behind the length."""
    end: Int64s
    """Position behind each record."""
    batch: Int64s
    """Row of the batch that each record belongs to."""


def find_records(payload: bytes | bytearray, begin: Int64s, end: Int64s, count: Int64s) -> RecordPlaces:
    """Return the places of the records of batches whose record sections are ``begin`` to ``end`` in ``payload``.

    Afterwards every record is known to lie inside its batch, behind the one before, and to fill the batch together with
    the others.

    Raises:
        CorruptMessageError: lengths and counts do not add up.
    """
    if (count * RECORD_MIN_BYTES > end - begin).any():
        raise CorruptMessageError("a batch claims more records than its bytes can hold")
    total = int(count.sum())
    body = np.empty(total, dtype=np.int64)
    stop = np.empty(total, dtype=np.int64)
    first = np.cumsum(count) - count
    order = np.argsort(-count, kind="stable")
    descending = count[order]
    cursor, slot = begin[order], first[order]
    view = np.frombuffer(payload, dtype=np.uint8)
    done = _lockstep(view, cursor, slot, descending, body, stop)
    _scan_rest(payload, cursor, slot, descending - done, end[order], body, stop)
    _check_places(body, stop, cursor, end[order])
    return RecordPlaces(body, stop, np.repeat(np.arange(len(count)), count))


def _lockstep(view: Bytes, cursor: Int64s, slot: Int64s, count: Int64s, body: Int64s, stop: Int64s) -> Int64s:
    """Advance all batches by one record per step while enough of them have records left; return the records done."""
    done = np.zeros_like(count)
    if len(count) < LOCKSTEP_MIN_BATCHES:
        return done
    steps = int(count[LOCKSTEP_MIN_BATCHES - 1])
    # Batches are sorted by count, so those with records left are a prefix that only gets shorter.
    active = np.searchsorted(-count, -np.arange(steps), side="left").tolist()
    for alive in active:
        length, after = read_varints(view, cursor[:alive])
        following = after + length
        at = slot[:alive]
        body[at] = after
        stop[at] = following
        cursor[:alive] = following
        at += 1
    np.minimum(count, steps, out=done)
    return done


def _scan_rest(
    payload: bytes | bytearray, cursor: Int64s, slot: Int64s, left: Int64s, end: Int64s, body: Int64s, stop: Int64s
) -> None:
    for row in np.flatnonzero(left).tolist():
        first, count = int(slot[row]), int(left[row])
        bodies, stops = _scan_one(payload, int(cursor[row]), int(end[row]), count)
        body[first : first + count] = bodies
        stop[first : first + count] = stops
        cursor[row] = stops[-1]


def _scan_one(payload: bytes | bytearray, position: int, end: int, count: int) -> tuple[list[int], list[int]]:
    bodies: list[int] = []
    stops: list[int] = []
    for _ in range(count):
        if not 0 <= position < end:
            raise CorruptMessageError("a record lies outside its batch")
        byte = payload[position]
        if byte < 0x80:
            position += 1
            length = (byte >> 1) ^ -(byte & 1)
        elif position + 1 < end and payload[position + 1] < 0x80:
            length = (byte & 0x7F) | payload[position + 1] << 7
            position += 2
            length = (length >> 1) ^ -(length & 1)
        else:
            length, position = read_varint(payload, position, end)
        bodies.append(position)
        position += length
        stops.append(position)
    return bodies, stops


def _check_places(body: Int64s, stop: Int64s, cursor: Int64s, end: Int64s) -> None:
    """Every length at least the minimum and the last end on the batch's end: so all lie inside, one behind another."""
    if (stop - body < RECORD_MIN_BYTES - 1).any() or (cursor != end).any():
        raise CorruptMessageError("the record lengths do not add up to the batch")
