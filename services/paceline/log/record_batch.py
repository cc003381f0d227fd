"""RecordBatch, magic 2: header, checksum, iteration, encoding and decoding.

The log treats batches as opaque bytes: the checksum does not cover base offset and leader epoch, so the leader sets
them in place and does not re-encode batches. aiokafka's compiled codec encodes and decodes records; only this package
uses it. Source: docs/protocol/log-format.md#record-batch.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import google_crc32c
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from paceline.log.compression import Codec, codec_of, compress, decompress, expansion_limit
from paceline.model.errors import CorruptMessageError, InvalidRecordError

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
"""Bytes of a batch that its length field does not count."""

MAGIC: Final = 2
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1

TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
CODEC_BITS: Final = 0x07

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

_CRC_AT = 17
CRC_START: Final = 21
"""First byte that the checksum covers."""
BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""The fields of `BatchHeader`, in their order."""
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_UINT32 = struct.Struct(">I")
_INT16_PAIR = struct.Struct(">hh")
_PADDING = 16
"""Zero bytes after a buffer for the compiled codec, whose varint reader may read up to ten bytes past the end."""

DECODING_ERRORS = (CorruptRecordException, ValueError, OverflowError, MemoryError, IndexError)
"""Exceptions of the compiled codec for malformed records."""

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """The header fields of one batch as on disk; -1 means "none" in the fields where Kafka uses it."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        """Offset of the last record when the batch was written; compaction keeps it even if it removes the record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapping at 2^31; -1 when the batch has no producer id."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_INT32

    @property
    def is_control(self) -> bool:
        """Whether the batch is a transaction marker."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the timestamp of every record is the append time, ``max_timestamp``."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def codec(self) -> Codec:
        """The codec of the records."""
        return codec_of(self.attributes)


class Record(NamedTuple):
    """One record; key and value may be ``None`` (a ``None`` value is a tombstone), timestamp -1 means none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class NewRecord(NamedTuple):
    """One record to encode; its offset follows from its position in the batch."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class CompiledRecord(Protocol):
    """One record as the compiled codec returns it; ``timestamp`` is ``None`` when the batch has no timestamps."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at ``position``; the caller has checked that ``data`` has 61 bytes from there.

    Raises:
        CorruptMessageError: magic is not 2, the length is too small, or a count or offset is impossible.
    """
    header = BatchHeader._make(BATCH_HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        raise CorruptMessageError(f"the batch has magic {header.magic}, only 2 is supported")
    if header.length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
        raise CorruptMessageError(f"the batch has length {header.length}, less than a header")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptMessageError("the batch has a negative count or offset delta")
    if header.base_offset < 0 or header.last_offset > MAX_INT64:
        raise CorruptMessageError("the batch has offsets outside 0..2^63-1")
    return header


def iterate_headers(data: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every complete batch; ignore an incomplete batch at the end.

    Raises:
        CorruptMessageError: as `parse_header`.
    """
    end = len(data)
    while position + HEADER_BYTES <= end:
        header = parse_header(data, position)
        following = position + header.length + LENGTH_PREFIX_BYTES
        if following > end:
            return
        yield position, header
        position = following


def crc_of(data: Buffer, position: int, size: int) -> int:
    """Return the CRC-32C of one batch: from its attributes to its end."""
    piece = data[position + CRC_START : position + size]
    return int(google_crc32c.value(piece if isinstance(piece, bytes) else bytes(piece)))


def set_crc(batch: bytearray, size: int) -> None:
    """Set the checksum of the batch in the first ``size`` bytes of ``batch``."""
    _UINT32.pack_into(batch, _CRC_AT, crc_of(batch, 0, size))


def check_crc(data: Buffer, position: int, header: BatchHeader) -> None:
    """Check the checksum of one batch.

    Raises:
        CorruptMessageError: the checksum does not match.
    """
    if crc_of(data, position, header.size) != header.crc:
        raise CorruptMessageError(f"the batch at offset {header.base_offset} fails its checksum")


def stamp(batch: bytearray, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Set base offset and leader epoch in place; neither is covered by the checksum."""
    _INT64.pack_into(batch, position, base_offset)
    _INT32.pack_into(batch, position + LENGTH_PREFIX_BYTES, leader_epoch)


def set_timestamp(batch: bytearray, size: int, attributes: int, max_timestamp: int) -> None:
    """Set attributes, maximum timestamp and the new checksum of the batch in the first ``size`` bytes of ``batch``."""
    _INT16.pack_into(batch, CRC_START, attributes)
    _INT64.pack_into(batch, 35, max_timestamp)
    set_crc(batch, size)


def encode_batch(
    records: Iterable[NewRecord],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> bytes:
    """Return one batch with these records, as a Produce request carries it.

    The records stay uncompressed when compression would not make them smaller.

    Raises:
        InvalidRecordError: ``records`` is empty.
    """
    builder = DefaultRecordBatchBuilder(
        MAGIC, 0, int(transactional), producer_id, producer_epoch, base_sequence, MAX_INT32
    )
    count = 0
    for count, record in enumerate(records, 1):
        builder.append(count - 1, record.timestamp, record.key, record.value, list(record.headers))
    if not count:
        raise InvalidRecordError("a batch needs at least one record")
    batch = bytearray(builder.build())
    if codec is not Codec.NONE:
        batch = recompress(batch, len(batch), codec, keep_if_larger=True)
    stamp(batch, base_offset, leader_epoch)
    return bytes(batch)


def decode_batch(data: Buffer) -> list[Record]:
    """Return the decompressed records of the single batch in ``data``; offsets are absolute.

    Raises:
        CorruptMessageError: records or the compressed block cannot be read.
        UnsupportedCompressionTypeError: the codec is not known.
    """
    header = parse_header(data)
    if not header.record_count and header.size == HEADER_BYTES:
        return []
    payload, size = readable_copy(data, header)
    records = []
    try:
        for record in DefaultRecordBatch(memoryview(payload)[:size]):
            timestamp = record.timestamp
            records.append(
                Record(
                    record.offset,
                    NO_TIMESTAMP if timestamp is None else timestamp,
                    record.key,
                    record.value,
                    record.headers,
                )
            )
    except DECODING_ERRORS as error:
        raise CorruptMessageError(f"the records at offset {header.base_offset} cannot be read: {error}") from error
    return records


def compiled_records(data: Buffer, header: BatchHeader) -> Iterator[CompiledRecord]:
    """Return the compiled codec's iterator over the records of the single batch in ``data``.

    This is the fastest way to read records. Iterating may raise any of `DECODING_ERRORS`; the caller converts the
    exception to `CorruptMessageError`.

    Raises:
        CorruptMessageError: the compressed block cannot be read.
        UnsupportedCompressionTypeError: the codec is not known.
    """
    if not header.record_count and header.size == HEADER_BYTES:
        return iter(())
    payload, size = readable_copy(data, header)
    return iter(DefaultRecordBatch(memoryview(payload)[:size]))


def control_record_type(data: Buffer) -> tuple[int, int]:
    """Return (type, coordinator epoch) of a transaction marker: type 0 means abort, 1 means commit.

    Raises:
        CorruptMessageError: the batch does not hold one well-formed marker.
    """
    records = decode_batch(data)
    if len(records) != 1 or records[0].key is None or records[0].value is None:
        raise CorruptMessageError("a control batch holds exactly one record with key and value")
    try:
        _, marker = _INT16_PAIR.unpack_from(records[0].key)
        _, coordinator_epoch = struct.unpack_from(">hi", records[0].value)
    except struct.error as error:
        raise CorruptMessageError(f"the transaction marker cannot be read: {error}") from error
    return marker, coordinator_epoch


def recompress(batch: bytearray, size: int, codec: Codec, *, keep_if_larger: bool = False) -> bytearray:
    """Return a batch with the same records and another codec; of the header only length, CRC and attributes change.

    The batch is returned unchanged if the codec made it so small that readers would refuse to expand it, or with
    ``keep_if_larger`` if the codec did not make it smaller.
    """
    header = parse_header(batch)
    records = decompress(header.codec, memoryview(batch)[HEADER_BYTES:size])
    payload = compress(codec, bytes(records))
    if keep_if_larger and len(payload) >= len(records):
        return batch
    if len(records) > expansion_limit(len(payload)):
        return batch[:size]
    new = bytearray().join((memoryview(batch)[:HEADER_BYTES], payload))
    _INT32.pack_into(new, 8, len(new) - LENGTH_PREFIX_BYTES)
    attributes = (header.attributes & ~CODEC_BITS) | codec
    _INT16.pack_into(new, CRC_START, attributes)
    set_crc(new, len(new))
    return new


def padded_copy(data: Buffer) -> bytearray:
    """Return a mutable copy of a batch, followed by the padding that the compiled decoder needs."""
    return bytearray().join((data, bytes(_PADDING)))


def readable_copy(data: Buffer, header: BatchHeader, *, padded: bool = False) -> tuple[bytearray, int]:
    """Return (buffer, size): the batch with uncompressed records, followed by padding.

    ``padded`` means that ``data`` already is a `padded_copy`, so an uncompressed batch is not copied again.
    """
    size = header.size
    if header.codec is Codec.NONE:
        if padded and isinstance(data, bytearray):
            return data, size
        return padded_copy(data[:size]), size
    plain = bytearray(data[:HEADER_BYTES])
    _INT16.pack_into(plain, CRC_START, header.attributes & ~CODEC_BITS)
    buffer = decompress(header.codec, memoryview(data)[HEADER_BYTES:size], bytes(plain), _PADDING)
    return buffer, len(buffer) - _PADDING
