"""Find the records of many batches: all batches in lock-step while there are many, a plain scan for few, long ones.

A record starts with its length, so the place of a record is known only after the one before. One numpy step therefore
decodes the i-th length of every batch; when fewer than `LOCKSTEP_MIN_BATCHES` batches are left, such a step costs more
than a plain loop over them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from paceline.model.errors import CorruptMessageError
from paceline.pipeline.decode.varints import Bytes, Int64s, read_varint, read_varints

LOCKSTEP_MIN_BATCHES: Final = 32
RECORD_MIN_BYTES: Final = 7
"""Length, attributes, timestamp delta, offset delta, two lengths and the header count take a byte each."""


def _advances() -> NDArray[np.int16]:
    """For every pair of bytes, little-endian, how far the record that starts with them reaches; 0: look closer.

    A length of one or two bytes covers records of up to 8 KiB; longer and negative ones give 0.
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

    ``cursor`` and ``slot`` (where each batch's next record starts, and its number) are moved in place.
    """
    if len(count) < LOCKSTEP_MIN_BATCHES:
        return np.zeros_like(count)
    steps = int(count[LOCKSTEP_MIN_BATCHES - 1])
    # Batches are sorted by count, so those with records left are a prefix that only gets shorter.
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
    for row in np.flatnonzero(left).tolist():
        first, count = int(slot[row]), int(left[row])
        found, cursor[row] = _scan_one(payload, int(cursor[row]), int(end[row]), count)
        starts[first : first + count] = found


def _scan_one(payload: bytes | bytearray, position: int, end: int, count: int) -> tuple[list[int], int]:
    """Return where ``count`` records start, and the position behind the last."""
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


def _check_places(length: Int64s, cursor: Int64s, end: Int64s) -> None:
    """Every length at least the minimum and the last end on the batch's end: so all lie inside, one behind another."""
    if (length < RECORD_MIN_BYTES - 1).any() or (cursor != end).any():
        raise CorruptMessageError("the record lengths do not add up to the batch")
