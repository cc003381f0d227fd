"""Making record batches: with aiokafka's encoder, and byte by byte where a batch has to lie."""

import struct
from collections.abc import Iterable, Sequence

import google_crc32c
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from paceline.pipeline.decode.batch_index import FetchedSlice, index_batches
from paceline.pipeline.decode.records import decode_index
from paceline.pipeline.source.options import ALL_COLUMNS
from tests.unit.pipeline.golden import Expected

FOREVER = 1 << 60


def encode(
    records: Sequence[Expected],
    codec: int = 0,
    leader_epoch: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """One batch as aiokafka encodes it, offsets consecutive from the first record's.

    ``producer`` is the producer id, its epoch and the sequence of the first record.
    """
    producer_id, producer_epoch, base_sequence = producer
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=1 << 30,
    )
    for delta, record in enumerate(records):
        builder.append(
            delta, timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=list(record.headers)
        )
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, records[0].offset)
    struct.pack_into(">i", batch, 12, leader_epoch)
    return bytes(batch)


def with_payload(payload: bytes, count: int, last_offset_delta: int | None = None, attributes: int = 0) -> bytes:
    """A batch at offset 0 with any payload under a valid checksum."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    tail = struct.pack(">hiqqqhii", attributes, delta, 1_000, 1_000, -1, -1, -1, count) + payload
    return struct.pack(">qiibI", 0, 9 + len(tail), 0, 2, google_crc32c.value(tail)) + tail


def simple_records(count: int, first_offset: int = 0, value_bytes: int = 20) -> list[Expected]:
    """Records that tell their offset, without headers."""
    return [
        Expected(b"key-%d" % offset, (b"value-%d " % offset).ljust(value_bytes, b"."), offset, 1_000 + offset, 0, ())
        for offset in range(first_offset, first_offset + count)
    ]


def whole(data: bytes, start: int = 0, end: int = FOREVER) -> list[FetchedSlice]:
    """One slice over all the data."""
    return [FetchedSlice("t", 0, 0, len(data), start, end)]


def decoded(data: bytes, start: int = 0, end: int = FOREVER) -> list[Expected]:
    """All records of the data through the decoder, every Arrow batch fully validated."""
    return to_records(decode_index(index_batches(data, whole(data, start, end)), ALL_COLUMNS))


def to_records(batches: Iterable[pa.RecordBatch]) -> list[Expected]:
    """Rows of the decoder's batches in the form of the expected files."""
    found = []
    for batch in batches:
        batch.validate(full=True)
        columns = {name: batch.column(name) for name in batch.schema.names}
        times = columns["timestamp"].cast(pa.int64()).to_pylist()
        for row in range(batch.num_rows):
            headers = columns["headers"][row].as_py()
            found.append(
                Expected(
                    columns["key"][row].as_py(),
                    columns["value"][row].as_py(),
                    columns["offset"][row].as_py(),
                    times[row] // 1000,
                    columns["timestampType"][row].as_py(),
                    tuple((header["key"], header["value"]) for header in headers or ()),
                )
            )
    return found
