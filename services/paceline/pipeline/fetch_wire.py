"""Parse a FetchResponse without copying the record batches, which stay in the received message.

The wire format is that of protobuf. For field 8 of a partition's result (``batches``) the parser returns only the
position; the generated class parses the other fields. The generated class alone would copy 8 MB of batches twice.
"""

from dataclasses import dataclass
from typing import Final

from paceline.model.errors import InvalidRequestError
from paceline.model.protobuf_wire import next_field
from paceline.v1 import log_service_pb2

FETCH_METHOD: Final = "/paceline.v1.LogService/Fetch"

_RESULTS_FIELD: Final = log_service_pb2.FetchResponse.PARTITIONS_FIELD_NUMBER
_BATCHES_FIELD: Final = log_service_pb2.FetchPartitionResult.BATCHES_FIELD_NUMBER


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
    try:
        while position < end:
            number, begin, position = next_field(message, position, end)
            if number == _RESULTS_FIELD:
                partitions.append(_parse_result(message, begin, position))
    except ValueError as error:
        raise InvalidRequestError(f"the fetch answer {error}") from None
    return FetchAnswer(message, partitions)


def _parse_result(message: bytes, position: int, end: int) -> PartitionAnswer:
    others: list[bytes] = []
    batches_begin = batches_stop = position
    while position < end:
        field_begin = position
        number, begin, position = next_field(message, position, end)
        if number == _BATCHES_FIELD:
            batches_begin, batches_stop = begin, position
        else:
            others.append(message[field_begin:position])
    return PartitionAnswer(
        log_service_pb2.FetchPartitionResult.FromString(b"".join(others)), batches_begin, batches_stop
    )
