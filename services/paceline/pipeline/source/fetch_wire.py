"""Read a FetchResponse without copying the record bytes: the payload stays where it is in the received message.

The wire format is protobuf's, unchanged; only field 8 of a partition's result (``batches``) is left in place and
described by its position, everything else goes through the generated class. Parsing 8 MB the ordinary way
copies it twice.
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
    """What a broker answered about one partition."""

    result: log_service_pb2.FetchPartitionResult
    """Everything but the batches."""
    begin: int
    """Position of the batches in the answer's buffer."""
    stop: int
    """Position behind them."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """A whole answer: the received message and where each partition's batches lie in it."""

    buffer: bytes
    partitions: list[PartitionAnswer]


def parse_fetch_answer(message: bytes) -> FetchAnswer:
    """Return the answer in a serialized ``paceline.v1.FetchResponse``.

    Raises:
        InvalidRequestError: it is not a protobuf message.
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
    """Return field number, where its content begins and where the field ends."""
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
