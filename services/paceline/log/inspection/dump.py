"""Decode the files of a log directory, or of one partition's folder, into rows, as Kafka's DumpLogSegments does."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from paceline.log import checkpoint as text_files
from paceline.log.batch_file import BatchFile
from paceline.log.compression import Codec
from paceline.log.directory_names import is_future, parse_directory_name
from paceline.log.files import FileKind, Files, join, read_all
from paceline.log.leader_epoch_cache import decode_epochs
from paceline.log.missing_segments import decode_segments
from paceline.log.offset_index import OffsetIndex
from paceline.log.producer_state import NO_BATCH, SNAPSHOT_ENTRY_BYTES, SNAPSHOT_HEAD_BYTES, ProducerStateManager
from paceline.log.record_batch import CODEC_BITS, DELETE_HORIZON_BIT, MAX_INT32, control_record_type, decode_batch
from paceline.log.segment_names import INDEX_SUFFIX, LOG_SUFFIX, SEGMENT_FILE, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from paceline.log.snapshots import EARLIER_SUFFIX, SNAPSHOT_SUFFIX
from paceline.log.time_index import TimeIndex
from paceline.log.transaction_index import ROW_BYTES, read_rows
from paceline.model.errors import CorruptMessageError, PacelineError

Row = dict[str, Any]
UNREADABLE: Final = "unreadable"
"""Kind of the row of a file whose bytes from ``position`` on do not parse."""
CHECKPOINTS: Final = {
    text_files.HIGH_WATERMARK_CHECKPOINT: "high watermark",
    text_files.RECOVERY_POINT_CHECKPOINT: "recovery point",
    text_files.LOG_START_CHECKPOINT: "log start",
    text_files.CLEANER_CHECKPOINT: "first dirty offset",
}
_CODECS: Final = {codec.value: codec.name.lower() for codec in Codec}


def log_folders(files: Files, directory: str) -> list[str]:
    """Return the folders of current and future logs in a log directory, or the directory itself if it holds segments.

    Raises:
        OSError: the directory cannot be read.
    """
    found = files.list_directory(directory)
    if any(SEGMENT_FILE.fullmatch(name) for name, _ in found):
        return [directory]
    names = [name for name, kind in found if kind is FileKind.DIRECTORY]
    return [join(directory, name) for name in names if parse_directory_name(name) is not None or is_future(name)]


def dump(files: Files, directory: str, with_records: bool = False) -> Iterator[Row]:
    """Yield the rows of every file, with the file's name.

    Raises:
        OSError: a file cannot be read.
    """
    folders = log_folders(files, directory)
    for folder in folders if directory in folders else [directory, *folders]:
        for name, kind in files.list_directory(folder):
            path = join(folder, name)
            for row in rows_of(files, path, with_records) if kind is FileKind.FILE else ():
                yield {"file": path.removeprefix(f"{directory}/"), **row}


def rows_of(files: Files, path: str, with_records: bool = False) -> Iterator[Row]:
    """Yield a row per batch, index entry, producer, epoch or checkpoint entry; ``position`` is its byte in the file.

    A file that does not parse ends with a row of kind `UNREADABLE`.

    Raises:
        OSError: the file cannot be read.
    """
    name = path.rpartition("/")[2]
    match = SEGMENT_FILE.fullmatch(name)
    suffix, base = (match[2], int(match[1])) if match else (name, 0)
    if suffix == LOG_SUFFIX:
        yield from _batches(files, path, with_records)
    elif suffix == INDEX_SUFFIX:
        yield from _entries(files, path, base, OffsetIndex, ("offset", "batch_position"))
    elif suffix == TIME_INDEX_SUFFIX:
        yield from _entries(files, path, base, TimeIndex, ("timestamp", "offset"))
    elif suffix == TXN_INDEX_SUFFIX:
        rows = read_rows(files, path)
        for number, row in enumerate(rows):
            yield {"kind": "aborted transaction", "position": number * ROW_BYTES, **row._asdict()}
        if len(rows) * ROW_BYTES != files.size(path):
            yield _unreadable(len(rows) * ROW_BYTES, "the row is incomplete or has an unknown version")
    elif suffix == SNAPSHOT_SUFFIX:
        beside = path.removesuffix(SNAPSHOT_SUFFIX) + EARLIER_SUFFIX
        yield from _producers(read_all(files, path), read_all(files, beside) if files.exists(beside) else None)
    elif suffix in _TEXTS:
        data = read_all(files, path)
        try:
            yield from _TEXTS[suffix](data)
        except text_files.DamagedFileError as error:
            yield _unreadable(_first_bad_byte(data, _TEXTS[suffix]), str(error))


def _unreadable(position: int, message: str) -> Row:
    return {"kind": UNREADABLE, "position": position, "message": message}


def _batches(files: Files, path: str, with_records: bool) -> Iterator[Row]:
    file = BatchFile(files, path)
    file.size = files.size(path)
    following = 0
    try:
        for found in file.headers(0):
            header, following = found.header, found.position + found.header.size
            row: Row = {
                "kind": "batch",
                "position": found.position,
                **header._asdict(),
                "size": header.size,
                "last_offset": header.last_offset,
                "crc_valid": file.has_valid_crc(found),
                "codec": _CODECS.get(header.attributes & CODEC_BITS, "unknown"),
                "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
                "delete_horizon": header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None,
                "transactional": header.is_transactional,
                "control": header.is_control,
                "last_sequence": header.last_sequence,
            }
            if with_records and row["crc_valid"]:
                try:
                    row["records"] = _records(row, files.read_at(path, found.position, header.size))
                except PacelineError as error:
                    row["unreadable_records"] = str(error)
            yield row
    except CorruptMessageError as error:
        yield _unreadable(following, str(error))


def _records(batch: Row, data: bytes) -> list[Row]:
    rows = [record._asdict() for record in decode_batch(data)]
    for row in rows:
        if batch["base_sequence"] >= 0:
            row["sequence"] = (batch["base_sequence"] + row["offset"] - batch["base_offset"]) & MAX_INT32
        if batch["control"]:
            marker, row["coordinator_epoch"] = control_record_type(data)
            row["control_type"] = {0: "ABORT", 1: "COMMIT"}.get(marker, str(marker))
    return rows


def _entries(
    files: Files, path: str, base: int, kind: type[OffsetIndex | TimeIndex], names: tuple[str, str]
) -> Iterator[Row]:
    """Yield the entries, up to the zeros that an unclean stop of Kafka leaves in a file of its full size."""
    index, label = kind(files, path, base, 0), "time index" if kind is TimeIndex else "offset index"
    index.open()
    end = 0
    for number in range(index.entry_count):
        entry = index.entry(number)
        if entry.offset == base and set(entry) <= {base, 0}:
            break
        yield {"kind": label, "position": end, **dict(zip(names, entry, strict=True))}
        end += index.layout.size
    rest = files.read_at(path, end, files.size(path) - end)
    if any(rest):
        yield _unreadable(end, "these bytes are not an entry")
    elif rest:
        yield {"kind": "zeros", "position": end, "size": len(rest)}


def _producers(snapshot: bytes, earlier: bytes | None) -> Iterator[Row]:
    """Yield a row per producer; ``earlier_batches`` are those in the file beside the snapshot, the oldest first."""
    manager = ProducerStateManager()
    try:
        manager.load(snapshot, earlier)
    except text_files.DamagedFileError as error:
        yield _unreadable(0, str(error))
    for number, entry in enumerate(manager.entries):
        *before, last = entry.batches or [NO_BATCH]
        yield {
            "kind": "producer",
            "position": SNAPSHOT_HEAD_BYTES + number * SNAPSHOT_ENTRY_BYTES,
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_first_offset": entry.current_txn_first_offset,
            "first_sequence": last.first_sequence if entry.batches else -1,
            **last._asdict(),
            "timestamp": entry.last_timestamp,
            "earlier_batches": [batch._asdict() for batch in before],
        }


def _offsets(kind: str, data: bytes) -> list[Row]:
    rows = []
    for tp, offset in text_files.decode_offsets(data).items():
        line = data.find(f"\n{tp.topic} {tp.partition} {offset}\n".encode()) + 1
        rows.append({"kind": kind, "position": line, "topic": tp.topic, "partition": tp.partition, "offset": offset})
    return rows


def _epochs(data: bytes) -> list[Row]:
    pairs = zip(*decode_epochs(data), strict=True)
    return [{"kind": "epoch", "leader_epoch": epoch, "start_offset": start} for epoch, start in pairs]


def _segments(data: bytes) -> list[Row]:
    kind = "segments at the clean stop"
    return [{"kind": kind, "folder": folder, "sizes": sizes} for folder, sizes in decode_segments(data).items()]


_TEXTS: Final[dict[str, Callable[[bytes], list[Row]]]] = {
    **{name: partial(_offsets, kind) for name, kind in CHECKPOINTS.items()},
    text_files.LEADER_EPOCH_CHECKPOINT: _epochs,
    text_files.PARTITION_METADATA: lambda data: [
        {"kind": "topic id", "topic_id": text_files.decode_partition_metadata(data)}
    ],
    text_files.META_PROPERTIES: lambda data: [{"kind": "identity", **asdict(text_files.decode_meta_properties(data))}],
    text_files.CLEAN_SHUTDOWN_MARKER: _segments,
    text_files.STOPPED_SEGMENTS: _segments,
}


def _first_bad_byte(data: bytes, decode: Callable[[bytes], list[Row]]) -> int:
    """Return the position of the first line that makes a text file unreadable: version, number of entries, or entry."""
    version, count, *entries = [*data.splitlines(keepends=True), b"", b""]

    def fails(length: int) -> bool:
        kept = [entry for entry in entries[:length] if entry.strip()]
        try:
            decode(version + b"%d\n" % len(kept) + b"".join(kept))
        except text_files.DamagedFileError:
            return True
        return False

    if fails(0):
        return 0
    first_bad = bisect_left(range(len(entries) + 1), True, key=fails)
    return len(version) + (0 if first_bad > len(entries) else len(count) + sum(map(len, entries[: first_bad - 1])))
