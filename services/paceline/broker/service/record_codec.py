"""Convert structured records to a batch, and batches to structured records, with the log's codec.

Also keeps the order of requests while the conversion runs on a thread.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from paceline.log import record_batch
from paceline.log.compression import Codec
from paceline.log.record_batch import (
    MAX_INT32,
    MAX_INT64,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    CompiledRecord,
    NewRecord,
)
from paceline.model.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTimestampError,
)
from paceline.rpc.convert.common import MAX_RECORDS, bounded
from paceline.v1 import record_pb2

WORTH_A_THREAD_BYTES: Final = 256 * 1024
"""Size above which encoding or decoding would block the event loop for more than a millisecond or two."""

_RECORD_OVERHEAD_BYTES = 16
_RECORD_EFFORT_BYTES = 64
"""Fixed decoding time of a record, as the number of bytes of a large record that decode in the same time."""
_EXPANSION = 256
"""Assumed expansion of a compressed batch; the batch's own size field cannot be trusted."""

_MAX_EPOCH: Final = 2**15 - 1
_NO_PRODUCER_EPOCH: Final = -1
_PRODUCER_LIMITS: Final = {"producer_id": MAX_INT64, "producer_epoch": _MAX_EPOCH, "base_sequence": MAX_INT32}
"""Producer fields of a record list with their maximum values; either all of them are set or none."""


def encode(records: record_pb2.RecordList, wall_ms: int) -> bytes:
    """Return a batch, with the producer's sequence if set; a record without timestamp gets ``wall_ms``.

    Raises:
        InvalidRecordError: the list is empty.
        InvalidRequestError: there are too many records, or the producer's fields are incomplete or out of range.
        InvalidTimestampError: a timestamp is negative.
    """
    if not records.records:
        raise InvalidRecordError("a list of records needs at least one record")
    bounded(records.records, MAX_RECORDS, "records")
    producer_id, producer_epoch, base_sequence = _producer(records)
    return record_batch.encode_batch(
        _new_records(records, wall_ms),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def _producer(records: record_pb2.RecordList) -> tuple[int, int, int]:
    """Return producer id, epoch and base sequence, or the values that mean "no producer".

    Raises:
        InvalidRequestError: only some of the three fields are set, or a field is out of range.
    """
    given = {name: getattr(records, name) for name in _PRODUCER_LIMITS if records.HasField(name)}  # type: ignore[arg-type]
    if not given:
        return NO_PRODUCER_ID, _NO_PRODUCER_EPOCH, NO_SEQUENCE
    missing = [name for name in _PRODUCER_LIMITS if name not in given]
    if missing:
        raise InvalidRequestError(f"records with {' and '.join(given)} need {' and '.join(missing)} too")
    for name, value in given.items():
        if not 0 <= value <= _PRODUCER_LIMITS[name]:
            raise InvalidRequestError(f"{name} is {value}, it must be between 0 and {_PRODUCER_LIMITS[name]}")
    return records.producer_id, records.producer_epoch, records.base_sequence


def _new_records(records: record_pb2.RecordList, wall_ms: int) -> Iterator[NewRecord]:
    for one in records.records:
        timestamp = wall_ms
        if one.HasField("timestamp_ms"):
            timestamp = one.timestamp_ms
            if not 0 <= timestamp <= MAX_INT64 // 2:
                raise InvalidTimestampError(f"timestamp {timestamp} is not in the range of milliseconds since 1970")
        yield NewRecord(
            timestamp,
            one.key if one.HasField("key") else None,
            one.value if one.HasField("value") else None,
            [(header.key, header.value if header.HasField("value") else None) for header in one.headers],
        )


def decode(batches: bytes, first_offset: int, budget_bytes: int) -> tuple[record_pb2.RecordList, int]:
    """Return (records from ``first_offset`` onwards, their size in bytes); skips an incomplete last batch.

    Stops decoding when ``budget_bytes`` are reached: a batch may have millions of records, and compressed records may
    grow a thousandfold. The first record is always returned. Control records are skipped.

    Raises:
        CorruptMessageError: a stored batch cannot be read.
    """
    found = record_pb2.RecordList()
    size = 0
    for position, header in record_batch.iterate_headers(batches):
        if header.is_control or header.last_offset < first_offset:
            continue
        batch = memoryview(batches)[position : position + header.size]
        try:
            for record in record_batch.compiled_records(batch, header):
                if record.offset < first_offset:
                    continue
                message = _message(record)
                size += message.ByteSize() + _RECORD_OVERHEAD_BYTES
                if size > budget_bytes and found.records:
                    return found, size
                found.records.append(message)
        except record_batch.DECODING_ERRORS as error:
            raise CorruptMessageError(f"the records at offset {header.base_offset} cannot be read: {error}") from error
    return found, size


def _message(record: CompiledRecord) -> record_pb2.Record:
    timestamp = record.timestamp
    return record_pb2.Record(
        key=record.key,
        value=record.value,
        headers=[record_pb2.Header(key=key, value=value) for key, value in record.headers],
        timestamp_ms=timestamp if timestamp is not None and timestamp >= 0 else None,
        offset=record.offset,
    )


def _decoding_effort(batches: bytes) -> int:
    """Return the decoding time of the batches as equivalent bytes: expanded size plus a cost per record."""
    effort = 0
    for _, header in record_batch.iterate_headers(batches):
        expanded = header.size if header.codec is Codec.NONE else _EXPANSION * header.size
        effort += max(expanded, _RECORD_EFFORT_BYTES * header.record_count)
    return effort


class RecordCodec:
    """Encodes and decodes structured records, on a separate thread when there are many.

    A single thread, because each additional Python thread delays the threads of control requests by a switch interval
    of the interpreter. Call all methods on the event loop's thread.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="record-codec")

    async def encode(self, records: record_pb2.RecordList, wall_ms: int) -> bytes:
        """Return a batch, see the function `encode`."""
        if records.ByteSize() > WORTH_A_THREAD_BYTES:
            return await asyncio.get_running_loop().run_in_executor(self._thread, encode, records, wall_ms)
        return encode(records, wall_ms)

    async def decode(self, batches: bytes, first_offset: int, budget_bytes: int) -> tuple[record_pb2.RecordList, int]:
        """Return records and their size, see the function `decode`."""
        if _decoding_effort(batches) > WORTH_A_THREAD_BYTES:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, decode, batches, first_offset, budget_bytes
            )
        return decode(batches, first_offset, budget_bytes)

    def close(self) -> None:
        """Stop the thread after its current conversion, and cancel the queued conversions."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class Places:
    """Keeps the requests of a stream in order while the records of an earlier request are being encoded.

    Without places, later requests would overtake a request whose records are encoded on a thread. Call all methods on
    the event loop's thread.
    """

    def __init__(self) -> None:
        self._last: dict[Any, asyncio.Future[None]] = {}
        """The place of the latest request on each stream, until that request leaves its place."""

    @contextlib.contextmanager
    def place(self, stream: Any, takes_long: bool) -> Iterator["Place"]:
        """Hold a place on the stream until the block ends or `Place.leave` is called.

        Args:
            stream: the request's stream; None when no request can follow.
            takes_long: whether later requests could overtake this request before its records are appended.
        """
        before = None if stream is None else self._last.get(stream)
        if before is None and (stream is None or not takes_long):
            yield _NO_PLACE
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last[stream] = mine

        def leave() -> None:
            if not mine.done():
                mine.set_result(None)
            if self._last.get(stream) is mine:
                del self._last[stream]

        try:
            yield Place(before, leave)
        finally:
            leave()


class Place:
    """The place of a request in the order of its stream."""

    __slots__ = ("_before", "leave")

    def __init__(self, before: "asyncio.Future[None] | None", leave: Callable[[], None]) -> None:
        self._before = before
        self.leave = leave
        """Let the next request append; a second call does nothing."""

    async def wait_for_turn(self) -> None:
        """Wait until all earlier requests have been appended or have failed."""
        if self._before is not None:
            await self._before


_NO_PLACE: Final = Place(None, lambda: None)
