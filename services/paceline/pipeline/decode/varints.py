"""Decode zig-zag varints of many records at once with numpy: one gather per byte position, no loop over records.

Reads are clipped to the buffer, so a corrupt payload yields a wrong number, never a read out of bounds; the callers
then check each number against the bounds of its record. Source: Kafka 2.8 ByteUtils.readVarint.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from paceline.model.errors import CorruptMessageError

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

VARINT_MAX_BYTES: Final = 5
VARLONG_MAX_BYTES: Final = 10


def read_varints(buffer: Bytes, positions: Int64s, max_bytes: int = VARINT_MAX_BYTES) -> tuple[Int64s, Int64s]:
    """Return the signed numbers at ``positions`` and the positions after them.

    Args:
        buffer: the bytes; must not be empty.
        positions: start of each number; positions outside the buffer read the nearest byte inside.
        max_bytes: 5 for a 32-bit varint, 10 for a varlong.

    Raises:
        CorruptMessageError: a number has more than ``max_bytes`` bytes.
    """
    byte = buffer.take(positions, mode="clip")
    after = positions + 1
    unfinished = np.flatnonzero(byte >= 0x80)
    if not unfinished.size:
        small = byte.astype(np.int64)
        return (small >> 1) ^ -(small & 1), after
    raw = (byte & 0x7F).astype(np.uint64)
    shift = 7
    while unfinished.size:
        if shift >= 7 * max_bytes:
            raise CorruptMessageError(f"a number in a record has more than {max_bytes} bytes")
        every = unfinished.size == positions.size
        where = after if every else after[unfinished]
        byte = buffer.take(where, mode="clip")
        part = (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        if every:
            raw |= part
            after += 1
        else:
            raw[unfinished] |= part
            after[unfinished] = where + 1
        more = byte >= 0x80
        unfinished = np.flatnonzero(more) if every else unfinished[more]
        shift += 7
    return ((raw >> np.uint64(1)) ^ (np.uint64(0) - (raw & np.uint64(1)))).view(np.int64), after


def read_varint(buffer: bytes | bytearray | memoryview, position: int, end: int) -> tuple[int, int]:
    """Return the 32-bit varint at ``position`` and the position after it; faster than numpy for few records.

    Raises:
        CorruptMessageError: the varint does not end before ``end``, or it has more than five bytes.
    """
    raw = shift = 0
    while position < end and shift < 7 * VARINT_MAX_BYTES:
        byte = buffer[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
    raise CorruptMessageError("a number in a record is cut or too long")
