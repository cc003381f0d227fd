"""Clean a log: map the keys of its dirty part, then write its segments again without the records they replace.

Invariants:
 * a record at or above the first offset that the map does not cover stays;
 * the last record of each key stays at its offset; a tombstone stays until its batch's delete horizon has passed;
 * transactional records and transaction markers stay as they are;
 * the last batch of a producer stays, and the last batch of a written segment, without records when they must go: the
   first tells duplicates, the second says which segments the written one replaces.

A cleaning only reads segments and writes ``.cleaned`` files: it may run on another thread than the log's owner, who
puts each written segment in place (`LogCompaction.replace_segments`).
Source: docs/protocol/log-format.md#compaction.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from paceline.log.batch_file import BatchFile
from paceline.log.compaction.batch_rewrite import delete_horizon_ms, empty_batch, rewrite_batch
from paceline.log.compaction.cleanable import Cleanable
from paceline.log.compaction.offset_map import OffsetMap, short_key
from paceline.log.files import Files
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import (
    DECODING_ERRORS,
    HEADER_BYTES,
    MAX_INT32,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    compiled_records,
    parse_header,
    readable_copy,
)
from paceline.log.segment import Segment
from paceline.log.transaction_index import append_row, read_rows
from paceline.model.errors import CorruptMessageError

READ_BYTES: Final = 512 * 1024
_WRITE_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A segment that was written, in ``.cleaned`` files, and those it replaces."""

    segment: Segment
    sources: tuple[Segment, ...]
    bytes_before: int


class Cleaner:
    """One cleaning of one log."""

    def __init__(
        self,
        files: Files,
        directory: str,
        config: LogConfig,
        cleanable: Cleanable,
        last_offsets: Mapping[int, int],
        wall_ms: int,
        offset_map: OffsetMap,
        new_segment: Callable[[int], Segment],
    ) -> None:
        """``last_offsets`` are those of the active producers' last batches; ``new_segment`` returns one without files,
        whose names end in ``.cleaned``.
        """
        self._files = files
        self._directory = directory
        self._config = config
        self._cleanable = cleanable
        self._last_offsets = last_offsets
        self._wall_ms = wall_ms
        self._map = offset_map
        self._new_segment = new_segment
        self._saw_transaction = False
        self.end_offset = cleanable.first_dirty_offset
        """Offset up to which the log is clean when the cleaning is done."""

    def steps(self) -> Iterator[int | CleanedSegment]:
        """Clean; yield the bytes read or written now and then, and each segment to be put in place.

        Raises:
            OSError: storage failed.
            CorruptMessageError: a batch cannot be read.
            PacelineError: a batch cannot be decompressed.
        """
        # The renames of the cleaning before have to be durable: a load takes a swap file beside a cleaned one for void.
        self._files.sync_directory(self._directory)
        yield from self._build_map()
        for sources in self._groups():
            yield from self._clean_group(sources)

    # -- the map -----------------------------------------------------------------------------------------------

    def _build_map(self) -> Iterator[int]:
        """Map the keys from the first dirty offset on, as far as the map has room."""
        first_dirty = self._cleanable.first_dirty_offset
        for segment, end in zip(self._cleanable.segments, self._cleanable.ends, strict=True):
            if end <= first_dirty:
                continue
            read = 0
            for header, data in batches_of(self._files, segment):
                read += header.size
                if read >= READ_BYTES:
                    yield read
                    read = 0
                if header.last_offset < first_dirty:
                    continue
                if not self._map.add_batch(_keys_of(header, data), header.last_offset + 1):
                    self.end_offset = self._map.end_offset or first_dirty
                    return
            yield read
            self.end_offset = end

    # -- the segments ------------------------------------------------------------------------------------------

    def _groups(self) -> Iterator[tuple[Segment, ...]]:
        """Yield the segments to write as one: no larger than ``segment.bytes``, nor are their indexes."""
        config, group = self._config, list[Segment]()
        size = index_bytes = time_index_bytes = 0
        for segment, end in zip(self._cleanable.segments, self._cleanable.ends, strict=True):
            if segment.base_offset >= self.end_offset:
                break
            size += segment.size
            index_bytes += segment.offset_index.entry_count * segment.offset_index.layout.size
            time_index_bytes += segment.time_index.entry_count * segment.time_index.layout.size
            if group and (
                size > config.segment_bytes
                or max(index_bytes, time_index_bytes) > config.segment_index_bytes
                or end - 1 - group[0].base_offset > MAX_INT32
            ):
                yield tuple(group)
                group = []
                size = segment.size
                index_bytes = segment.offset_index.entry_count * segment.offset_index.layout.size
                time_index_bytes = segment.time_index.entry_count * segment.time_index.layout.size
            group.append(segment)
        if group:
            yield tuple(group)

    def _clean_group(self, sources: tuple[Segment, ...]) -> Iterator[int | CleanedSegment]:
        output = _Output(self._files, self._new_segment(sources[0].base_offset))
        last: BatchHeader | None = None
        is_changed = last_is_kept = False
        read = 0
        for source in sources:
            for header, data in batches_of(self._files, source):
                batch = self._clean_batch(header, data)
                is_changed |= batch is not data
                last, last_is_kept = header, batch is not None
                read += header.size
                if batch is not None:
                    read += len(batch)
                    output.write(header if batch is data else parse_header(batch), batch)
                if read >= READ_BYTES:
                    yield read
                    read = 0
        if last is not None and not last_is_kept:
            batch = empty_batch(last)
            output.write(parse_header(batch), batch)
        output.flush()
        yield read
        if len(sources) == 1 and not is_changed:
            output.segment.remove()
            return
        output.finish(sources)
        yield CleanedSegment(output.segment, sources, sum(source.size for source in sources))

    def _clean_batch(self, header: BatchHeader, data: bytes) -> bytes | None:
        """Return a batch with the records that stay, the same object when all do, ``None`` when it may go."""
        if header.is_control or header.base_offset >= self.end_offset:
            return data
        if header.is_transactional:
            self._saw_transaction = True
            return data
        horizon_ms = delete_horizon_ms(header)
        # Transactional records below a tombstone are not removed by it; without the tombstone they would count again.
        expired = horizon_ms is not None and self._wall_ms >= horizon_ms and not self._saw_transaction
        kept, max_timestamp, has_tombstone = self._choose(header, data, expired)
        if not any(kept):
            return self._without_records(header, data)
        sets_horizon = has_tombstone and horizon_ms is None
        if all(kept) and not sets_horizon:
            return data
        plain, size = readable_copy(data, header)
        if header.is_log_append_time:
            max_timestamp = header.max_timestamp
        new_horizon_ms = self._wall_ms + self._config.delete_retention_ms if sets_horizon else None
        return rewrite_batch(header, plain, size, kept, max_timestamp, new_horizon_ms)

    def _choose(self, header: BatchHeader, data: bytes, expired: bool) -> tuple[list[bool], int, bool]:
        """Return which records stay, their largest timestamp, and whether a tombstone is among them."""
        kept: list[bool] = []
        max_timestamp, has_tombstone = NO_TIMESTAMP, False
        last_offset = self._map.last_offset
        try:
            for record in compiled_records(data, header):
                key = record.key
                stays = (
                    key is not None
                    and last_offset(short_key(key)) <= record.offset
                    and (record.value is not None or not expired)
                )
                kept.append(stays)
                if stays:
                    has_tombstone |= record.value is None
                    max_timestamp = max(max_timestamp, NO_TIMESTAMP if record.timestamp is None else record.timestamp)
        except DECODING_ERRORS as error:
            raise CorruptMessageError(f"the records at offset {header.base_offset} cannot be read: {error}") from error
        return kept, max_timestamp, has_tombstone

    def _without_records(self, header: BatchHeader, data: bytes) -> bytes | None:
        if self._last_offsets.get(header.producer_id) != header.last_offset:
            return None
        return empty_batch(header) if header.record_count else data


class _Output:
    """A segment that is being written, some batches at a time."""

    def __init__(self, files: Files, segment: Segment) -> None:
        self._files = files
        self.segment = segment
        segment.remove()
        segment.start_new()
        self._buffer = bytearray()
        self._headers: list[BatchHeader] = []

    def write(self, header: BatchHeader, batch: bytes) -> None:
        self._buffer += batch
        self._headers.append(header)
        if len(self._buffer) >= _WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._headers:
            return
        self.segment.append(self._buffer)
        for header in self._headers:
            # The time index leads to records: a batch that has none does not count, as in Kafka.
            timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
            self.segment.note(header.size, header.base_offset, header.last_offset, timestamp, header.last_offset)
        self._buffer, self._headers = bytearray(), []

    def finish(self, sources: tuple[Segment, ...]) -> None:
        """Write the indexes, take over the transaction indexes, and make all of it durable."""
        self.segment.seal()
        self.segment.release()
        paths = self.segment.paths()
        for source in sources:
            for row in read_rows(self._files, source.txn_index_path):
                append_row(self._files, self.segment.txn_index_path, row)
        if self._files.exists(self.segment.txn_index_path):
            paths.append(self.segment.txn_index_path)
        for path in paths:
            self._files.sync(path)


def batches_of(files: Files, segment: BatchFile) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the batches of a segment with their headers, their checksums checked.

    Raises:
        OSError: storage failed.
        CorruptMessageError: the file contains bytes that are no batch.
    """
    chunk, start, position = b"", 0, 0
    while position < segment.size:
        at = position - start
        if at + HEADER_BYTES > len(chunk):
            chunk, start, at = files.read_at(segment.log_path, position, READ_BYTES), position, 0
            if len(chunk) < HEADER_BYTES:
                raise CorruptMessageError(f"{segment.log_path} is cut at {position}")
        header = parse_header(chunk, at)
        if position + header.size > segment.size:
            raise CorruptMessageError(f"the batch at {position} of {segment.log_path} goes beyond the end")
        if at + header.size > len(chunk):
            wanted = max(READ_BYTES, header.size)
            chunk, start, at = files.read_at(segment.log_path, position, wanted), position, 0
        data = chunk[at : at + header.size]
        check_crc(data, 0, header)
        yield header, data
        position += header.size


def _keys_of(header: BatchHeader, data: bytes) -> dict[bytes, int]:
    """Return the keys of a batch with their last offset; none of a transactional batch, which may yet be aborted."""
    if header.is_control or header.is_transactional:
        return {}
    try:
        records = compiled_records(data, header)
        return {short_key(record.key): record.offset for record in records if record.key is not None}
    except DECODING_ERRORS as error:
        raise CorruptMessageError(f"the records at offset {header.base_offset} cannot be read: {error}") from error
