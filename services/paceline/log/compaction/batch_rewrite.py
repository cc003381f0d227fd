"""Rewrite one batch without some of its records.

Base offset, last offset delta, producer fields and leader epoch stay, so offsets and duplicate detection do not change.
Records are copied byte by byte; only the timestamp deltas are encoded again when the batch gets a delete horizon.
Source: KIP-534.
"""

from collections.abc import Sequence

from paceline.log.compression import Codec, compress, expansion_limit
from paceline.log.record_batch import (
    BATCH_HEADER,
    CODEC_BITS,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    set_crc,
)
from paceline.model.errors import CorruptMessageError
from paceline.model.protobuf_wire import read_varint, varint


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Return the wall clock from which the tombstones of a batch may be removed, ``None`` while it is not set."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None


def empty_batch(header: BatchHeader) -> bytes:
    """Return the batch without its records; offsets and producer fields stay."""
    attributes = header.attributes & ~(CODEC_BITS | DELETE_HORIZON_BIT)
    return _assemble(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def rewrite_batch(
    header: BatchHeader, plain: Buffer, size: int, kept: Sequence[bool], max_timestamp: int, horizon_ms: int | None
) -> bytes:
    """Return the batch with only the records whose entry in ``kept`` is true; ``kept`` has one entry per record.

    ``plain`` holds the batch with uncompressed records in its first ``size`` bytes. ``max_timestamp`` is the largest
    timestamp of the kept records. ``horizon_ms`` is a delete horizon to set; with ``None`` it does not change.

    Raises:
        CorruptMessageError: the number of records differs from the length of ``kept``, or a record is cut.
    """
    view = memoryview(plain)[:size]
    shift = 0 if horizon_ms is None else header.base_timestamp - horizon_ms
    pieces: list[Buffer] = []
    position = HEADER_BYTES
    try:
        for keep in kept:
            raw_length, body = read_varint(view, position)
            length = (raw_length >> 1) ^ -(raw_length & 1)  # zigzag
            end = body + length
            if length < 0 or end > size:
                raise CorruptMessageError(f"a record at offset {header.base_offset} extends beyond its batch")
            if keep:
                pieces.append(view[position:end] if horizon_ms is None else _shifted(view[body:end], shift))
            position = end
    except (IndexError, ValueError) as error:
        raise CorruptMessageError(f"the records of the batch at offset {header.base_offset} are incomplete") from error
    if position != size:
        raise CorruptMessageError(f"the batch at offset {header.base_offset} has more bytes than records")
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON_BIT, horizon_ms
    records = b"".join(pieces)
    payload = compress(header.codec, records)
    if len(records) > expansion_limit(len(payload)):
        # Readers refuse a batch that expands beyond `expansion_limit`, so store the records uncompressed.
        attributes, payload = attributes & ~CODEC_BITS | Codec.NONE, records
    return _assemble(
        header._replace(
            attributes=attributes, base_timestamp=base_timestamp, max_timestamp=max_timestamp, record_count=sum(kept)
        ),
        payload,
    )


def _assemble(header: BatchHeader, payload: bytes) -> bytes:
    header = header._replace(length=HEADER_BYTES - LENGTH_PREFIX_BYTES + len(payload), crc=0)
    batch = bytearray(BATCH_HEADER.pack(*header))
    batch += payload
    set_crc(batch, len(batch))
    return bytes(batch)


def _shifted(body: memoryview, shift: int) -> bytes:
    """Return a record with its length prefix and ``shift`` added to its timestamp delta; ``body`` has no prefix."""
    raw_delta, behind = read_varint(body, 1)
    changed = b"".join((body[:1], _zigzag((raw_delta >> 1 ^ -(raw_delta & 1)) + shift), body[behind:]))
    return _zigzag(len(changed)) + changed


def _zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else ((-value) << 1) - 1)
