"""Encode Produce requests and decode Fetch responses without a protobuf message around the payload.

protobuf copies a payload into its arena and out again, which halves the throughput of a core. This module copies the
bytes of a batch once. The format is that of `paceline.v1.log_service`; tests compare it with the generated classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from paceline.model.errors import CorruptMessageError
from paceline.model.protobuf_wire import FIXED32, FIXED64, LENGTH, VARINT, read_varint, varint
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.log_service_pb2 import EpochEndOffset

PRODUCE_METHOD: Final = "/paceline.v1.LogService/Produce"
PRODUCE_STREAM_METHOD: Final = "/paceline.v1.LogService/ProduceStream"
FETCH_METHOD: Final = "/paceline.v1.LogService/Fetch"
FETCH_STREAM_METHOD: Final = "/paceline.v1.LogService/FetchStream"


class ProducePiece(NamedTuple):
    """A batch for one partition."""

    topic: str
    partition: int
    batch: bytes | bytearray
    topic_id: str = ""
    leader_epoch: int | None = None
    """Leader epoch known to the client; a leader of another epoch refuses the batch."""


@dataclass(slots=True)
class FetchedPartition:
    """Fetch result of one partition; the high watermark and the last stable offset are exclusive."""

    topic: str = ""
    partition: int = 0
    error: PartitionError | None = None
    high_watermark: int = 0
    last_stable_offset: int = 0
    log_start_offset: int = 0
    diverging: tuple[int, int] | None = None
    """(epoch, its end offset) if the leader's log diverges from the records that this client has read."""
    batches: bytes = b""
    preferred_read_replica: int | None = None
    """Broker to fetch from next (KIP-392); this result then has no records."""


@dataclass(slots=True)
class FetchAnswer:
    """A fetch response."""

    session_id: int
    partitions: list[FetchedPartition]


def encode_produce_request(acks: int, timeout_ms: int, pieces: Iterable[ProducePiece]) -> bytes:
    """Return the bytes of a ProduceRequest."""
    parts: list[bytes | bytearray] = []
    if acks:
        parts.append(b"\x08" + varint(acks))
    if timeout_ms:
        parts.append(b"\x10" + varint(timeout_ms))
    for piece in pieces:
        topic = piece.topic.encode()
        head = b"".join((b"\x0a", varint(len(topic)), topic))
        if piece.partition:
            head += b"\x10" + varint(piece.partition)
        if piece.topic_id:
            topic_id = piece.topic_id.encode()
            head += b"".join((b"\x1a", varint(len(topic_id)), topic_id))
        if piece.leader_epoch is not None:
            head += b"\x30" + varint(piece.leader_epoch)
        head += b"\x22" + varint(len(piece.batch))
        parts.append(b"\x1a" + varint(len(head) + len(piece.batch)))
        parts.append(head)
        parts.append(piece.batch)
    return b"".join(parts)


def decode_fetch_answer(data: bytes) -> FetchAnswer:
    """Return the fields of an encoded FetchResponse.

    Raises:
        CorruptMessageError: the bytes are not a protobuf message.
    """
    try:
        answer = FetchAnswer(0, [])
        position, end = 0, len(data)
        while position < end:
            tag, position = read_varint(data, position)
            field, kind = tag >> 3, tag & 7
            if kind == LENGTH:
                size, position = read_varint(data, position)
                stop = _within(position + size, end)
                if field == 2:
                    answer.partitions.append(_decode_partition(data, position, stop))
                position = stop
            elif field == 1 and kind == VARINT:
                answer.session_id, position = read_varint(data, position)
            else:
                position = _skip(data, position, kind)
        return answer
    except (IndexError, ValueError, DecodeError) as error:
        raise CorruptMessageError(f"the fetch response cannot be decoded: {error}") from error


def _decode_partition(data: bytes, position: int, end: int) -> FetchedPartition:
    found = FetchedPartition()
    while position < end:
        tag, position = read_varint(data, position)
        field, kind = tag >> 3, tag & 7
        if kind == LENGTH:
            size, position = read_varint(data, position)
            stop = _within(position + size, end)
            if field == 8:
                found.batches = data[position:stop]
            elif field == 1:
                found.topic = data[position:stop].decode()
            elif field == 3:
                found.error = PartitionError.FromString(data[position:stop])
            elif field == 7:
                diverging = EpochEndOffset.FromString(data[position:stop])
                found.diverging = (diverging.epoch, diverging.end_offset)
            position = stop
        elif kind == VARINT:
            value, position = read_varint(data, position)
            if value >= 1 << 63:
                value -= 1 << 64
            if field == 2:
                found.partition = value
            elif field == 4:
                found.high_watermark = value
            elif field == 5:
                found.last_stable_offset = value
            elif field == 6:
                found.log_start_offset = value
            elif field == 10:
                found.preferred_read_replica = value
        else:
            position = _skip(data, position, kind)
    return found


def _skip(data: bytes, position: int, kind: int) -> int:
    if kind == VARINT:
        return read_varint(data, position)[1]
    if kind == FIXED64:
        return _within(position + 8, len(data))
    if kind == FIXED32:
        return _within(position + 4, len(data))
    raise ValueError(f"wire type {kind}")


def _within(position: int, end: int) -> int:
    if position > end:
        raise ValueError("a field is longer than its message")
    return position
