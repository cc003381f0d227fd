"""Structured records to one batch, and batches to structured records; the log's codec does the work."""

import asyncio
from collections.abc import Iterator
from typing import Final

from paceline.log import record_batch
from paceline.log.record_batch import MAX_INT64, NewRecord
from paceline.model.errors import CorruptMessageError, InvalidRecordError, InvalidTimestampError
from paceline.rpc.convert_common import MAX_RECORDS, bounded
from paceline.v1 import record_pb2

WORTH_A_THREAD_BYTES: Final = 256 * 1024
"""Above this, encoding or decoding would hold up the event loop by more than a millisecond or two."""

_RECORD_OVERHEAD_BYTES = 16


def encode(records: record_pb2.RecordList, wall_ms: int) -> bytes:
    """Return one batch; a record without a timestamp gets ``wall_ms``.

    Raises:
        InvalidRecordError: there is no record.
        InvalidRequestError: there are too many.
        InvalidTimestampError: one is negative.
    """
    if not records.records:
        raise InvalidRecordError("a list of records needs at least one record")
    bounded(records.records, MAX_RECORDS, "records")
    return record_batch.encode_batch(_new_records(records, wall_ms))


def _new_records(records: record_pb2.RecordList, wall_ms: int) -> Iterator[NewRecord]:
    for one in records.records:
        timestamp = wall_ms
        if one.HasField("timestamp_ms"):
            timestamp = one.timestamp_ms
            if not 0 <= timestamp <= MAX_INT64 // 2:
                raise InvalidTimestampError(f"the timestamp {timestamp} is no time in milliseconds since the epoch")
        yield NewRecord(
            timestamp,
            one.key if one.HasField("key") else None,
            one.value if one.HasField("value") else None,
            [(header.key, header.value if header.HasField("value") else None) for header in one.headers],
        )


async def encode_on_loop(records: record_pb2.RecordList, wall_ms: int) -> bytes:
    """The same, in a thread when it is much."""
    if records.ByteSize() > WORTH_A_THREAD_BYTES:
        return await asyncio.to_thread(encode, records, wall_ms)
    return encode(records, wall_ms)


def decode(batches: bytes, first_offset: int, budget_bytes: int) -> tuple[record_pb2.RecordList, int]:
    """Return (records from ``first_offset`` on, their size in bytes); an incomplete last batch is left out.

    Ends when ``budget_bytes`` are reached, since compressed batches may grow a thousandfold; the first record is
    returned however large it is. Control records are skipped.
    """
    found = record_pb2.RecordList()
    size = 0
    for position, header in record_batch.iterate_headers(batches):
        if header.is_control or header.last_offset < first_offset:
            continue
        for record in record_batch.decode_batch(memoryview(batches)[position : position + header.size]):
            if record.offset < first_offset:
                continue
            message = record_pb2.Record(
                key=record.key,
                value=record.value,
                headers=[record_pb2.Header(key=key, value=value) for key, value in record.headers],
                timestamp_ms=record.timestamp if record.timestamp >= 0 else None,
                offset=record.offset,
            )
            size += message.ByteSize() + _RECORD_OVERHEAD_BYTES
            if size > budget_bytes and found.records:
                return found, size
            found.records.append(message)
    return found, size


async def decode_on_loop(batches: bytes, first_offset: int, budget_bytes: int) -> tuple[record_pb2.RecordList, int]:
    """The same, in a thread when it is much.

    Raises:
        CorruptMessageError: a stored batch cannot be read.
    """
    try:
        if len(batches) > WORTH_A_THREAD_BYTES:
            return await asyncio.to_thread(decode, batches, first_offset, budget_bytes)
        return decode(batches, first_offset, budget_bytes)
    except UnicodeDecodeError as failure:
        raise CorruptMessageError(f"a header name is not UTF-8: {failure}") from None
