"""Truncating one log; a model of appends, truncations and restarts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.log.compression import Codec
from paceline.log.log_config import LogConfig
from paceline.log.record_batch import iterate_headers
from paceline.model.errors import OffsetOutOfRangeError
from tests.unit.log.helpers import NOW_MS, ROOT, SMALL, TP, batch, crash, filled_log, manager, new_log, records_of
from tests.unit.log.memory_files import MemoryFiles

# -- truncation ----------------------------------------------------------------------------------------------------


def test_truncation_is_exact_for_offsets_and_whole_batches_on_disk() -> None:
    log = filled_log(MemoryFiles(), 20)
    log.update_high_watermark(40)
    log.truncate_to(23)
    assert (log.log_end_offset, log.high_watermark, log.log_start_offset) == (23, 23, 0)
    assert [record.offset for record in records_of(log)] == list(range(22))
    info = log.append_as_leader(batch(b"next"), 1, NOW_MS)
    assert info.base_offset == 23
    assert records_of(log)[-1].offset == 23


def test_a_follower_truncated_inside_a_batch_accepts_that_batch_again() -> None:
    leader = filled_log(MemoryFiles(), 5, LogConfig())
    follower = new_log(MemoryFiles())
    follower.append_as_follower(leader.read(0, 1 << 20, 10))
    follower.truncate_to(5)
    follower.append_as_follower(leader.read(5, 1 << 20, 10))
    assert follower.read(0, 1 << 20, 10) == leader.read(0, 1 << 20, 10)


def test_an_empty_log_accepts_the_batch_that_contains_its_log_start() -> None:
    leader = filled_log(MemoryFiles(), 5, LogConfig())
    follower = new_log(MemoryFiles())
    follower.truncate_fully_and_start_at(5)
    follower.append_as_follower(leader.read(5, 1 << 20, 10))
    assert (follower.log_start_offset, follower.log_end_offset) == (5, 10)
    assert follower.segments[0].base_offset == 4
    with pytest.raises(OffsetOutOfRangeError):
        follower.read(4, 100, 10)


def test_truncation_at_or_above_the_end_only_removes_epochs_without_records() -> None:
    log = filled_log(MemoryFiles(), 3)
    log.assign_leader_epoch(4, 6)
    log.truncate_to(6)
    assert (log.log_end_offset, log.epochs.entries) == (6, [(0, 0)])
    log.truncate_to(99)
    assert log.log_end_offset == 6


def test_truncation_below_the_first_segment_resets_the_log() -> None:
    files = MemoryFiles()
    log = filled_log(files, 20)
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


def test_a_truncation_during_a_flush_keeps_the_recovery_point_below() -> None:
    log = filled_log(MemoryFiles(), 20)
    task = log.begin_flush()
    assert task is not None
    log.truncate_to(3)
    log.append_as_leader(batch(b"other", b"other"), 1, NOW_MS)
    task.run()  # some of its files were removed
    log.finish_flush(task)
    assert log.recovery_point <= 3
    log.flush()
    assert log.recovery_point == 5


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
