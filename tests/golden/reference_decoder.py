"""A plain decoder of one RecordBatch, written from the format's description alone, to judge the compiled codec."""

import struct

from paceline.log.compression import Codec, decompress
from paceline.log.record_batch import Record


def decode(batch: bytes) -> list[Record]:
    base_offset, length = struct.unpack_from(">qi", batch, 0)
    magic, _crc, attributes = struct.unpack_from(">bIh", batch, 16)
    base_timestamp, max_timestamp = struct.unpack_from(">qq", batch, 27)
    (count,) = struct.unpack_from(">i", batch, 57)
    assert magic == 2 and length + 12 == len(batch)
    block = batch[61:]
    data = bytes(decompress(Codec(attributes & 7), block)) if count else block
    records, position = [], 0
    for _ in range(count):
        size, position = varint(data, position)
        end = position + size
        position += 1
        timestamp_delta, position = varint(data, position)
        offset_delta, position = varint(data, position)
        key, position = nullable(data, position)
        value, position = nullable(data, position)
        header_count, position = varint(data, position)
        headers = []
        for _ in range(header_count):
            name, position = nullable(data, position)
            header_value, position = nullable(data, position)
            assert name is not None
            headers.append((name.decode(), header_value))
        assert position == end
        timestamp = max_timestamp if attributes & 8 else base_timestamp + timestamp_delta
        records.append(Record(base_offset + offset_delta, timestamp, key, value, headers))
    assert position == len(data)
    return records


def varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = varint(data, position)
    if length < 0:
        return None, position
    return data[position : position + length], position + length
