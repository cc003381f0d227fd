"""Helpers that create batches and logs for the tests of the log package."""

from collections.abc import Sequence

from paceline.log.compression import Codec
from paceline.log.directory_names import directory_name
from paceline.log.load_report import LoadReport
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import NewRecord, Record, encode_batch, iterate_headers
from paceline.model.identifiers import TopicPartition
from tests.support.batches import decode_records
from tests.unit.log.memory_files import MemoryFiles

ROOT = "/data"
TP = TopicPartition("orders-eu.v1", 0)
NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100)
DIRECTORY = f"{ROOT}/{directory_name(TP)}"


def batch(
    *values: bytes | None,
    timestamp: int = 1000,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    key: bytes | None = b"k",
) -> bytes:
    """One batch with these values; ``producer`` is (id, epoch, base sequence); timestamps rise by one."""
    producer_id, producer_epoch, base_sequence = producer or (-1, -1, -1)
    return encode_batch(
        [NewRecord(timestamp + i, key, value) for i, value in enumerate(values)],
        codec=codec,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def manager(
    files: MemoryFiles, config: LogConfig | None = None, dirs: Sequence[str] = (ROOT,), boot_id: str = "boot"
) -> tuple[LogManager, LoadReport]:
    """A loaded log manager; failures of directories are recorded in the directories only."""
    found = LogManager(files, dirs, config or LogConfig(), on_dir_failure=lambda _path, _error: None, boot_id=boot_id)
    return found, found.load(NOW_MS)


def new_log(files: MemoryFiles, config: LogConfig | None = None) -> PartitionLog:
    """A log in a fresh manager."""
    return manager(files, config)[0].get_or_create(TP, None, True)


def crash(files: MemoryFiles) -> None:
    """Kill the process: its locks are released, its files keep the content of the page cache."""
    files.locked.clear()


def records_of(log: PartitionLog) -> list[Record]:
    """Return every record of the log, read as a follower reads: by batches, since compaction leaves gaps."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset)
        if not data:
            break
        found.extend(record for record in decode_records(data) if record.offset >= log.log_start_offset)
        offset = max(header.last_offset for _, header in iterate_headers(data)) + 1
    return found


def filled_manager(files: MemoryFiles, batches: int = 20) -> tuple[LogManager, list[Record]]:
    """A manager with one log of batches of two records, epochs 0 and 1; nothing flushed."""
    found, _ = manager(files, SMALL)
    log = found.get_or_create(TP, "A" * 22, True)
    for i in range(batches):
        log.append_as_leader(batch(b"a%d" % i, b"b%d" % i, producer=(9, 0, 2 * i)), i * 2 // batches, NOW_MS)
    return found, records_of(log)


def last_segment(files: MemoryFiles) -> bytearray:
    name = max(name for name in files.contents if name.startswith(DIRECTORY) and name.endswith(".log"))
    return files.contents[name]


def filled_log(files: MemoryFiles, batches: int = 20, config: LogConfig = SMALL) -> PartitionLog:
    """A log with batches of two records each, in epoch 0."""
    log = new_log(files, config)
    for i in range(batches):
        log.append_as_leader(batch(b"a%d" % i, b"b%d" % i, timestamp=1000 + 10 * i), 0, NOW_MS)
    return log
