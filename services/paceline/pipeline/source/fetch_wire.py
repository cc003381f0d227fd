"""Parse a FetchResponse without copying the record batches, which stay in the received message.

The wire format is that of protobuf. For field 8 of a partition's result (``batches``) the parser returns only the
position; the generated class parses the other fields. The generated class alone would copy 8 MB of batches twice.
Source: https://protobuf.dev/programming-guides/encoding/.
"""

from dataclasses import dataclass
from typing import Final

from paceline.model.errors import InvalidRequestError
from paceline.v1 import log_service_pb2

FETCH_METHOD: Final = "/paceline.v1.LogService/Fetch"

_RESULTS_FIELD: Final = log_service_pb2.FetchResponse.PARTITIONS_FIELD_NUMBER
_BATCHES_FIELD: Final = log_service_pb2.FetchPartitionResult.BATCHES_FIELD_NUMBER

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """Result of one partition in a fetch response."""

    result: log_service_pb2.FetchPartitionResult
    """All fields except the batches."""
    begin: int
    """Position of the batches in `FetchAnswer.buffer`."""
    stop: int
    """Position after the batches."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """A fetch response: the received message and the positions of each partition's batches in it."""

    buffer: bytes
    partitions: list[PartitionAnswer]


def parse_fetch_answer(message: bytes) -> FetchAnswer:
    """Parse a serialized ``paceline.v1.FetchResponse``.

    Raises:
        InvalidRequestError: ``message`` is not a valid protobuf message.
    """
    partitions = []
    position, end = 0, len(message)
    while position < end:
        number, begin, position = _next_field(message, position, end)
        if number == _RESULTS_FIELD:
            partitions.append(_parse_result(message, begin, position))
    return FetchAnswer(message, partitions)


def _parse_result(message: bytes, position: int, end: int) -> PartitionAnswer:
    others: list[bytes] = []
    batches_begin = batches_stop = position
    while position < end:
        field_begin = position
        number, begin, position = _next_field(message, position, end)
        if number == _BATCHES_FIELD:
            batches_begin, batches_stop = begin, position
        else:
            others.append(message[field_begin:position])
    return PartitionAnswer(
        log_service_pb2.FetchPartitionResult.FromString(b"".join(others)), batches_begin, batches_stop
    )


def _next_field(message: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Return the number of a field, the position of its content and the position after the field."""
    tag, position = _varint(message, position, end)
    begin = position
    kind = tag & 7
    if kind == _VARINT:
        _, position = _varint(message, position, end)
    elif kind == _LENGTH_DELIMITED:
        size, begin = _varint(message, position, end)
        position = begin + size
    elif kind in (_FIXED64, _FIXED32):
        position += 8 if kind == _FIXED64 else 4
    else:
        raise InvalidRequestError(f"the fetch answer has a field of wire type {kind}")
    if position > end:
        raise InvalidRequestError("the fetch answer is cut")
    return tag >> 3, begin, position


def _varint(message: bytes, position: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while position < end and shift < 70:
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise InvalidRequestError("the fetch answer has a number that does not end")
