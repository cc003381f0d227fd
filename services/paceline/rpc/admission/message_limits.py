"""Count the fields of a message, and the elements of all its lists, before the message is parsed.

An empty sub-message takes two bytes on the wire, more than thirty times as much memory when parsed, and still more time
when it is read: without limits a request of 4 MiB would keep a broker busy for seconds. Counting stops at the limit, so
its cost does not grow with the message (docs/protocol/limits.md#field-count and #nested-lists).
"""

from functools import cache
from typing import Final, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import DecodeError, Message

from paceline.model.errors import InvalidRequestError
from paceline.model.protobuf_wire import (
    FIXED32,
    FIXED64,
    GROUP_BEGIN,
    GROUP_END,
    LENGTH,
    MAX_SINGLE_FIELDS,
    VARINT,
    read_varint,
)
from paceline.rpc.convert.common import MAX_CLIENT_PARTITIONS, MAX_INTERNAL_PARTITIONS

MAX_CLIENT_FIELDS: Final = 2 * MAX_CLIENT_PARTITIONS + MAX_SINGLE_FIELDS
"""Maximum number of fields of a client's request, which has at most two long lists."""
MAX_INTERNAL_FIELDS: Final = 2 * MAX_INTERNAL_PARTITIONS + MAX_SINGLE_FIELDS
MAX_ELEMENTS: Final = 400_000
"""Maximum number of elements in all lists of a client's request; each sub-message counts as one element.

This is enough for the largest number of records in a list (`convert.common.MAX_RECORDS`) with one header each.
"""
MAX_STEPS: Final = 4 * MAX_ELEMENTS
"""Fields after which counting elements stops and the request is refused, after a few tenths of a second at most."""
_FEW_STEPS: Final = 2_000
"""Fields in the first, short count: enough for requests that are large because of a payload, which is skipped."""

_LEAST_FIELD_BYTES: Final = 2
_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4, GROUP_BEGIN: 0, GROUP_END: 0}
_TEXTS: Final = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})

M = TypeVar("M", bound=Message)
_Inside = dict[int, Descriptor | bool]
"""Length-delimited fields by number: the message type; True for repeated strings or bytes, False for packed numbers."""


def parsed(message: type[M], data: bytes, max_fields: int = MAX_CLIENT_FIELDS, max_elements: int | None = None) -> M:
    """Return the message in these bytes, after a check of its fields and, with ``max_elements``, of all its lists.

    Raises:
        InvalidRequestError: a limit is exceeded, or the bytes are not such a message; if gRPC called the parser, its
            errors would become INTERNAL.
    """
    refuse_too_many_fields(data, max_fields)
    if max_elements is not None:
        refuse_too_many_elements(data, message, max_elements)
    try:
        return message.FromString(data)
    except DecodeError as failure:
        raise InvalidRequestError(f"the message cannot be parsed: {failure}") from None


def refuse_too_many_fields(data: bytes, limit: int, what: str = "fields") -> None:
    """Check that a message has at most ``limit`` fields, each element of a list counted, without sub-messages' fields.

    Malformed bytes pass this check; the parser refuses them.

    Raises:
        InvalidRequestError: the message has more than ``limit`` fields.
    """
    if len(data) > _LEAST_FIELD_BYTES * limit and not _is_counted(data, {}, 0, limit):
        raise InvalidRequestError(f"more than {limit} {what} in one request")


def refuse_too_many_elements(data: bytes, message: type[Message], limit: int = MAX_ELEMENTS) -> None:
    """Check that all lists in a message and its sub-messages have at most ``limit`` elements together.

    One topic in a CreateTopics request may have millions of assignments, and one record millions of headers. Only
    requests of hundreds of kilobytes can contain so many elements, so smaller requests are not counted. Malformed bytes
    pass this check; the parser, which reads the fields in the same order, refuses them.

    Raises:
        InvalidRequestError: the lists have more than ``limit`` elements, or there are more than `MAX_STEPS` fields.
    """
    if len(data) <= limit:
        return
    inside = _inside(message.DESCRIPTOR)
    if _is_counted(data, inside, limit, _FEW_STEPS):
        return
    marks = _marks(message.DESCRIPTOR)
    if marks is not None and sum(map(data.count, marks)) <= limit:
        return
    if not _is_counted(data, inside, limit, MAX_STEPS):
        raise InvalidRequestError(f"more than {MAX_STEPS} fields in one request")


def _is_counted(data: bytes, inside: _Inside, limit: int, steps: int) -> bool:
    """Count elements in the first ``steps`` fields; return whether that was the whole message, or malformed.

    Raises:
        InvalidRequestError: there are more than ``limit`` elements.
    """
    position, end, elements = 0, len(data), 0
    outer: list[tuple[int, _Inside]] = []
    """End and fields of each message that encloses the message at ``position``."""
    try:
        for _ in range(steps + 1):
            while position >= end:
                if position > end or not outer:
                    return True
                end, inside = outer.pop()
            tag = data[position]
            position += 1
            if tag >= 0x80:
                tag, position = read_varint(data, position - 1)
            wire_type = tag & 7
            if wire_type == LENGTH:
                size = data[position]
                position += 1
                if size >= 0x80:
                    size, position = read_varint(data, position - 1)
            elif wire_type == VARINT:
                position = read_varint(data, position)[1]
                continue
            else:
                position += _FIXED_BYTES.get(wire_type, end)  # count the fields of a group as well
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
    except (IndexError, ValueError):
        return True
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
            tags.add(number << 3 & 0x7F | LENGTH)
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
