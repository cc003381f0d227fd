"""Offset and time index: known bytes, lookups, truncation, full indexes."""

from paceline.log.offset_index import OffsetIndex, OffsetPosition
from paceline.log.segment import Segment
from paceline.log.time_index import TimeIndex, TimestampOffset
from tests.unit.log.memory_files import MemoryFiles


def files() -> MemoryFiles:
    found = MemoryFiles()
    found.make_directory("/log")
    return found


def test_an_entry_has_the_last_offset_and_the_start_position_of_its_append() -> None:
    disk = files()
    segment = Segment(disk, "/log", 100, index_interval_bytes=4096, max_index_bytes=1024)
    segment.start_new()
    for first in (100, 110, 120):
        segment.append(bytes(5000))
        segment.publish_batch(5000, first, first + 9, 1000, first + 9)
    segment.seal()
    assert bytes(disk.contents["/log/00000000000000000100.index"]) == bytes.fromhex(
        "00000013 00001388 0000001d 00002710"
    )


def test_offset_lookups_return_the_greatest_entry_not_above_the_offset() -> None:
    disk = files()
    index = OffsetIndex(disk, "/log/x.index", 100, 80)
    index.start_new()
    for offset, position in ((110, 5000), (120, 10000), (130, 15000)):
        index.append(offset, position)
    index.append(130, 99)  # not above the last entry: not added
    expected = {100: (100, 0), 109: (100, 0), 110: (110, 5000), 125: (120, 10000), 9999: (130, 15000)}
    for _ in range(2):
        assert {offset: tuple(index.lookup(offset)) for offset in expected} == expected
        index.write_pending()
        index.unload()  # the second round reads the file
    assert index.last == OffsetPosition(130, 15000)
    index.load()
    index.truncate_to(120)
    assert index.last == OffsetPosition(110, 5000)
    assert len(disk.contents["/log/x.index"]) == 8


def test_truncation_removes_entries_that_were_not_written_yet() -> None:
    disk = files()
    index = TimeIndex(disk, "/log/x.timeindex", 0, 1024)
    index.start_new()
    for i in range(1, 6):
        index.append(1000 * i, 10 * i)
        if i == 2:
            index.write_pending()
    index.truncate_to(40)
    assert index.last == TimestampOffset(3000, 30)
    index.write_pending()
    assert len(disk.contents["/log/x.timeindex"]) == 36
    index.truncate_to(20)
    index.write_pending()
    assert len(disk.contents["/log/x.timeindex"]) == 12


def test_time_lookups_with_equal_timestamps() -> None:
    index = TimeIndex(files(), "/log/x.timeindex", 50, 1024)
    index.start_new()
    index.append(1000, 60)
    index.append(1000, 70)
    index.append(2000, 80)
    assert index.lookup(999) == TimestampOffset(-1, 50)
    assert index.lookup(1999) == TimestampOffset(1000, 60)
    assert index.lookup(2000) == TimestampOffset(2000, 80)


def test_an_index_is_full_at_its_size_and_the_time_index_keeps_one_slot() -> None:
    offsets = OffsetIndex(files(), "/log/x.index", 0, 20)
    times = TimeIndex(files(), "/log/x.timeindex", 0, 30)
    offsets.start_new()
    times.start_new()
    offsets.append(1, 1)
    assert not offsets.is_full
    offsets.append(2, 2)
    assert offsets.is_full
    assert not times.is_full
    times.append(1, 1)
    assert times.is_full
    times.append(2, 2)
    assert times.entry_count == 2


def test_entries_are_written_in_blocks_and_readable_before() -> None:
    disk = files()
    index = OffsetIndex(disk, "/log/x.index", 0, 1 << 20)
    index.start_new()
    for i in range(1, 1001):
        index.append(i, 10 * i)
    assert 0 < len(disk.contents["/log/x.index"]) < 8000
    assert index.lookup(777) == OffsetPosition(777, 7770)
    index.write_pending()
    assert len(disk.contents["/log/x.index"]) == 8000
