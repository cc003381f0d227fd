"""Records as a consumer hands them out, and their decoding from the bytes of a fetch."""

import gc
from collections.abc import Iterator
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
    """One record. ``timestamp_ms`` is the producer's, or the broker's append time on topics that keep that."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class FetchedBatches(NamedTuple):
    """Raw batches of one partition, whole, as stored; their checksums are not verified yet.

    `records` reads them one by one, at a quarter of what `Consumer.poll` costs.
    """

    topic_partition: TopicPartition
    data: bytes
    first_offset: int
    """Records below were asked for by nobody: the first batch may begin before the position."""
    next_offset: int
    """Where the following fetch goes on, exclusive end of these batches even when records were compacted away."""
    high_watermark: int
    """End of what is committed, exclusive."""

    def records(self, check_crcs: bool = True) -> Iterator[CompiledRecord]:
        """Yield the records from ``first_offset`` on as the compiled decoder makes them; transaction markers are not.

        A record has ``offset``, ``timestamp`` in milliseconds or None, ``key``, ``value`` and ``headers``; topic and
        partition are those of the batches. Records before a bad batch are yielded before the error is raised.

        Raises:
            CorruptMessageError: a checksum or a record is wrong.
            UnsupportedCompressionTypeError: the codec is not known.
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


# tuple.__new__ builds the named tuple without a Python call: 1.6 against 0.8 million records a second.
_new: Final = tuple.__new__


def decode_batch(
    topic_partition: TopicPartition, data: bytes, at: int, header: BatchHeader, first_offset: int, verify: bool
) -> list[ConsumerRecord]:
    """Return the records of the batch at byte ``at`` from ``first_offset`` on; none for a transaction marker.

    Raises:
        CorruptMessageError: the checksum or the records are wrong.
        UnsupportedCompressionTypeError: the codec is not known.
    """
    if verify:
        check_crc(data, at, header)
    if header.is_control:
        return []
    topic, partition = topic_partition
    batch = memoryview(data)[at : at + header.size]
    kind = ConsumerRecord
    # Nothing built here can be part of a cycle, yet every 700 tuples would start a search for some: pausing it for the
    # milliseconds of one batch doubles the rate.
    collecting = gc.isenabled()
    gc.disable()
    try:
        records = [
            _new(kind, (topic, partition, r.offset, r.timestamp, r.key, r.value, tuple(h) if (h := r.headers) else ()))
            for r in compiled_records(batch, header)
        ]
    except DECODING_ERRORS as error:
        raise _malformed(topic_partition, header, error) from error
    finally:
        if collecting:
            gc.enable()
    if header.base_offset < first_offset:
        return [record for record in records if record.offset >= first_offset]
    return records
