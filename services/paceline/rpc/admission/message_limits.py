"""Count the fields of a message before it is parsed.

An empty sub-message takes two bytes on the wire, more than thirty times that once parsed, and more time still when
it is visited: without a limit a request of 16 MiB keeps a broker busy for a minute. The count ends at the limit, so its
cost does not grow with the message (docs/protocol/limits.md#field-count).
"""

from typing import Final

from paceline.model.errors import InvalidRequestError
from paceline.rpc.convert.common import MAX_CLIENT_PARTITIONS, MAX_INTERNAL_PARTITIONS

MAX_SINGLE_FIELDS: Final = 256
"""Fields of a message beside its long list; a request of Paceline has a dozen, newer peers may add to them."""
MAX_CLIENT_FIELDS: Final = 2 * MAX_CLIENT_PARTITIONS + MAX_SINGLE_FIELDS
"""Fields of a client's request, which has at most two long lists."""
MAX_INTERNAL_FIELDS: Final = 2 * MAX_INTERNAL_PARTITIONS + MAX_SINGLE_FIELDS

_VARINT, _FIXED64, _LENGTH, _GROUP_BEGIN, _GROUP_END, _FIXED32 = range(6)
_LEAST_FIELD_BYTES = 2


def refuse_too_many_fields(data: bytes, limit: int, what: str = "fields") -> None:
    """Check that a message has at most ``limit`` fields, each element of a list counted; never looks inside them.

    Bytes that are no message are left to the parser.

    Raises:
        InvalidRequestError: there are more.
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
        return position  # fields inside a group are counted as well
    raise ValueError(wire_type)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at ``position`` and where it ends.

    Raises:
        IndexError: the bytes end before it does.
        ValueError: it has more than ten bytes.
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
