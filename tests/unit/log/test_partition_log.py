"""Appending, reading, rolling, truncating and flushing one log."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.log.compression import Codec
from paceline.log.log_config import LogConfig, TimestampType
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import decode_records, iterate_headers
from paceline.model.errors import (
    CorruptMessageError,
    InconsistentTopicIdError,
    InvalidRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumberError,
    PacelineError,
    UnknownTopicOrPartitionError,
)
from tests.unit.log.helpers import NOW_MS, ROOT, TP, batch, crash, manager, new_log, records_of
from tests.unit.log.memory_files import MemoryFiles

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100)


def filled(files: MemoryFiles, batches: int = 20, config: LogConfig = SMALL) -> PartitionLog:
    """A log with batches of two records each, in epoch 0."""
    log = new_log(files, config)
    for i in range(batches):
        log.append_as_leader(batch(b"a%d" % i, b"b%d" % i, timestamp=1000 + 10 * i), 0, NOW_MS)
    return log


def test_the_leader_assigns_offsets_and_stamps_its_epoch() -> None:
    log = new_log(MemoryFiles())
    first = log.append_as_leader(batch(b"a", b"b"), 3, NOW_MS)
    second = log.append_as_leader(batch(b"c", codec=Codec.ZSTD), 4, NOW_MS)
    assert (first.base_offset, first.last_offset, second.base_offset) == (0, 1, 2)
    assert (first.record_count, first.max_timestamp_ms, first.log_append_time_ms) == (2, 1001, -1)
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
    log = filled(files, 3)
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
    leader = filled(MemoryFiles(), 5)
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
    log = filled(MemoryFiles(), 6, LogConfig())
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
    log = filled(MemoryFiles(), 3)
    log.increment_log_start_offset(2)
    for offset in (-1, 1, 7):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(offset, 100, 99)
        assert (caught.value.log_start_offset, caught.value.end_offset) == (2, 6)


def test_every_offset_is_found_in_every_segment() -> None:
    log = filled(MemoryFiles(), 40)
    assert len(log.segments) > 5
    for offset in list(range(80)) + list(reversed(range(80))):
        header = next(iterate_headers(log.read(offset, 1, 80)))[1]
        assert header.base_offset <= offset <= header.last_offset


def test_a_segment_rolls_by_size_before_the_append_that_would_not_fit() -> None:
    log = filled(MemoryFiles(), 20)
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
    leader = filled(MemoryFiles(), 30)
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
    assert (info.log_append_time_ms, info.max_timestamp_ms) == (NOW_MS, NOW_MS)


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
    log = filled(MemoryFiles(), 20)  # record 2i has timestamp 1000 + 10i, record 2i + 1 one more
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
    log = filled(files, 20)
    closed = log.segments[0]
    assert closed is not log.segments[-1]
    files.contents[closed.time_index.path][:] = struct.pack(">qi", -5, offset)
    closed.time_index.open()
    assert log.offset_for_timestamp(1_001, 40) == (1, 1_001)


def test_a_log_refuses_another_topic_id() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.assign_topic_id("A" * 22)
    path = f"{ROOT}/{TP}/partition.metadata"
    assert path not in files.contents
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    assert bytes(files.contents[path]) == b"version: 0\ntopic_id: " + b"A" * 22
    assert path not in files.synced
    log.flush()
    assert path in files.synced
    with pytest.raises(InconsistentTopicIdError):
        log.assign_topic_id("B" * 22)


def test_the_high_watermark_stays_within_the_log() -> None:
    log = filled(MemoryFiles(), 5)
    assert [log.update_high_watermark(n) for n in (3, 99, -1)] == [3, 10, 0]
    log.increment_log_start_offset(4)
    assert (log.log_start_offset, log.high_watermark) == (4, 4)
    assert log.update_high_watermark(2) == 4
    assert log.increment_log_start_offset(3) is False
    with pytest.raises(OffsetOutOfRangeError):
        log.increment_log_start_offset(11)


# -- truncation ----------------------------------------------------------------------------------------------------


def test_truncation_is_exact_for_offsets_and_whole_batches_on_disk() -> None:
    log = filled(MemoryFiles(), 20)
    log.update_high_watermark(40)
    log.truncate_to(23)
    assert (log.log_end_offset, log.high_watermark, log.log_start_offset) == (23, 23, 0)
    assert [record.offset for record in records_of(log)] == list(range(22))
    info = log.append_as_leader(batch(b"next"), 1, NOW_MS)
    assert info.base_offset == 23
    assert records_of(log)[-1].offset == 23


def test_a_follower_truncated_inside_a_batch_accepts_that_batch_again() -> None:
    leader = filled(MemoryFiles(), 5, LogConfig())
    follower = new_log(MemoryFiles())
    follower.append_as_follower(leader.read(0, 1 << 20, 10))
    follower.truncate_to(5)
    follower.append_as_follower(leader.read(5, 1 << 20, 10))
    assert follower.read(0, 1 << 20, 10) == leader.read(0, 1 << 20, 10)


def test_an_empty_log_accepts_the_batch_that_contains_its_log_start() -> None:
    leader = filled(MemoryFiles(), 5, LogConfig())
    follower = new_log(MemoryFiles())
    follower.truncate_fully_and_start_at(5)
    follower.append_as_follower(leader.read(5, 1 << 20, 10))
    assert (follower.log_start_offset, follower.log_end_offset) == (5, 10)
    assert follower.segments[0].base_offset == 4
    with pytest.raises(OffsetOutOfRangeError):
        follower.read(4, 100, 10)


def test_truncation_at_or_above_the_end_only_removes_epochs_without_records() -> None:
    log = filled(MemoryFiles(), 3)
    log.assign_leader_epoch(4, 6)
    log.truncate_to(6)
    assert (log.log_end_offset, log.epochs.entries) == (6, [(0, 0)])
    log.truncate_to(99)
    assert log.log_end_offset == 6


def test_truncation_below_the_first_segment_resets_the_log() -> None:
    files = MemoryFiles()
    log = filled(files, 20)
    log.truncate_fully_and_start_at(1000)
    log.append_as_leader(batch(b"a"), 5, NOW_MS)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries) == (1000, 1001, [(5, 1000)])
    log.truncate_to(400)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (400, 400, 0)
    assert [name for name in files.contents if name.endswith(".log")] == []


def test_truncation_adjusts_epochs_producers_and_snapshots() -> None:
    files = MemoryFiles()
    log = new_log(files, SMALL)
    for i in range(12):
        log.append_as_leader(batch(b"v", producer=(7, 0, i)), i // 4, NOW_MS)
    assert len(log.segments) > 2
    log.truncate_to(6)
    assert log.epochs.entries == [(0, 0), (1, 4)]
    entry = log.producers.get(7)
    assert entry is not None and entry.last_sequence == 5
    assert all(offset <= 6 for offset in log.snapshots.offsets())
    log.append_as_leader(batch(b"v", producer=(7, 0, 6)), 3, NOW_MS)


def test_truncating_below_the_durable_recovery_point_lowers_it_durably() -> None:
    files = MemoryFiles()
    found, _ = manager(files, SMALL)
    log = found.get_or_create(TP, None, True)
    for i in range(10):
        log.append_as_leader(batch(b"%d" % i), 0, NOW_MS)
    log.flush()
    found.checkpoint_recovery_points()
    path = f"{ROOT}/recovery-point-offset-checkpoint"
    assert bytes(files.contents[path]) == b"0\n1\norders-eu.v1 0 10\n"
    log.truncate_to(4)
    assert bytes(files.contents[path]) == b"0\n1\norders-eu.v1 0 4\n"
    files.operations.clear()
    log.append_as_leader(batch(b"x"), 1, NOW_MS)
    log.truncate_to(4)
    assert not any(name.startswith(path) for _, name in files.operations)


# -- flushing and failing ------------------------------------------------------------------------------------------


def test_a_flush_makes_batches_epochs_and_indexes_durable_before_the_recovery_point_moves() -> None:
    files = MemoryFiles()
    log = filled(files, 20)
    assert log.flush_needed()  # segments were rolled
    log.flush()
    assert log.recovery_point == 40 and not log.flush_needed() and not log.epochs.dirty
    for segment in log.segments:
        assert set(segment.paths()) <= set(files.synced)
    assert log.begin_flush() is None


def test_a_flush_on_another_thread_covers_only_records_from_before_its_start() -> None:
    log = filled(MemoryFiles(), 3)
    task = log.begin_flush()
    assert task is not None and log.begin_flush() is None
    log.append_as_leader(batch(b"later"), 0, NOW_MS)
    task.run()
    log.finish_flush(task)
    assert (log.recovery_point, log.log_end_offset) == (6, 7)


def test_a_truncation_during_a_flush_keeps_the_recovery_point_below() -> None:
    log = filled(MemoryFiles(), 20)
    task = log.begin_flush()
    assert task is not None
    log.truncate_to(3)
    log.append_as_leader(batch(b"other", b"other"), 1, NOW_MS)
    task.run()  # some of its files were removed
    log.finish_flush(task)
    assert log.recovery_point <= 3
    log.flush()
    assert log.recovery_point == 5


def test_deleting_a_log_during_its_flush_does_not_fail_the_directory() -> None:
    files = MemoryFiles()
    found, _ = manager(files)
    log = found.get_or_create(TP, None, True)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    task = log.begin_flush()
    assert task is not None
    found.delete(TP)
    task.run()
    assert found.live_log_dirs == [ROOT]
    with pytest.raises(UnknownTopicOrPartitionError):
        log.append_as_leader(batch(b"a"), 0, NOW_MS)


def test_a_flush_of_a_deleted_log_does_not_write_the_epochs_of_the_next_log() -> None:
    files = MemoryFiles()
    found, _ = manager(files)
    log = found.get_or_create(TP, None, True)
    log.append_as_leader(batch(b"a"), 3, NOW_MS)
    task = log.begin_flush()
    assert task is not None
    found.delete(TP)
    following = found.get_or_create(TP, None, True)
    following.append_as_leader(batch(b"b"), 1, NOW_MS)
    following.flush()
    task.run()
    log.finish_flush(task)
    found.shutdown()
    again = manager(files)[0].get(TP)
    assert again is not None and again.epochs.entries == [(1, 0)]
    assert [record.value for record in records_of(again)] == [b"b"]


@pytest.mark.parametrize("sent", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("wanted", [Codec.ZSTD, Codec.SNAPPY])
def test_a_recompressed_batch_can_always_be_read(sent: Codec, wanted: Codec) -> None:
    """Zstd makes zeros so small that the check against decompression bombs would refuse the batch."""
    log = new_log(MemoryFiles(), LogConfig(compression_type=wanted, max_message_bytes=8 << 20))
    value = bytes(5_000_000)
    log.append_as_leader(batch(value, codec=sent), 0, NOW_MS)
    assert [record.value for record in records_of(log)] == [value]
    assert log.offset_for_timestamp(1000, 1) == (0, 1000)


def test_flush_messages_flushes_within_the_append() -> None:
    log = new_log(MemoryFiles(), LogConfig(flush_messages=3))
    points = []
    for _ in range(4):
        log.append_as_leader(batch(b"a", b"b"), 0, NOW_MS)
        points.append(log.recovery_point)
    assert points == [0, 4, 4, 8]


def test_flush_ms_is_due_after_its_time() -> None:
    log = new_log(MemoryFiles(), LogConfig(flush_ms=1000))
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    assert [log.flush_needed(now) for now in (100, 1099, 1100)] == [False, False, True]
    log.flush(1100)
    log.append_as_leader(batch(b"b"), 0, NOW_MS)
    assert [log.flush_needed(now) for now in (1200, 2100)] == [False, True]


@pytest.mark.parametrize("operation", ["append", "sync", "read_at", "truncate"])
def test_after_a_storage_error_the_directory_accepts_no_append(operation: str) -> None:
    files = MemoryFiles()
    log = filled(files, 3, LogConfig())
    end = log.log_end_offset
    files.fails = lambda name, path: name == operation and path.endswith(".log")
    calls = {
        "append": lambda: log.append_as_leader(batch(b"x"), 0, NOW_MS),
        "sync": log.flush,
        "read_at": lambda: log.read(0, 100, 99),
        "truncate": lambda: log.truncate_to(2),
    }
    with pytest.raises(KafkaStorageError):
        calls[operation]()
    assert log.directory.is_offline
    files.fails = lambda _name, _path: False
    files.operations.clear()
    for call in calls.values():
        with pytest.raises(KafkaStorageError):
            call()
    assert files.operations == []
    assert log.log_end_offset in {end, 2} and log.recovery_point == 0


# -- against a model -----------------------------------------------------------------------------------------------

STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.sampled_from(list(Codec))),
    st.tuples(st.just("append"), st.integers(1, 4), st.just(Codec.NONE)),
    st.tuples(st.just("replicate"), st.integers(1, 4), st.integers(0, 3)),
    st.tuples(st.just("truncate"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("stop"), st.just(0), st.just(0)),
    st.tuples(st.just("crash"), st.just(0), st.just(0)),
)


class Model:
    """Expected content of a log: batches as (offsets, values, epoch)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[bytes], int]] = []
        self.end = 0

    def add(self, base: int, values: list[bytes], epoch: int) -> None:
        self.batches.append((base, values, epoch))
        self.end = base + len(values)

    def truncate(self, offset: int) -> None:
        if offset < self.end:
            self.batches = [one for one in self.batches if one[0] + len(one[1]) <= offset]
            self.end = offset

    def reopened(self, end: int) -> None:
        """Set the log end after a restart; after a cut inside a batch or gap it may be lower than before."""
        assert (self.batches[-1][0] + len(self.batches[-1][1]) if self.batches else 0) <= end <= self.end
        self.end = end

    def records(self) -> list[tuple[int, bytes]]:
        return [(base + i, value) for base, values, _ in self.batches for i, value in enumerate(values)]


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=40))
def test_any_sequence_of_appends_truncations_and_restarts_equals_the_model(
    steps: list[tuple[str, int, Codec | int]],
) -> None:
    files = MemoryFiles()
    found, _ = manager(files, SMALL)
    log = found.get_or_create(TP, None, True)
    model = Model()
    for number, (kind, amount, extra) in enumerate(steps):
        values = [b"%d-%d" % (number, i) for i in range(amount)]
        if kind == "append":
            assert isinstance(extra, Codec)
            log.append_as_leader(batch(*values, codec=extra, timestamp=number), number, NOW_MS)
            model.add(model.end, values, number)
        elif kind == "replicate":
            base = model.end + int(extra)
            log.append_as_follower(batch(*values, base_offset=base, leader_epoch=number, timestamp=number))
            model.add(base, values, number)
        elif kind == "truncate":
            offset = max(0, model.end - amount)
            log.truncate_to(offset)
            model.truncate(offset)
        elif kind == "flush":
            log.flush()
            found.checkpoint_recovery_points()
        else:
            if kind == "stop":
                found.shutdown()
            crash(files)
            found, report = manager(files, SMALL)
            assert report.truncated_bytes == 0 and report.clean_shutdown is (kind == "stop")
            log = found.get_or_create(TP, None, False)
            model.reopened(log.log_end_offset)
        assert log.log_end_offset == model.end
    assert [(record.offset, record.value) for record in records_of(log)] == model.records()
    for base, values, epoch in model.batches:
        assert log.epochs.epoch_of(base) == epoch
        for offset in range(base, base + len(values)):
            assert next(iterate_headers(log.read(offset, 1, model.end)))[1].base_offset == base
    for base, _, timestamp in model.batches:
        answer = log.offset_for_timestamp(timestamp, model.end)
        assert answer is not None and answer[0] <= base


def test_a_segment_that_begins_after_a_cut_inside_a_batch_begins_with_its_first_batch() -> None:
    files = MemoryFiles()
    logs, _ = manager(files, LogConfig(segment_bytes=200))
    log = logs.get_or_create(TP, None, True)
    log.append_as_follower(batch(b"a", b"b", b"c", base_offset=0, leader_epoch=0))
    log.append_as_follower(batch(b"d", b"e", b"f", b"g", b"h", base_offset=3, leader_epoch=0))
    log.truncate_to(5)
    log.append_as_follower(batch(b"d", b"e", b"f", b"g", b"h" * 50, base_offset=3, leader_epoch=0))
    assert log.segment_count == 2
    assert log.read(4, 1000, 8) == log.read(3, 1000, 8)
    crash(files)
    again = manager(files, LogConfig(segment_bytes=200))[0].get(TP)
    assert again is not None and again.log_end_offset == 8
