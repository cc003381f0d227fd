"""Records returned by a consumer, and decoding of fetched batches."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from paceline.log.record_batch import (
    DECODING_ERRORS,
    BatchHeader,
    CompiledRecord,
    check_crc,
    compiled_records,
    iterate_headers,
)
from paceline.model.errors import CorruptMessageError
from paceline.model.identifiers import TopicPartition


class ConsumerRecord(NamedTuple):
    """A record. ``timestamp_ms`` is the producer's, or the broker's append time on topics with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class FetchedBatches(NamedTuple):
    """Raw, whole batches of one partition as stored; their checksums have not been verified.

    `records` iterates over the records, at a quarter of the cost of `Consumer.poll`.
    """

    topic_partition: TopicPartition
    data: bytes
    first_offset: int
    """Records below this offset were not requested: the first batch may begin before the position."""
    next_offset: int
    """Position of the next fetch: the exclusive end of these batches, even when compaction removed the last records."""
    high_watermark: int
    """High watermark, exclusive."""

    def records(self, check_crcs: bool = True) -> Iterator[CompiledRecord]:
        """Yield the decoded records from ``first_offset`` onwards; skips transaction markers.

        A record has ``offset``, ``timestamp`` in milliseconds or None, ``key``, ``value`` and ``headers``; topic and
        partition are attributes of the batches. Records before a bad batch are yielded before the error is raised.

        Raises:
            CorruptMessageError: a batch has a wrong checksum or cannot be decoded.
            UnsupportedCompressionTypeError: the codec is unknown.
        """
        view = memoryview(self.data)
        for at, header in iterate_headers(self.data):
            if check_crcs:
                check_crc(self.data, at, header)
            if header.is_control:
                continue
            batch = view[at : at + header.size]
            try:
                if header.base_offset >= self.first_offset:
                    yield from compiled_records(batch, header)
                else:
                    yield from (one for one in compiled_records(batch, header) if one.offset >= self.first_offset)
            except DECODING_ERRORS as error:
                raise _malformed(self.topic_partition, header, error) from error


def _malformed(topic_partition: TopicPartition, header: BatchHeader, error: Exception) -> CorruptMessageError:
    return CorruptMessageError(f"{topic_partition}: the batch at {header.base_offset} is malformed: {error}")


_DEFAULT_THRESHOLDS: Final = (700, 2_000)
"""Threshold of the youngest generation in the versions of Python; another number is the program's own choice."""
_HIGHEST_THRESHOLD: Final = 100_000


def let_records_start_no_collection(max_poll_records: int) -> None:
    """Raise the threshold of garbage collection above the records of two polls, unless the program has set its own.

    A record is a tuple, which counts as an object that may be part of a reference cycle. With the default threshold the
    records of a poll start several collections, which examine the records that are still alive: docs/decisions/0021.
    """
    youngest, *older = gc.get_threshold()
    if youngest in _DEFAULT_THRESHOLDS:
        gc.set_threshold(max(youngest, min(2 * max_poll_records, _HIGHEST_THRESHOLD)), *older)


@contextmanager
def without_collection() -> Iterator[None]:
    """Run no garbage collection while many results are created, which cannot be part of a reference cycle.

    Every 700 of them would start one, whose cost grows with the number of results that are alive.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


# tuple.__new__ creates the named tuple without a Python call: 1.6 instead of 0.8 million records per second.
_new: Final = tuple.__new__


def decode_batch(
    topic_partition: TopicPartition, data: bytes, at: int, header: BatchHeader, first_offset: int, verify: bool
) -> list[ConsumerRecord]:
    """Return the records of the batch at byte ``at`` from ``first_offset`` onwards; none for a transaction marker.

    Raises:
        CorruptMessageError: the checksum is wrong or the batch cannot be decoded.
        UnsupportedCompressionTypeError: the codec is unknown.
    """
    if verify:
        check_crc(data, at, header)
    if header.is_control:
        return []
    topic, partition = topic_partition
    batch = memoryview(data)[at : at + header.size]
    kind = ConsumerRecord
    try:
        records = [
            _new(kind, (topic, partition, r.offset, r.timestamp, r.key, r.value, tuple(h) if (h := r.headers) else ()))
            for r in compiled_records(batch, header)
        ]
    except DECODING_ERRORS as error:
        raise _malformed(topic_partition, header, error) from error
    if header.base_offset < first_offset:
        return [record for record in records if record.offset >= first_offset]
    return records
