"""Count the elements of all lists in a message and its sub-messages before the message is parsed.

`message_limits` does not count the fields of sub-messages. But one topic in a CreateTopics request may have millions of
assignments, and one record millions of headers. Each takes two bytes on the wire, about fifty bytes when parsed, and a
microsecond when it is read. Only requests of hundreds of kilobytes can contain so many elements, so smaller requests
are not counted (docs/protocol/limits.md#nested-lists).
"""

from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import Message

from paceline.model.errors import InvalidRequestError
from paceline.rpc.admission.message_limits import read_varint

MAX_ELEMENTS: Final = 400_000
"""Most elements in all lists of a client's request; each sub-message counts as one element.

This is enough for the largest number of records in a list (`convert.common.MAX_RECORDS`) with one header each.
"""
MAX_STEPS: Final = 4 * MAX_ELEMENTS
"""Fields after which counting stops and the request is refused, so that it takes a few tenths of a second at most."""
_FEW_STEPS: Final = 2_000
"""Fields in the first, short count: enough for requests that are large because of a payload, which is skipped."""

_VARINT, _FIXED64, _LENGTH, _GROUP_BEGIN, _GROUP_END, _FIXED32 = range(6)
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4, _GROUP_BEGIN: 0, _GROUP_END: 0}
_TEXTS: Final = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})

_Inside = dict[int, Descriptor | bool]
"""Length-delimited fields by number: the message type; True for repeated strings or bytes, False for packed numbers."""


def refuse_too_many_elements(data: bytes, message: type[Message], limit: int = MAX_ELEMENTS) -> None:
    """Check that all lists in a message and its sub-messages have at most ``limit`` elements together.

    Malformed bytes pass this check; the parser, which reads the fields in the same order, refuses them.

    Raises:
        InvalidRequestError: the lists have more than ``limit`` elements, or there are more than `MAX_STEPS` fields.
    """
    if len(data) <= limit:
        return
    inside = _inside(message.DESCRIPTOR)
    try:
        if _count(data, inside, limit, _FEW_STEPS):
            return
        marks = _marks(message.DESCRIPTOR)
        if marks is not None and sum(map(data.count, marks)) <= limit:
            return
        if not _count(data, inside, limit, MAX_STEPS):
            raise InvalidRequestError(f"more than {MAX_STEPS} fields in one request")
    except (IndexError, ValueError):
        return


def _count(data: bytes, inside: _Inside, limit: int, steps: int) -> bool:
    """Count elements in the first ``steps`` fields; return whether that was the whole message.

    Raises:
        InvalidRequestError: there are more than ``limit`` elements.
    """
    position, end, elements = 0, len(data), 0
    outer: list[tuple[int, _Inside]] = []
    """End and fields of each message that encloses the message at ``position``."""
    for _ in range(steps):
        while position >= end:
            if position > end or not outer:
                return True
            end, inside = outer.pop()
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = read_varint(data, position - 1)
        wire_type = tag & 7
        if wire_type == _LENGTH:
            size = data[position]
            position += 1
            if size >= 0x80:
                size, position = read_varint(data, position - 1)
        elif wire_type == _VARINT:
            position = read_varint(data, position)[1]
            continue
        else:
            position += _FIXED_BYTES.get(wire_type, end)
            continue
        if position + size > end:
            return True
        held = inside.get(tag >> 3)
        if held is None:
            position += size
        elif isinstance(held, Descriptor):
            elements += 1
            outer.append((end, inside))
            end, inside = position + size, _inside(held)
        else:
            elements += 1 if held else size  # a packed number takes at least one byte
            position += size
        if elements > limit:
            raise InvalidRequestError(f"more than {limit} elements in the lists of one request")
    return False


@cache
def _marks(descriptor: Descriptor) -> tuple[bytes, ...] | None:
    """Return the bytes with which a list element can begin, at any depth; None if the message has lists of numbers.

    The number of these bytes in a request is an upper bound of its elements, although payloads contain such bytes, too.
    Counting them is very cheap, and most requests have fewer than the limit.
    """
    tags, waiting = set(), [descriptor]
    known = {descriptor}
    while waiting:
        for number, held in _inside(waiting.pop()).items():
            if held is False:
                return None
            tags.add(number << 3 & 0x7F | _LENGTH)
            if isinstance(held, Descriptor) and held not in known:
                known.add(held)
                waiting.append(held)
    return tuple(bytes((first,)) for tag in sorted(tags) for first in (tag, tag | 0x80))


@cache
def _inside(descriptor: Descriptor) -> _Inside:
    declared = DescriptorProto()
    descriptor.CopyToProto(declared)  # the API that says whether a field is repeated differs by protobuf release
    found: _Inside = {}
    for field, declaration in zip(descriptor.fields, declared.field, strict=True):
        if field.message_type is not None:
            found[field.number] = field.message_type
        elif declaration.label == FieldDescriptorProto.LABEL_REPEATED:
            found[field.number] = field.type in _TEXTS
    return found
