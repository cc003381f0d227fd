"""Retention deletes whole committed segments, oldest first: docs/protocol/log-format.md#retention."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from paceline.log.damage import DamagedLogError
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.retention import SegmentExtent, retained_from
from paceline.log.segment import Segment
from paceline.model.errors import CorruptMessageError, KafkaStorageError
from tests.simulation.disk import SimulatedDisk
from tests.unit.log.helpers import NOW_MS, ROOT, TP, batch, manager
from tests.unit.log.memory_files import MemoryFiles

DAY_MS = 86_400_000
OLD = NOW_MS - DAY_MS


def segments(*timestamps: int, size_bytes: int = 100) -> list[SegmentExtent]:
    """Segments of ten records each."""
    return [SegmentExtent(10 * (n + 1), size_bytes, timestamp) for n, timestamp in enumerate(timestamps)]


@pytest.mark.parametrize(
    ("timestamps", "retention_ms", "high_watermark", "expected"),
    [
        ((OLD, OLD, NOW_MS), 1_000, 30, 20),
        ((OLD, OLD, OLD), 1_000, 30, 30),
        ((OLD, OLD, OLD), 1_000, 29, 20),
        ((OLD, OLD, OLD), 1_000, 9, None),
        ((NOW_MS, OLD, OLD), 1_000, 30, None),
        ((OLD,), DAY_MS, 10, None),
        ((OLD,), DAY_MS - 1, 10, 10),
        ((OLD,), 0, 10, 10),
        ((OLD,), -1, 10, None),
        ((NOW_MS + DAY_MS, OLD), 1_000, 20, None),
        ((), 1_000, 20, None),
    ],
)
def test_old_segments_are_deleted_up_to_the_first_newer_one(
    timestamps: tuple[int, ...], retention_ms: int, high_watermark: int, expected: int | None
) -> None:
    config = LogConfig(retention_ms=retention_ms)
    found = segments(*timestamps)
    assert retained_from(found, config, 100 * len(found), high_watermark, NOW_MS) == expected


@pytest.mark.parametrize(
    ("retention_bytes", "high_watermark", "expected"),
    [
        (300, 30, None),
        (299, 30, None),
        (200, 30, 10),
        (101, 30, 10),
        (100, 30, 20),
        (0, 30, 30),
        (0, 25, 20),
        (-1, 30, None),
    ],
)
def test_segments_above_the_size_limit_are_deleted_and_at_least_the_limit_is_kept(
    retention_bytes: int, high_watermark: int, expected: int | None
) -> None:
    config = LogConfig(retention_bytes=retention_bytes, retention_ms=-1)
    assert retained_from(segments(-1, -1, -1), config, 300, high_watermark, NOW_MS) == expected


def test_size_and_age_are_both_checked_for_each_segment() -> None:
    config = LogConfig(retention_bytes=100, retention_ms=1_000)
    assert retained_from(segments(NOW_MS, OLD, NOW_MS, NOW_MS), config, 300, 40, NOW_MS) == 20


def test_segments_after_the_first_kept_one_are_not_read() -> None:
    def lazily() -> Iterator[SegmentExtent]:
        yield from segments(OLD, NOW_MS)
        raise AssertionError("its timestamps would be read from the disk")

    assert retained_from(lazily(), LogConfig(retention_ms=1_000), 300, 30, NOW_MS) == 10


# -- in a log ------------------------------------------------------------------------------------------------------

CONFIG = LogConfig(segment_bytes=200, index_interval_bytes=64, retention_ms=1_000)


def log_of(files: MemoryFiles, *timestamps: int, config: LogConfig = CONFIG) -> PartitionLog:
    """A committed log with two batches of one record in each segment."""
    log = manager(files, config)[0].get_or_create(TP, "topic-id-of-orders-one", True)
    for number, timestamp in enumerate(timestamps):
        log.append_as_leader(batch(b"x" * 20, timestamp=timestamp, producer=(7, 0, number)), 1, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    return log


def apply(log: PartitionLog) -> int:
    offset = log.retained_from(NOW_MS)
    assert offset is not None
    log.increment_log_start_offset(offset)
    log.remove_files(log.remove_segments_below_start())
    return offset


def test_old_segments_are_deleted_and_the_rest_stays_readable() -> None:
    files = MemoryFiles()
    log = log_of(files, OLD, OLD, OLD, OLD, NOW_MS, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
    assert apply(log) == 4
    assert (log.log_start_offset, log.log_end_offset) == (4, 6)
    assert log.read(4, 10_000, 6) and log.retained_from(NOW_MS) is None
    assert not any("0000000000000000000" + str(n) + "." in path for n in (0, 2) for path in files.contents)


def test_a_log_whose_active_segment_is_deleted_continues_at_its_log_end() -> None:
    files = MemoryFiles()
    log = log_of(files, OLD, OLD, OLD)
    assert apply(log) == 3
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (3, 3, 0)
    assert log.retained_from(NOW_MS) is None, "an empty active segment stays"
    info = log.append_as_leader(batch(b"y", timestamp=NOW_MS, producer=(7, 0, 3)), 1, NOW_MS)
    assert info.base_offset == 3, "its producer can continue"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("loses_power", [False, True], ids=["crash", "power"])
def test_a_log_emptied_by_retention_assigns_no_offset_twice(seed: int, loses_power: bool) -> None:
    disk = SimulatedDisk(lambda: NOW_MS, random.Random(seed))
    found = LogManager(disk, [ROOT], CONFIG, on_dir_failure=lambda *_: None, boot_id="1")
    found.load(NOW_MS)
    log = found.get_or_create(TP, "A" * 22, True)
    for _ in range(3):
        log.append_as_leader(batch(b"x", timestamp=OLD), 1, NOW_MS)
    log.update_high_watermark(3)
    log.flush()
    apply(log)
    if loses_power:
        disk.lose_power()
    else:
        disk.crash_process()
    found = LogManager(disk, [ROOT], CONFIG, on_dir_failure=lambda *_: None, boot_id="2" if loses_power else "1")
    found.load(NOW_MS)
    again = found.get(TP)
    assert again is not None and again.log_end_offset == 3
    assert again.append_as_leader(batch(b"y", timestamp=NOW_MS), 2, NOW_MS).base_offset == 3


def test_the_active_segment_stays_after_a_truncation_inside_a_batch() -> None:
    """The leader's next batch may begin below the log end."""
    files = MemoryFiles()
    log = manager(files, CONFIG)[0].get_or_create(TP, None, True)
    log.append_as_leader(batch(b"a", timestamp=OLD), 1, NOW_MS)
    log.append_as_leader(batch(b"b", b"c", b"d", timestamp=OLD), 1, NOW_MS)
    log.truncate_to(2)
    log.update_high_watermark(2)
    assert log.retained_from(NOW_MS) is None


def test_without_timestamps_the_age_of_the_file_counts() -> None:
    files = MemoryFiles()
    log = log_of(files, -1, -1, -1)
    written = files.modified_ms(log.segments[0].log_path)
    config = replace(CONFIG, retention_ms=1_000)
    log.config = config
    assert log.retained_from(written + 1_000) is None
    assert log.retained_from(written + 1_001) == 3


def test_nothing_is_deleted_in_a_failed_directory() -> None:
    log = log_of(MemoryFiles(), OLD, OLD)
    log.directory.fail(OSError("gone"))
    with pytest.raises(KafkaStorageError):
        log.retained_from(NOW_MS)


def test_an_unreadable_segment_is_reported_as_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_segment: Segment) -> int:
        raise CorruptMessageError("differ from the batch that was written")

    log = log_of(MemoryFiles(), OLD, OLD)
    monkeypatch.setattr(Segment, "newest_ms", property(damaged))
    with pytest.raises(DamagedLogError):
        log.retained_from(NOW_MS)
