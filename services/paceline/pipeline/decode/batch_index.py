"""Find the record batches of a fetched buffer and read their headers.

A fetch response holds batches of one or more partitions in one buffer. `index_batches` reads only headers: they contain
the next offset to fetch, so the next fetch starts while the records are still being decoded. Source: Kafka 2.8
DefaultRecordBatch.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from paceline.model.errors import CorruptMessageError
from paceline.pipeline.decode.varints import Int64s

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
CRC_FROM: Final = 21
"""Position of the attributes; the checksum covers the batch from here to its end."""
MAX_BATCHES_AT_ONCE: Final = 1 << 16

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
CONTROL: Final = 0x20

_LENGTH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_DELTA = struct.Struct(">i")
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
assert _HEADER.itemsize == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class FetchedSlice:
    """The bytes of one partition in a fetched buffer and the offsets wanted from them."""

    topic: str
    partition: int
    begin: int
    """Position of the first batch in the buffer."""
    stop: int
    """Position after the last byte; the last batch may be incomplete."""
    start_offset: int
    """First offset wanted; earlier records of the first batch are dropped."""
    end_offset: int
    """First offset after the wanted offsets."""


@dataclass(frozen=True, slots=True)
class BatchIndex:
    """Header fields of the complete batches that may hold wanted records, one row per batch."""

    buffer: bytes
    slices: Sequence[FetchedSlice]
    position: Int64s
    size: Int64s
    slice_number: Int64s
    base_offset: Int64s
    last_offset_delta: Int64s
    attributes: Int64s
    base_timestamp: Int64s
    max_timestamp: Int64s
    count: Int64s
    next_offsets: Sequence[int]
    """Next offset to fetch, per slice; its start offset when the slice holds no complete batch."""

    def __len__(self) -> int:
        return len(self.position)

    @property
    def wanted_bytes(self) -> float:
        """Stored size of the wanted offsets; a batch counts with the fraction of its offsets that is wanted."""
        starts, ends = (
            np.array([getattr(each, name) for each in self.slices], dtype=np.int64)[self.slice_number]
            for name in ("start_offset", "end_offset")
        )
        offsets = self.last_offset_delta + 1
        wanted = np.minimum(self.base_offset + offsets, ends) - np.maximum(self.base_offset, starts)
        return float((self.size * wanted / offsets).sum())


def index_batches(buffer: bytes, slices: Sequence[FetchedSlice]) -> BatchIndex:
    """Return the complete batches of each slice up to its end offset; an incomplete last batch is left out.

    Raises:
        CorruptMessageError: a batch has an impossible length, offset or count, or a magic number other than 2.
    """
    positions: list[int] = []
    owners: list[int] = []
    next_offsets: list[int] = []
    for number, piece in enumerate(slices):
        before = len(positions)
        next_offsets.append(_walk_lengths(buffer, piece, positions))
        owners.extend([number] * (len(positions) - before))
    position = np.array(positions, dtype=np.int64)
    fields = _gather_headers(buffer, position)
    index = BatchIndex(
        buffer=buffer,
        slices=slices,
        position=position,
        size=fields["batch_length"].astype(np.int64) + LENGTH_PREFIX_BYTES,
        slice_number=np.array(owners, dtype=np.int64),
        base_offset=fields["base_offset"].astype(np.int64),
        last_offset_delta=fields["last_offset_delta"].astype(np.int64),
        attributes=fields["attributes"].astype(np.int64),
        base_timestamp=fields["base_timestamp"].astype(np.int64),
        max_timestamp=fields["max_timestamp"].astype(np.int64),
        count=fields["count"].astype(np.int64),
        next_offsets=next_offsets,
    )
    _check_headers(index, fields["magic"])
    return index


def _walk_lengths(buffer: bytes, piece: FetchedSlice, positions: list[int]) -> int:
    """Append the positions of the slice's batches that reach its start offset; return the next offset to fetch."""
    position, next_offset = piece.begin, piece.start_offset
    while position + HEADER_BYTES <= piece.stop and next_offset < piece.end_offset:
        (length,) = _LENGTH.unpack_from(buffer, position + 8)
        size = length + LENGTH_PREFIX_BYTES
        if size < HEADER_BYTES:
            raise CorruptMessageError(f"{piece.topic}/{piece.partition}: a batch claims {length} bytes")
        if position + size > piece.stop:
            break
        (base,) = _OFFSET.unpack_from(buffer, position)
        (delta,) = _DELTA.unpack_from(buffer, position + 23)
        if base < 0 or delta < 0:
            raise CorruptMessageError(f"{piece.topic}/{piece.partition}: a batch starts at {base}, delta {delta}")
        if base + delta >= next_offset:
            if positions and next_offset > piece.start_offset and base < next_offset:
                raise CorruptMessageError(
                    f"{piece.topic}/{piece.partition}: the batch at {base} overlaps the one before {next_offset}"
                )
            if base < piece.end_offset:
                positions.append(position)
            next_offset = base + delta + 1
        position += size
    return next_offset


def _gather_headers(buffer: bytes, position: Int64s) -> NDArray[np.void]:
    """Copy the 61 header bytes of every batch into one structured array."""
    if not position.size:
        return np.empty(0, dtype=_HEADER)
    view = np.frombuffer(buffer, dtype=np.uint8)
    pieces = []
    for first in range(0, position.size, MAX_BATCHES_AT_ONCE):
        rows = position[first : first + MAX_BATCHES_AT_ONCE, None] + np.arange(HEADER_BYTES)
        pieces.append(view[rows].reshape(-1).view(_HEADER))
    return np.concatenate(pieces)


def _check_headers(index: BatchIndex, magic: NDArray[np.int8]) -> None:
    if (magic != 2).any():
        raise CorruptMessageError(f"{_where(index, magic != 2)}: only record batches of magic 2 can be read")
    wrong = (index.count < 0) | (index.count > index.last_offset_delta + 1)
    if wrong.any():
        raise CorruptMessageError(f"{_where(index, wrong)}: the record count does not fit the offsets")


def _where(index: BatchIndex, wrong: NDArray[np.bool_]) -> str:
    return describe_batch(index, int(np.flatnonzero(wrong)[0]))


def describe_batch(index: BatchIndex, row: int) -> str:
    """Return topic, partition and base offset of a batch for an error message."""
    piece = index.slices[int(index.slice_number[row])]
    return f"{piece.topic}/{piece.partition}, batch at offset {int(index.base_offset[row])}"


def check_crc(index: BatchIndex, rows: Iterator[int] | Sequence[int]) -> None:
    """Check the CRC-32C of the batches.

    Raises:
        CorruptMessageError: a checksum differs; the message names partition and offset.
    """
    buffer = index.buffer
    for row in rows:
        position, size = int(index.position[row]), int(index.size[row])
        stored = int.from_bytes(buffer[position + 17 : position + 21], "big")
        if crc32c(buffer[position + CRC_FROM : position + size]) != stored:
            raise CorruptMessageError(f"{describe_batch(index, row)}: the checksum differs")
