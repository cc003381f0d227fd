"""Read and write the wire format of protobuf without its library, which copies every payload.

Source: https://protobuf.dev/programming-guides/encoding/.
"""

import sys
from typing import Final

from paceline.model.errors import InvalidRequestError

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
GROUP_BEGIN: Final = 3
GROUP_END: Final = 4
FIXED32: Final = 5

WORTH_CUTTING_BYTES: Final = 1_024
"""Smaller messages are parsed by protobuf as a whole, because cutting out the payload costs more than copying it."""
MAX_SINGLE_FIELDS: Final = 256
"""Maximum number of fields of a message besides its long list. Requests have a dozen, a newer peer may send more."""


def varint(value: int) -> bytes:
    """Encode a non-negative number as a varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the value of the varint at ``position`` and the position after it.

    Raises:
        IndexError: the varint is incomplete.
        ValueError: the varint has more than ten bytes.
    """
    byte = data[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value, shift = byte & 0x7F, 7
    while shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("has a varint of more than ten bytes")


def next_field(data: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return (number, start, stop) of the field at ``position`` of a message that ends at ``end``.

    For a length-delimited field, start is the position of its content. A field of any other wire type gets the number
    -1, so that the caller keeps it among the other fields.

    Raises:
        ValueError: the field is incomplete, a group, or without a number; the message of the error
            continues a sentence that begins with the name of the protobuf message.
    """
    try:
        tag, start = data[position], position + 1
        if tag >= 0x80:
            tag, start = read_varint(data, position)
        wire_type = tag & 7
        field = -1
        if wire_type == LENGTH:
            size, start = data[start], start + 1
            if size >= 0x80:
                size, start = read_varint(data, start - 1)
            field, stop = tag >> 3, start + size
        elif wire_type == VARINT:
            _, stop = read_varint(data, start)
        elif wire_type == FIXED64:
            stop = start + 8
        elif wire_type == FIXED32:
            stop = start + 4
        else:
            raise ValueError(f"has a field of wire type {wire_type}")
    except IndexError:
        raise ValueError("is incomplete") from None
    if stop > end:
        raise ValueError("is incomplete")
    if tag < 8:
        raise ValueError("has a field without a number")
    return field, start, stop


def split_list(data: bytes, number: int, limit: int = sys.maxsize) -> tuple[bytes, list[tuple[int, int]]]:
    """Return (the bytes of all other fields, begin and end of each element of the list in field ``number``).

    Raises:
        ValueError: as `next_field`.
        InvalidRequestError: there are more than ``limit`` elements or `MAX_SINGLE_FIELDS` other fields.
    """
    parts: list[tuple[int, int]] = []
    rest: list[bytes] = []
    position, end = 0, len(data)
    while position < end:
        field, start, stop = next_field(data, position, end)
        if field == number:
            if len(parts) == limit:
                raise InvalidRequestError(f"more than {limit} partitions in one request")
            parts.append((start, stop))
        else:
            if len(rest) == MAX_SINGLE_FIELDS:
                raise InvalidRequestError(f"more than {MAX_SINGLE_FIELDS} fields beside the partitions in one request")
            rest.append(data[position:stop])
        position = stop
    return b"".join(rest), parts


def cut_payload(data: bytes, position: int, end: int, number: int) -> tuple[bytes, bytes | None]:
    """Return (the bytes of the message from ``position`` to ``end`` without field ``number``, that field's content).

    A small message is returned whole, with None.

    Raises:
        ValueError: as `next_field`, or the field occurs twice.
        InvalidRequestError: the message has more than `MAX_SINGLE_FIELDS` fields.
    """
    if end - position < WORTH_CUTTING_BYTES:
        return data[position:end], None
    rest, start, stop = find_payload(data, position, end, number)
    return rest, data[start:stop] if start >= 0 else None


def find_payload(data: bytes, position: int, end: int, number: int) -> tuple[bytes, int, int]:
    """Return the message without field ``number``, and begin and end of that field's content, -1 if it has none.

    Raises:
        ValueError, InvalidRequestError: as `cut_payload`.
    """
    begin = after = -1
    rest: list[bytes] = []
    kept = position
    count = 0
    while position < end:
        count += 1
        if count > MAX_SINGLE_FIELDS:
            raise InvalidRequestError(f"more than {MAX_SINGLE_FIELDS} fields in one partition")
        field, start, stop = next_field(data, position, end)
        if field == number:
            if begin >= 0:
                raise ValueError("has two payloads")
            begin, after = start, stop
            rest.append(data[kept:position])
            kept = stop
        position = stop
    rest.append(data[kept:end])
    return b"".join(rest), begin, after
