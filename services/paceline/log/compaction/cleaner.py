"""Clean a log: map the keys of its dirty part to their last offsets, then rewrite segments without older records.

Invariants:
 * a record at or above the end of the map is kept;
 * the last record of each key keeps its offset; a tombstone is kept until its batch's delete horizon has passed;
 * transactional records and transaction markers are not changed;
 * the last batch of each producer is kept to detect duplicates, without records if none of them is kept;
 * the last batch of a written segment is kept in the same way: at load its last offset shows which segments the written
   segment replaces.

A cleaning only reads segments and writes ``.cleaned`` files, so it may run on another thread than the log's owner. The
owner puts each written segment in place (`LogCompaction.replace_segments`).
Source: docs/protocol/log-format.md#compaction.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from paceline.log.compaction.batch_rewrite import delete_horizon_ms, empty_batch, rewrite_batch
from paceline.log.compaction.cleanable import Cleanable
from paceline.log.compaction.offset_map import OffsetMap, short_key
from paceline.log.files import Files, is_no_room, join
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import (
    DECODING_ERRORS,
    HEADER_BYTES,
    MAX_INT32,
    MAX_INT64,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    compiled_records,
    parse_header,
    readable_copy,
)
from paceline.log.segment import Segment
from paceline.log.segment_names import CLEANED_SUFFIX
from paceline.log.transaction_index import append_row, read_rows
from paceline.model.errors import CorruptMessageError

READ_BYTES: Final = 512 * 1024
_WRITE_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class CleanedSegment:
    """A written segment, in ``.cleaned`` files, and the segments that it replaces."""

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
        """``last_offsets`` maps producer ids to the last offset of their last batch.

        ``new_segment`` takes a base offset and returns a segment whose ``.cleaned`` files do not exist yet.
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
        """Exclusive end of the clean part of the log after this cleaning."""

    def steps(self) -> Iterator[int | CleanedSegment]:
        """Clean the log in steps; yield the bytes read and written since the last step, or a segment to put in place.

        Raises:
            OSError: storage failed.
            CorruptMessageError: a batch cannot be read.
            PacelineError: a batch cannot be decompressed.
        """
        # Remove the files of a cancelled cleaning, and make the removal durable, together with the renames of the
        # previous cleaning: a load deletes the .swap files at and above the base offset of a .cleaned file.
        self._remove_cleaned()
        self._files.sync_directory(self._directory)
        yield from self._build_map()
        for group in self._groups():
            try:
                yield from self._clean_group(group)
            except OSError as error:
                if is_no_room(error):
                    self._remove_cleaned()
                raise

    def _remove_cleaned(self) -> None:
        for name, _kind in self._files.list_directory(self._directory):
            if name.endswith(CLEANED_SUFFIX):
                self._files.remove(join(self._directory, name))

    # -- the map -----------------------------------------------------------------------------------------------

    def _build_map(self) -> Iterator[int]:
        """Map the keys of the batches from the first dirty offset on, until the last batch or until the map is full."""
        first_dirty = self._cleanable.first_dirty_offset
        for segment, end in zip(self._cleanable.segments, self._cleanable.ends, strict=True):
            if end <= first_dirty:
                continue
            read = 0
            for header, data in batches_of(self._files, segment, end):
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

    def _groups(self) -> Iterator[dict[Segment, int]]:
        """Yield groups of segments to merge, with the end offset of each segment.

        The merged segment must not exceed ``segment.bytes``, its index sizes or 32-bit relative offsets.
        """
        config, group = self._config, dict[Segment, int]()
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
                or end - 1 - next(iter(group)).base_offset > MAX_INT32
            ):
                yield group
                group = {}
                size = segment.size
                index_bytes = segment.offset_index.entry_count * segment.offset_index.layout.size
                time_index_bytes = segment.time_index.entry_count * segment.time_index.layout.size
            group[segment] = end
        if group:
            yield group

    def _clean_group(self, group: Mapping[Segment, int]) -> Iterator[int | CleanedSegment]:
        sources = tuple(group)
        output = _Output(self._files, self._new_segment(sources[0].base_offset))
        last: BatchHeader | None = None
        is_changed = last_is_kept = False
        read = 0
        for source, end in group.items():
            for header, data in batches_of(self._files, source, end):
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
        """Return the batch with its kept records: ``data`` itself when all are kept, ``None`` to drop the batch."""
        if header.is_control or header.base_offset >= self.end_offset:
            return data
        if header.is_transactional:
            self._saw_transaction = True
            return data
        horizon_ms = delete_horizon_ms(header)
        # A tombstone does not remove earlier transactional records of its key: if the tombstone were removed, such a
        # record would become the last value.
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
        latest_ms = min(self._wall_ms + self._config.delete_retention_ms, MAX_INT64)
        new_horizon_ms = latest_ms if sets_horizon else None
        return rewrite_batch(header, plain, size, kept, max_timestamp, new_horizon_ms)

    def _choose(self, header: BatchHeader, data: bytes, expired: bool) -> tuple[list[bool], int, bool]:
        """Return (whether each record is kept, largest kept timestamp, whether a tombstone is kept)."""
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
    """A segment that is being written, with a buffer of about `_WRITE_BYTES`."""

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
            # The time index points to records, so a batch without records gets no timestamp, as in Kafka.
            timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP
            self.segment.publish_batch(
                header.size, header.base_offset, header.last_offset, timestamp, header.last_offset
            )
        self._buffer, self._headers = bytearray(), []

    def finish(self, sources: tuple[Segment, ...]) -> None:
        """Write the indexes, copy the rows of the sources' transaction indexes, and make all files durable."""
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


def batches_of(files: Files, segment: Segment, end_offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the header and the bytes of each batch of a segment, after a check of its checksum and its offsets.

    The checksum does not cover the base offset. With a damaged base offset, the batch could replace later records with
    the same keys.

    Args:
        files: the file system.
        segment: the segment.
        end_offset: base offset of the next segment.

    Raises:
        OSError: storage failed.
        CorruptMessageError: the file contains bytes that are not a sound batch of this segment.
    """
    chunk, start, position = b"", 0, 0
    next_offset = segment.base_offset
    while position < segment.size:
        at = position - start
        if at + HEADER_BYTES > len(chunk):
            chunk, start, at = files.read_at(segment.log_path, position, READ_BYTES), position, 0
            if len(chunk) < HEADER_BYTES:
                raise CorruptMessageError(f"{segment.log_path} ends within a batch header at {position}")
        header = parse_header(chunk, at)
        if position + header.size > segment.size:
            raise CorruptMessageError(
                f"the batch at {position} of {segment.log_path} extends beyond the end of the file"
            )
        if at + header.size > len(chunk):
            wanted = max(READ_BYTES, header.size)
            chunk, start, at = files.read_at(segment.log_path, position, wanted), position, 0
        data = chunk[at : at + header.size]
        check_crc(data, 0, header)
        if not next_offset <= header.base_offset <= header.last_offset < end_offset:
            raise CorruptMessageError(
                f"the batch at {position} of {segment.log_path} has the offsets {header.base_offset} to "
                f"{header.last_offset}, outside of {next_offset} to {end_offset - 1}"
            )
        yield header, data
        position += header.size
        next_offset = header.last_offset + 1


def _keys_of(header: BatchHeader, data: bytes) -> dict[bytes, int]:
    """Return the keys of a batch with their last offsets.

    A transactional batch has no keys here: its transaction may be aborted, and then it replaces no earlier record.
    """
    if header.is_control or header.is_transactional:
        return {}
    try:
        records = compiled_records(data, header)
        return {short_key(record.key): record.offset for record in records if record.key is not None}
    except DECODING_ERRORS as error:
        raise CorruptMessageError(f"the records at offset {header.base_offset} cannot be read: {error}") from error
