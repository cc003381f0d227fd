"""Count the elements of a message's lists, and of the lists inside them, before the message is parsed.

`message_limits` counts the fields of a message without looking inside them. But one topic in a CreateTopics may carry
millions of assignments, and one record millions of headers: each takes two bytes on the wire, about fifty once parsed,
and a microsecond when it is visited. Only requests of hundreds of kilobytes can hold so many; smaller ones are not
counted (docs/protocol/limits.md#nested-lists).
"""

from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import Message

from paceline.model.errors import InvalidRequestError
from paceline.rpc.admission.message_limits import read_varint

MAX_ELEMENTS: Final = 400_000
"""Elements of all lists of a client's request, a message counted as one: as many records as one list may have
(`convert.common.MAX_RECORDS`) with a header each."""
MAX_STEPS: Final = 4 * MAX_ELEMENTS
"""Fields looked at before a request is refused as well, so that the look ends after some tenths of a second."""
_FEW_STEPS: Final = 2_000
"""Enough for requests that are large by payloads, as those with encoded batches are; payloads are skipped."""

_VARINT, _FIXED64, _LENGTH, _GROUP_BEGIN, _GROUP_END, _FIXED32 = range(6)
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4, _GROUP_BEGIN: 0, _GROUP_END: 0}
_TEXTS: Final = frozenset({FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES})

_Inside = dict[int, Descriptor | bool]
"""Length-delimited fields by number: the message type, else whether it is a repeated text and no packed numbers."""


def refuse_too_many_elements(data: bytes, message: type[Message], limit: int = MAX_ELEMENTS) -> None:
    """Check that the lists of a message and of all messages in it have at most ``limit`` elements together.

    Bytes that are no such message are left to the parser, which goes through them in the same order.

    Raises:
        InvalidRequestError: there are more.
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
    """Return whether ``steps`` fields were enough to see them all, and raise InvalidRequestError for a crowd."""
    position, end, elements = 0, len(data), 0
    outer: list[tuple[int, _Inside]] = []
    """End and fields of each message around the one at ``position``."""
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
            elements += 1 if held else size  # a packed number takes a byte at least
            position += size
        if elements > limit:
            raise InvalidRequestError(f"more than {limit} elements in the lists of one request")
    return False


@cache
def _marks(descriptor: Descriptor) -> tuple[bytes, ...] | None:
    """Return the bytes one of which begins each element of a list, wherever it lies; None for lists of numbers.

    Payloads hold them as well, by chance. Counting them costs next to nothing, and most requests have too few.
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
    descriptor.CopyToProto(declared)  # releases of protobuf differ in how a field is asked whether it is a list
    found: _Inside = {}
    for field, declaration in zip(descriptor.fields, declared.field, strict=True):
        if field.message_type is not None:
            found[field.number] = field.message_type
        elif declaration.label == FieldDescriptorProto.LABEL_REPEATED:
            found[field.number] = field.type in _TEXTS
    return found
