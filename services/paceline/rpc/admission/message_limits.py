"""Count the fields of a message before it is parsed.

An empty sub-message takes two bytes on the wire, more than thirty times as much memory when parsed, and still more time
when it is read: without a limit a request of 16 MiB would keep a broker busy for a minute. Counting stops at the limit,
so its cost does not grow with the message (docs/protocol/limits.md#field-count).
"""

from typing import Final

from paceline.model.errors import InvalidRequestError
from paceline.rpc.convert.common import MAX_CLIENT_PARTITIONS, MAX_INTERNAL_PARTITIONS

MAX_SINGLE_FIELDS: Final = 256
"""Most fields of a message besides its long list; a request of Paceline has a dozen, a newer peer may send more."""
MAX_CLIENT_FIELDS: Final = 2 * MAX_CLIENT_PARTITIONS + MAX_SINGLE_FIELDS
"""Most fields of a client's request, which has at most two long lists."""
MAX_INTERNAL_FIELDS: Final = 2 * MAX_INTERNAL_PARTITIONS + MAX_SINGLE_FIELDS

_VARINT, _FIXED64, _LENGTH, _GROUP_BEGIN, _GROUP_END, _FIXED32 = range(6)
_LEAST_FIELD_BYTES = 2


def refuse_too_many_fields(data: bytes, limit: int, what: str = "fields") -> None:
    """Check that a message has at most ``limit`` fields, each element of a list counted, without sub-messages' fields.

    Malformed bytes pass this check; the parser refuses them.

    Raises:
        InvalidRequestError: the message has more than ``limit`` fields.
    """
    end = len(data)
    if end <= _LEAST_FIELD_BYTES * limit:
        return
    position = count = 0
    try:
        while position < end:
            count += 1
            if count > limit:
                raise InvalidRequestError(f"more than {limit} {what} in one request")
            position = _after_field(data, position)
    except (IndexError, ValueError):
        return


def _after_field(data: bytes, position: int) -> int:
    tag, position = read_varint(data, position)
    wire_type = tag & 7
    if wire_type == _LENGTH:
        size, position = read_varint(data, position)
        return position + size
    if wire_type == _VARINT:
        return read_varint(data, position)[1]
    if wire_type == _FIXED64:
        return position + 8
    if wire_type == _FIXED32:
        return position + 4
    if wire_type in (_GROUP_BEGIN, _GROUP_END):
        return position  # count the fields of a group as well
    raise ValueError(wire_type)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the value of the varint at ``position`` and the position after it.

    Raises:
        IndexError: the varint is cut.
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
    raise ValueError("a varint has more than ten bytes")
