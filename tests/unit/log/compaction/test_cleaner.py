"""Compaction keeps only the last record of every key, at its offset."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.log.compression import Codec
from paceline.log.log_config import LogConfig
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import (
    MAX_INT64,
    NewRecord,
    Record,
    decode_batch,
    encode_batch,
    iterate_headers,
    set_timestamp,
    stamp,
)
from paceline.model.errors import CorruptMessageError
from tests.unit.log.helpers import NOW_MS, TP, crash, manager, new_log, records_of
from tests.unit.log.memory_files import MemoryFiles

CONFIG = LogConfig(
    segment_bytes=500, index_interval_bytes=100, cleanup_policy=frozenset({"compact"}), delete_retention_ms=1_000
)
BUFFER_BYTES = 1 << 20

Entry = tuple[bytes, bytes | None]


def append(
    log: PartitionLog,
    entries: Sequence[Entry],
    *,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamp: int = NOW_MS,
    transactional: bool = False,
) -> None:
    records = [NewRecord(timestamp + i, key, value) for i, (key, value) in enumerate(entries)]
    producer_id, epoch, sequence = producer
    batch = encode_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        base_offset=log.log_end_offset,
        leader_epoch=3,
    )
    if transactional:
        log.append_as_follower(batch, NOW_MS)
    else:
        log.append_as_leader(encode_batch(
            records, codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        ), 3, NOW_MS)  # fmt: skip


def commit(log: PartitionLog) -> None:
    """Make every appended record durable and committed."""
    log.flush()
    log.update_high_watermark(log.log_end_offset)


def compact(log: PartitionLog, wall_ms: int = NOW_MS, buffer_bytes: int = BUFFER_BYTES) -> bool:
    """Clean once; return whether there was anything to clean."""
    found = log.compaction.find_cleanable(wall_ms)
    if found is None:
        return False
    task = log.compaction.begin(found, wall_ms, buffer_bytes, 0.9)
    while not task.is_finished:
        task.run(1 << 20)
        if task.cleaned is not None:
            log.remove_files(log.compaction.replace_segments(task, task.cleaned))
    log.compaction.finish(task)
    return True


def compacted(records: Sequence[Record], end_offset: int) -> list[Record]:
    """Return the records that stay when all below ``end_offset`` is cleaned and no tombstone has expired."""
    last = {record.key: record.offset for record in records if record.offset < end_offset}
    return [record for record in records if record.offset >= end_offset or last[record.key] == record.offset]


entries = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.sampled_from([b"a", b"b", b"c", b"a key that is longer than a digest"]),
                      st.one_of(st.none(), st.binary(max_size=40))),
            min_size=1, max_size=5,
        ),
        st.sampled_from(list(Codec)),
        st.booleans(),
    ),
    min_size=1, max_size=30,
)  # fmt: skip


@settings(deadline=None)
@given(entries, st.sampled_from([600, BUFFER_BYTES]))
def test_the_last_value_of_each_key_stays_at_its_offset(
    batches: list[tuple[list[Entry], Codec, bool]], buffer_bytes: int
) -> None:
    log = new_log(MemoryFiles(), CONFIG)
    for content, codec, commits in batches:
        append(log, content, codec=codec)
        if commits:
            commit(log)
    before, end = records_of(log), log.log_end_offset
    high_watermark, active = log.high_watermark, log.segments[-1].base_offset
    while compact(log, buffer_bytes=buffer_bytes):
        cleaned_to = log.compaction.first_dirty_offset
        assert cleaned_to is not None and cleaned_to <= min(high_watermark, active)
        after = records_of(log)
        assert [one for one in after if one.offset >= cleaned_to] == [one for one in before if one.offset >= cleaned_to]
        assert {one.key: one for one in after} == {one.key: one for one in before}
        assert set(map(repr, after)) <= set(map(repr, before))
    assert records_of(log) == compacted(before, log.compaction.first_dirty_offset or 0)
    assert (log.log_end_offset, log.high_watermark) == (end, high_watermark)
    for offset in range(end):
        data = log.read(offset, 1, end)
        position, header = next(iter(iterate_headers(data)))
        assert position == 0 and header.last_offset >= offset


def filled(files: MemoryFiles, config: LogConfig = CONFIG, count: int = 40) -> PartitionLog:
    log = new_log(files, config)
    for number in range(count):
        append(log, [(b"key %d" % (number % 4), b"value %d" % number)])
    commit(log)
    return log


def test_compaction_merges_segments_and_writes_the_checkpoint() -> None:
    files = MemoryFiles()
    found, _ = manager(files, CONFIG)
    log = found.get_or_create(TP, None, True)
    for number in range(40):
        append(log, [(b"key %d" % (number % 4), b"value %d" % number)])
    commit(log)
    segments, size = log.segment_count, log.size_bytes
    log.config = replace(CONFIG, segment_bytes=5_000)
    assert compact(log) and not compact(log)
    assert log.segment_count < segments and log.size_bytes < size / 2
    found.checkpoint_cleaner_offsets()
    first_dirty = log.compaction.first_dirty_offset
    assert files.contents["/data/cleaner-offset-checkpoint"].decode() == f"0\n1\norders-eu.v1 0 {first_dirty}\n"
    assert log.compaction.first_dirty_offset == log.segments[-1].base_offset
    crash(files)
    again, _ = manager(files, CONFIG)
    loaded = again.all_logs()[0]
    assert loaded.compaction.first_dirty_offset == log.compaction.first_dirty_offset


def test_a_tombstone_removes_earlier_values_and_stays_for_delete_retention() -> None:
    log = new_log(MemoryFiles(), CONFIG)
    append(log, [(b"gone", b"value"), (b"kept", b"value")])
    append(log, [(b"gone", None), (b"other", b"x" * 200)], timestamp=NOW_MS - 777)
    append(log, [(b"later", b"y" * 380)])
    commit(log)
    assert compact(log)
    assert [(one.offset, one.key) for one in records_of(log)] == [
        (1, b"kept"),
        (2, b"gone"),
        (3, b"other"),
        (4, b"later"),
    ]
    assert records_of(log)[1].timestamp == NOW_MS - 777
    assert records_of(log)[2].timestamp == NOW_MS - 776
    for wall_ms, is_there in ((NOW_MS + 999, True), (NOW_MS + 1_000, False)):
        append(log, [(b"later", b"z" * 380)])
        commit(log)
        assert compact(log, wall_ms)
        assert (b"gone" in {one.key for one in records_of(log)}) is is_there


def test_the_last_batch_of_a_producer_stays_without_records_and_identifies_duplicates() -> None:
    files = MemoryFiles()
    log = new_log(files, CONFIG)
    for number in range(3):
        append(log, [(b"k", b"v%d" % number)], producer=(7, 0, number))
    for _ in range(6):
        append(log, [(b"k", b"x" * 60)])
    commit(log)
    assert compact(log)
    headers = [header for segment in log.segments for _, header in segment.headers(0)]
    of_producer = [header for header in headers if header.producer_id == 7]
    assert [(header.base_offset, header.record_count, header.base_sequence) for header in of_producer] == [(2, 0, 2)]
    crash(files)
    for path in [path for path in files.contents if path.endswith(".snapshot")]:
        del files.contents[path]
    loaded = manager(files, CONFIG)[0].all_logs()[0]
    repeated = encode_batch([NewRecord(NOW_MS, b"k", b"v2")], producer_id=7, producer_epoch=0, base_sequence=2)
    result = loaded.append_as_leader(repeated, 3, NOW_MS)
    assert result.duplicate and result.base_offset == 2


def test_transactional_records_stay_and_so_do_the_tombstones_above_them() -> None:
    log = new_log(MemoryFiles(), CONFIG)
    append(log, [(b"k", b"in a transaction")], producer=(7, 0, 0), transactional=True)
    marker = bytearray(encode_batch([NewRecord(NOW_MS, b"\0\0\0\1", b"\0\0\0\0\0\0")], producer_id=7, producer_epoch=0))
    set_timestamp(marker, len(marker), 0x30, NOW_MS)
    stamp(marker, 1, 3)
    log.append_as_follower(bytes(marker), NOW_MS)
    append(log, [(b"k", None)])
    for _ in range(2):
        append(log, [(b"x", b"x" * 350)])
        commit(log)
        compact(log)
    append(log, [(b"x", b"x" * 350)])
    commit(log)
    assert compact(log, NOW_MS + 1_000_000)
    headers = [header for segment in log.segments for _, header in segment.headers(0)]
    assert [(header.base_offset, header.attributes & 0x30) for header in headers[:2]] == [(0, 0x10), (1, 0x30)]
    assert (2, b"k", None) in [(one.offset, one.key, one.value) for one in records_of(log)]


def test_records_from_an_open_transaction_on_are_not_cleaned() -> None:
    log = new_log(MemoryFiles(), CONFIG)
    append(log, [(b"k", b"x" * 350)])
    append(log, [(b"k", b"x" * 350)], producer=(7, 0, 0), transactional=True)
    for _ in range(3):
        append(log, [(b"k", b"x" * 350)])
    commit(log)
    found = log.compaction.find_cleanable(NOW_MS)
    assert found is not None and found.ends == (1,)


@pytest.mark.parametrize(
    ("changes", "age_ms", "is_due"),
    [
        ({"min_cleanable_dirty_ratio": 0.99}, 0, True),
        ({"min_cleanable_dirty_ratio": 1.0}, 0, False),
        ({"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 5_000}, 5_100, True),
        ({"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 5_000}, 4_000, False),
        ({"min_compaction_lag_ms": 5_000}, 6_000, True),
        ({"min_compaction_lag_ms": 5_000}, 4_000, None),
    ],
)
def test_a_log_is_due_by_dirty_ratio_or_compaction_lag(
    changes: dict[str, float], age_ms: int, is_due: bool | None
) -> None:
    log = filled(MemoryFiles(), replace(CONFIG, **changes))  # type: ignore[arg-type]
    found = log.compaction.find_cleanable(NOW_MS + age_ms)
    assert (None if found is None else found.is_due(log.config)) is is_due


def test_nothing_above_the_high_watermark_or_the_durable_end_is_cleaned() -> None:
    log = filled(MemoryFiles())
    log.update_high_watermark(0)
    log.local.high_watermark = 7
    found = log.compaction.find_cleanable(NOW_MS)
    assert found is not None and found.ends[-1] <= 7
    log.update_high_watermark(log.log_end_offset)
    log.local.durability.recovery_point = 9
    found = log.compaction.find_cleanable(NOW_MS)
    assert found is not None and found.ends[-1] <= 9


def test_a_truncation_during_a_cleaning_discards_its_result() -> None:
    files = MemoryFiles()
    log = filled(files)
    before = records_of(log)
    found = log.compaction.find_cleanable(NOW_MS)
    assert found is not None
    task = log.compaction.begin(found, NOW_MS, BUFFER_BYTES, 0.9)
    while task.cleaned is None:
        task.run(1)
        assert not task.is_finished
    log.truncate_to(5)
    assert log.compaction.replace_segments(task, task.cleaned) == []
    task.run(1 << 20)
    assert task.is_finished
    log.compaction.finish(task)
    assert log.compaction.first_dirty_offset is None and records_of(log) == before[:5]
    assert not [path for path in files.contents if path.endswith((".cleaned", ".swap"))]


def test_an_idle_log_begins_a_new_segment_after_segment_ms() -> None:
    files = MemoryFiles()
    files.now_ms = NOW_MS
    log = new_log(files, LogConfig(cleanup_policy=frozenset({"compact"}), segment_ms=1_000))
    assert not log.compaction.roll_idle_segment(NOW_MS + 5_000)
    append(log, [(b"k", b"v")])
    assert not log.compaction.roll_idle_segment(NOW_MS + 1_000)
    assert log.compaction.roll_idle_segment(NOW_MS + 1_001) and log.segment_count == 2
    assert not log.compaction.roll_idle_segment(NOW_MS + 9_000)
    append(log, [(b"k", b"w")])
    assert [one.offset for one in records_of(log)] == [0, 1]


def test_a_compacted_batch_keeps_its_bounds_and_other_fields() -> None:
    log = new_log(MemoryFiles(), CONFIG)
    append(log, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None)], codec=Codec.ZSTD)
    before = next(log.segments[0].headers(0)).header
    append(log, [(b"b", b"y" * 380)])
    append(log, [(b"c", b"y" * 380)])
    commit(log)
    assert compact(log)
    header = next(log.segments[0].headers(0)).header
    assert header.last_offset == before.last_offset and header.base_offset == before.base_offset
    assert header._replace(crc=0, length=0, record_count=0, max_timestamp=0) == before._replace(
        crc=0, length=0, record_count=0, max_timestamp=0
    )
    data = log.read(0, 1 << 20, log.log_end_offset)
    assert [(one.offset, one.timestamp) for one in decode_batch(data[: header.size])] == [(2, NOW_MS + 2)]
    assert header.max_timestamp == NOW_MS + 2 and header.record_count == 1


def test_a_flush_overtaken_by_a_swap_is_due_again() -> None:
    log = filled(MemoryFiles())
    append(log, [(b"key 0", b"x" * 350)])
    append(log, [(b"key 0", b"x" * 350)])
    flush = log.begin_flush()
    assert flush is not None
    assert compact(log)
    flush.run()
    log.finish_flush(flush)
    assert log.flush_needed()


@pytest.mark.parametrize("bit", [0, 42, 63], ids=["negative", "far above", "below the previous batch"])
def test_compaction_stops_at_a_batch_whose_base_offset_is_damaged(bit: int) -> None:
    """The checksum does not cover the base offset; a high offset would be the last of every key in the batch."""
    files = MemoryFiles()
    log = filled(files)
    sealed = log.segments[1]
    content = files.contents[sealed.log_path]
    position, header = list(iterate_headers(bytes(content)))[-1]
    content[position : position + 8] = ((header.base_offset | 1) ^ (1 << 63 - bit)).to_bytes(8, "big")
    before = {path: bytes(data) for path, data in files.contents.items()}
    with pytest.raises(CorruptMessageError, match="offsets"):
        compact(log)
    assert {path: files.contents[path] for path in before} == before


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_largest_delete_retention_keeps_tombstones_and_compacts(codec: Codec) -> None:
    log = new_log(MemoryFiles(), replace(CONFIG, delete_retention_ms=MAX_INT64))
    append(log, [(b"gone", b"value"), (b"kept", b"value")])
    append(log, [(b"gone", None), (b"other", b"x" * 200)], codec=codec, timestamp=NOW_MS - 777)
    for _ in range(2):
        append(log, [(b"later", b"y" * 380)])
        commit(log)
        assert compact(log)
        assert [(one.offset, one.key, one.timestamp) for one in records_of(log)][:3] == [
            (1, b"kept", NOW_MS + 1),
            (2, b"gone", NOW_MS - 777),
            (3, b"other", NOW_MS - 776),
        ]
