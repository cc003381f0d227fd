"""Find the record batches of a fetched buffer and read their headers.

A fetch response holds batches of one or more partitions in one buffer. `index_batches` reads only headers: they contain
the next offset to fetch, so the next fetch starts while the records are still being decoded. Source: Kafka 2.8
DefaultRecordBatch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.log.record_batch import BatchHeader, crc_of, iterate_headers
from paceline.model.errors import CorruptMessageError
from paceline.pipeline.decode.varints import Int64s


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
    found: list[tuple[int, int, BatchHeader]] = []
    next_offsets = [_walk(buffer, number, piece, found) for number, piece in enumerate(slices)]
    positions, owners, headers = zip(*found, strict=True) if found else ((), (), ())

    def column(values: Iterable[int]) -> Int64s:
        return np.fromiter(values, np.int64, len(found))

    return BatchIndex(
        buffer=buffer,
        slices=slices,
        position=column(positions),
        size=column(each.size for each in headers),
        slice_number=column(owners),
        base_offset=column(each.base_offset for each in headers),
        last_offset_delta=column(each.last_offset_delta for each in headers),
        attributes=column(each.attributes for each in headers),
        base_timestamp=column(each.base_timestamp for each in headers),
        max_timestamp=column(each.max_timestamp for each in headers),
        count=column(each.record_count for each in headers),
        next_offsets=next_offsets,
    )


def _walk(buffer: bytes, number: int, piece: FetchedSlice, found: list[tuple[int, int, BatchHeader]]) -> int:
    """Append position, slice number and header of the slice's wanted batches; return the next offset to fetch."""
    next_offset = piece.start_offset
    try:
        for position, header in iterate_headers(memoryview(buffer)[: piece.stop], piece.begin):
            if next_offset >= piece.end_offset:
                break
            if header.record_count > header.last_offset_delta + 1:
                raise CorruptMessageError(f"the record count of the batch at {header.base_offset} exceeds its offsets")
            if header.last_offset < next_offset:
                continue
            if next_offset > piece.start_offset and header.base_offset < next_offset:
                raise CorruptMessageError(f"the batch at {header.base_offset} overlaps the one before {next_offset}")
            if header.base_offset < piece.end_offset:
                found.append((position, number, header))
            next_offset = header.last_offset + 1
    except CorruptMessageError as error:
        raise CorruptMessageError(f"{piece.topic}/{piece.partition}: {error}") from error
    return next_offset


def describe_batch(index: BatchIndex, row: int) -> str:
    """Return topic, partition and base offset of a batch for an error message."""
    piece = index.slices[int(index.slice_number[row])]
    return f"{piece.topic}/{piece.partition}, batch at offset {int(index.base_offset[row])}"


def check_crc(index: BatchIndex) -> None:
    """Check the CRC-32C of the batches.

    Raises:
        CorruptMessageError: a checksum differs; the message names partition and offset.
    """
    for row, (position, size) in enumerate(zip(index.position.tolist(), index.size.tolist(), strict=True)):
        stored = int.from_bytes(index.buffer[position + 17 : position + 21], "big")
        if crc_of(index.buffer, position, size) != stored:
            raise CorruptMessageError(f"{describe_batch(index, row)}: the checksum differs")
