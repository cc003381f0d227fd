"""Appending, reading and rolling one log."""

import struct

import pytest

from paceline.log import batch_file, record_batch
from paceline.log.compression import Codec
from paceline.log.directory_names import directory_name
from paceline.log.log_config import LogConfig, TimestampType
from paceline.log.read_place import ReadPlace
from paceline.log.record_batch import iterate_headers
from paceline.model.errors import (
    CorruptMessageError,
    InconsistentTopicIdError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumberError,
    PacelineError,
)
from tests.support.batches import decode_records
from tests.unit.log.helpers import NOW_MS, ROOT, SMALL, TP, batch, filled_log, new_log, records_of
from tests.unit.log.memory_files import MemoryFiles


def test_the_leader_assigns_offsets_and_stamps_its_epoch() -> None:
    log = new_log(MemoryFiles())
    first = log.append_as_leader(batch(b"a", b"b"), 3, NOW_MS)
    second = log.append_as_leader(batch(b"c", codec=Codec.ZSTD), 4, NOW_MS)
    assert (first.base_offset, first.last_offset, second.base_offset) == (0, 1, 2)
    assert first.log_append_time_ms == -1
    headers = [header for _, header in iterate_headers(log.read(0, 1 << 20, 99))]
    assert [(h.base_offset, h.leader_epoch) for h in headers] == [(0, 3), (2, 4)]
    assert log.epochs.entries == [(3, 0), (4, 2)]
    assert [record.value for record in records_of(log)] == [b"a", b"b", b"c"]


def test_an_append_is_one_write() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    files.operations.clear()
    log.append_as_leader(batch(b"b"), 0, NOW_MS)
    log.append_as_follower(batch(b"c", base_offset=2, leader_epoch=0) + batch(b"d", base_offset=3, leader_epoch=0))
    assert files.operations == [("append", log.segments[0].log_path)] * 2


def test_a_refused_append_changes_nothing() -> None:
    files = MemoryFiles()
    log = filled_log(files, 3)
    before = {name: bytes(data) for name, data in files.contents.items()}
    state = (log.log_end_offset, log.epochs.entries, log.producers.encode(), log.size_bytes)
    for bad in (b"", batch(b"x")[:-1], batch(b"x", base_offset=1), batch(b"x", timestamp=-9), batch(b"x") * 2):
        with pytest.raises(PacelineError):
            log.append_as_leader(bad, 9, NOW_MS)
    flipped = bytearray(batch(b"x", base_offset=6))
    flipped[-1] ^= 1
    with pytest.raises(CorruptMessageError):
        log.append_as_follower(batch(b"y", base_offset=6) + bytes(flipped))
    with pytest.raises(InvalidRecordError):
        log.append_as_follower(batch(b"y", base_offset=5))
    with pytest.raises(InvalidRecordError):
        log.append_as_follower(batch(b"y", base_offset=6) + batch(b"y", base_offset=6))
    assert {name: bytes(data) for name, data in files.contents.items()} == before
    assert (log.log_end_offset, log.epochs.entries, log.producers.encode(), log.size_bytes) == state


def test_a_follower_keeps_the_leaders_bytes_and_epochs_and_accepts_gaps() -> None:
    leader = filled_log(MemoryFiles(), 5)
    data = leader.read(0, 1 << 20, 99)
    follower = new_log(MemoryFiles())
    info = follower.append_as_follower(memoryview(data + batch(b"z", base_offset=99)[:-1]))
    assert info is not None
    assert follower.read(0, 1 << 20, 99) == data
    assert follower.epochs.entries == [(0, 0)]
    follower.append_as_follower(batch(b"gap", base_offset=50, leader_epoch=2))
    assert follower.log_end_offset == 51
    assert follower.epochs.entries == [(0, 0), (2, 6)], "the first batches of epoch 2 may be compacted away"
    assert next(decode_records(follower.read(30, 1 << 20, 99))).offset == 50


def test_an_incomplete_batch_is_not_appended() -> None:
    log = new_log(MemoryFiles())
    assert log.append_as_follower(batch(b"a")[:-1]) is None
    assert log.log_end_offset == 0


def test_a_read_gives_whole_batches_within_its_limits() -> None:
    log = filled_log(MemoryFiles(), 6, LogConfig())
    size = len(batch(b"a0", b"b0"))
    assert len(log.read(3, 2 * size, 12)) == 2 * size
    assert next(iterate_headers(log.read(3, 2 * size, 12)))[1].base_offset == 2
    assert len(log.read(0, 2 * size + 5, 12)) == 2 * size
    assert len(log.read(0, 1, 12)) == size
    assert log.read(0, 1, 12, at_least_one=False) == b""
    assert len(log.read(0, 1 << 20, 5)) == 2 * size  # the third batch ends above 5
    assert log.read(4, 1 << 20, 5) == b""
    assert log.read(12, 1 << 20, 12) == b""


def test_the_error_of_a_read_outside_the_log_has_the_bounds_of_the_log() -> None:
    log = filled_log(MemoryFiles(), 3)
    log.increment_log_start_offset(2)
    for offset in (-1, 1, 7):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(offset, 100, 99)
        assert (caught.value.log_start_offset, caught.value.end_offset) == (2, 6)


def test_every_offset_is_found_in_every_segment() -> None:
    log = filled_log(MemoryFiles(), 40)
    assert len(log.segments) > 5
    for offset in list(range(80)) + list(reversed(range(80))):
        header = next(iterate_headers(log.read(offset, 1, 80)))[1]
        assert header.base_offset <= offset <= header.last_offset


def test_a_read_of_tiny_batches_that_were_read_before_checks_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(MemoryFiles())
    for number in range(2_000):
        log.append_as_leader(batch(b"v%d" % number), 0, NOW_MS)
    checked: list[int] = []

    def crc_of(data: bytes, at: int, size: int) -> int:
        checked.append(at)
        return record_batch.crc_of(data, at, size)

    monkeypatch.setattr(batch_file, "crc_of", crc_of)
    first = log.read(0, 1 << 20, 2_000)
    assert len(checked) == 2_000
    for offset in range(100):
        checked.clear()
        assert first.endswith(log.read(offset, 1 << 20, 2_000))
        # Less than two pieces of 8 KiB before the first common piece, and less than two after the last.
        assert len(checked) < 4 * 8192 // 70
    checked.clear()
    assert log.read(0, 1 << 20, 2_000) == first and len(checked) < 2 * 8192 // 70


def test_bytes_counted_by_positions_are_the_bytes_of_a_read() -> None:
    log = new_log(MemoryFiles(), LogConfig(segment_bytes=600, index_interval_bytes=100))
    places: dict[int, ReadPlace] = {}

    def check() -> None:
        for offset in range(log.log_end_offset):
            place = places.setdefault(offset, ReadPlace(offset))
            for limit in range(offset + 1, log.log_end_offset + 1):
                bases = [one.base_offset for one in log.segments]
                is_complete = any(offset < base < limit for base in bases)
                counted = log.bytes_below(limit, place)
                assert counted == (None if is_complete else len(log.read(offset, 1 << 20, limit))), (offset, limit)

    for size in (2, 1, 3, 1, 1, 2, 4, 1, 1, 3):
        log.append_as_leader(batch(*[b"v" * 20] * size), 0, NOW_MS)
        check()
    assert log.segment_count > 2
    log.truncate_to(13)
    for size in (3, 1, 1):  # other batches at the same offsets
        log.append_as_leader(batch(*[b"w" * 30] * size), 1, NOW_MS)
        check()
    log.increment_log_start_offset(5)
    with pytest.raises(OffsetOutOfRangeError):
        log.bytes_below(10, ReadPlace(4))


def test_a_segment_rolls_by_size_before_the_append_that_would_not_fit() -> None:
    log = filled_log(MemoryFiles(), 20)
    assert all(segment.size <= 300 for segment in log.segments)
    assert all(segment.base_offset % 2 == 0 for segment in log.segments)


def test_rolling_by_time_compares_record_timestamps() -> None:
    log = new_log(MemoryFiles(), LogConfig(segment_ms=60_000))
    for timestamp in (0, 60_000, 30_000, 60_001, 60_002, 100_000, 200_000):
        log.append_as_leader(batch(b"v", timestamp=timestamp), 0, NOW_MS)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]


def test_rolling_by_time_without_timestamps_uses_the_wall_clock() -> None:
    log = new_log(MemoryFiles(), LogConfig(segment_ms=1000))
    for now in (NOW_MS, NOW_MS + 1000, NOW_MS + 1001):
        log.append_as_leader(batch(b"v", timestamp=-1), 0, now)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_full_index_rolls_the_segment() -> None:
    log = new_log(MemoryFiles(), LogConfig(index_interval_bytes=0, segment_index_bytes=48))
    for i in range(20):
        log.append_as_leader(batch(b"v", timestamp=i), 0, NOW_MS)
    assert len(log.segments) > 2
    assert all(segment.time_index.entry_count <= 4 for segment in log.segments)


def test_a_follower_rolls_where_the_leader_did() -> None:
    leader = filled_log(MemoryFiles(), 30)
    data = b"".join(leader.read(s.base_offset, 1 << 20, 99) for s in leader.segments)
    follower = new_log(MemoryFiles(), SMALL)
    follower.append_as_follower(data)
    assert [s.base_offset for s in follower.segments] == [s.base_offset for s in leader.segments]
    assert [s.size for s in follower.segments] == [s.size for s in leader.segments]


def test_offsets_too_far_for_the_index_start_a_segment() -> None:
    log = new_log(MemoryFiles())
    log.append_as_follower(batch(b"a", base_offset=0) + batch(b"b", base_offset=2**31 - 1))
    log.append_as_follower(batch(b"c", base_offset=2**31))
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]


def test_an_append_returns_the_log_append_time() -> None:
    log = new_log(MemoryFiles(), LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    info = log.append_as_leader(batch(b"a"), 0, NOW_MS)
    assert info.log_append_time_ms == NOW_MS


def test_a_repeated_batch_of_a_producer_gets_the_original_offsets_and_is_not_appended() -> None:
    log = new_log(MemoryFiles())
    sent = [batch(b"x%d" % i, b"y%d" % i, producer=(7, 0, 2 * i)) for i in range(5)]
    infos = [log.append_as_leader(one, 0, NOW_MS) for one in sent]
    size = log.size_bytes
    for one, info in zip(sent, infos, strict=True):
        again = log.append_as_leader(one, 1, NOW_MS)
        assert again.duplicate and (again.base_offset, again.last_offset) == (info.base_offset, info.last_offset)
    assert (log.size_bytes, log.log_end_offset, log.epochs.entries) == (size, 10, [(0, 0)])
    with pytest.raises(OutOfOrderSequenceNumberError):
        log.append_as_leader(batch(b"z", producer=(7, 0, 99)), 0, NOW_MS)


def test_time_lookups_find_records_in_every_segment() -> None:
    log = filled_log(MemoryFiles(), 20)  # record 2i has timestamp 1000 + 10i, record 2i + 1 one more
    assert log.offset_for_timestamp(0, 40) == (0, 1000)
    assert log.offset_for_timestamp(1051, 40) == (11, 1051)
    assert log.offset_for_timestamp(1052, 40) == (12, 1060)
    assert log.offset_for_timestamp(1191, 40) == (39, 1191)
    assert log.offset_for_timestamp(1192, 40) is None
    assert log.offset_for_timestamp(1052, 12) is None
    log.increment_log_start_offset(15)
    assert log.offset_for_timestamp(0, 40) == (15, 1071)


@pytest.mark.parametrize("offset", [5, 1_000_000])
def test_an_index_entry_without_a_timestamp_hides_no_record_from_a_lookup(offset: int) -> None:
    files = MemoryFiles()
    log = filled_log(files, 20)
    closed = log.segments[0]
    assert closed is not log.segments[-1]
    files.contents[closed.time_index.path][:] = struct.pack(">qi", -5, offset)
    closed.time_index.open()
    assert log.offset_for_timestamp(1_001, 40) == (1, 1_001)


def test_a_log_refuses_another_topic_id() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.assign_topic_id("A" * 22)
    path = f"{ROOT}/{directory_name(TP)}/partition.metadata"
    assert path not in files.contents
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    assert bytes(files.contents[path]) == b"version: 0\ntopic_id: " + b"A" * 22
    assert path not in files.synced
    log.flush()
    assert path in files.synced
    with pytest.raises(InconsistentTopicIdError):
        log.assign_topic_id("B" * 22)


def test_the_high_watermark_stays_within_the_log() -> None:
    log = filled_log(MemoryFiles(), 5)
    assert [log.update_high_watermark(n) for n in (3, 99, -1)] == [3, 10, 0]
    log.increment_log_start_offset(4)
    assert (log.log_start_offset, log.high_watermark) == (4, 4)
    assert log.update_high_watermark(2) == 4
    assert log.increment_log_start_offset(3) is False
    with pytest.raises(OffsetOutOfRangeError):
        log.increment_log_start_offset(11)


@pytest.mark.parametrize("sent", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("wanted", [Codec.ZSTD, Codec.SNAPPY])
def test_a_recompressed_batch_can_always_be_read(sent: Codec, wanted: Codec) -> None:
    """Zstd makes zeros so small that the check against decompression bombs would refuse the batch."""
    log = new_log(MemoryFiles(), LogConfig(compression_type=wanted, max_message_bytes=8 << 20))
    value = bytes(5_000_000)
    log.append_as_leader(batch(value, codec=sent), 0, NOW_MS)
    assert [record.value for record in records_of(log)] == [value]
    assert log.offset_for_timestamp(1000, 1) == (0, 1000)
