"""Read and write the wire format of protobuf without its library, which copies every payload.

Source: https://protobuf.dev/programming-guides/encoding/.
"""

from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
GROUP_BEGIN: Final = 3
GROUP_END: Final = 4
FIXED32: Final = 5


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
        tag, start = read_varint(data, position)
        wire_type = tag & 7
        field = -1
        if wire_type == LENGTH:
            size, start = read_varint(data, start)
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
