"""Encode Produce requests and decode Fetch responses without a protobuf message around the payload.

protobuf copies a payload into its arena and out again, which halves the throughput of a core. This module copies the
bytes of a batch once. The format is that of `paceline.v1.log_service`; tests compare it with the generated classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from paceline.model.errors import CorruptMessageError, InvalidRequestError
from paceline.model.protobuf_wire import cut_payload, find_payload, split_list, varint
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.log_service_pb2 import FetchPartitionResult, FetchResponse

PRODUCE_METHOD: Final = "/paceline.v1.LogService/Produce"
FETCH_METHOD: Final = "/paceline.v1.LogService/Fetch"


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
    """Fetch result of one partition; the high watermark is exclusive."""

    topic: str = ""
    partition: int = 0
    error: PartitionError | None = None
    high_watermark: int = 0
    log_start_offset: int = 0
    diverging: tuple[int, int] | None = None
    """(epoch, its end offset) if the leader's log diverges from the records that this client has read."""
    batches: bytes = b""
    preferred_read_replica: int | None = None
    """Broker to fetch from next (KIP-392); this result then has no records."""
    begin: int = 0
    """Position of the batches in `FetchAnswer.data`, if they were not copied."""
    stop: int = 0


@dataclass(slots=True)
class FetchAnswer:
    """A fetch response."""

    session_id: int
    partitions: list[FetchedPartition]
    data: bytes
    """The response."""
    throttle_ms: int = 0
    """Pause before the next fetch from this broker."""


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


def decode_fetch_answer(data: bytes, copy: bool = True) -> FetchAnswer:
    """Return the fields of an encoded FetchResponse; without ``copy``, the batches stay in it, from begin to stop.

    Raises:
        CorruptMessageError: the bytes are not a protobuf message.
    """
    try:
        rest, parts = split_list(data, FetchResponse.PARTITIONS_FIELD_NUMBER)
        head = FetchResponse.FromString(rest)
        partitions = [_decode_partition(data, start, end, copy) for start, end in parts]
        return FetchAnswer(head.session_id, partitions, data, head.throttle_ms)
    except (ValueError, DecodeError, InvalidRequestError) as error:
        raise CorruptMessageError(f"the fetch response cannot be decoded: {error}") from error


def _decode_partition(data: bytes, start: int, end: int, copy: bool) -> FetchedPartition:
    begin = stop = 0
    if copy:
        head, batches = cut_payload(data, start, end, FetchPartitionResult.BATCHES_FIELD_NUMBER)
    else:
        head, begin, stop = find_payload(data, start, end, FetchPartitionResult.BATCHES_FIELD_NUMBER)
        batches = b""
    result = FetchPartitionResult.FromString(head)
    diverging = result.diverging_epoch if result.HasField("diverging_epoch") else None
    return FetchedPartition(
        result.topic,
        result.partition,
        result.error if result.HasField("error") else None,
        result.high_watermark,
        result.log_start_offset,
        None if diverging is None else (diverging.epoch, diverging.end_offset),
        result.batches if batches is None else batches,
        result.preferred_read_replica if result.HasField("preferred_read_replica") else None,
        max(begin, 0),
        max(stop, 0),
    )
