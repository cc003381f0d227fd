"""Loading a log and recovery after every kind of damage; interrupted work of the cleaner."""

import random

import pytest

from paceline.log.directory_names import directory_name
from paceline.log.partition_log import PartitionLog
from paceline.log.producer_state import ProducerStateManager
from paceline.log.record_batch import parse_header
from tests.unit.log.helpers import (
    DIRECTORY,
    NOW_MS,
    ROOT,
    SMALL,
    TP,
    batch,
    crash,
    filled_manager,
    last_segment,
    manager,
    new_log,
    records_of,
)
from tests.unit.log.memory_files import MemoryFiles


def damaged_tail(files: MemoryFiles, kind: str, amount: int) -> None:
    data = last_segment(files)
    amount = min(amount, len(data))
    if kind == "cut":
        del data[-amount:]
    elif kind == "zeroed":
        data[-amount:] = bytes(amount)
    elif kind == "appended zeros":
        data.extend(bytes(amount))
    else:
        data[-amount] ^= 0x10


@pytest.mark.parametrize("kind", ["cut", "zeroed", "appended zeros", "flipped"])
@pytest.mark.parametrize("amount", [3, 10, 60, 90, 100, 170, 5000])
def test_recovery_cuts_after_the_last_valid_batch(kind: str, amount: int) -> None:
    files = MemoryFiles()
    _, records = filled_manager(files)
    damaged_tail(files, kind, amount)
    crash(files)
    found, report = manager(files, SMALL)
    log = found.get(TP)
    assert log is not None
    kept = records_of(log)
    assert kept == records[: len(kept)]
    assert log.log_end_offset == len(kept)
    assert len(kept) == 40 if kind == "appended zeros" else len(kept) in range(28, 40)
    if kind != "cut":
        assert report.truncated_bytes > 0
    info = log.append_as_leader(batch(b"new"), 7, NOW_MS)
    assert info.base_offset == len(kept)
    assert records_of(log)[-1].value == b"new"


def test_recovery_removes_the_segments_after_the_one_it_cut() -> None:
    files = MemoryFiles()
    _, records = filled_manager(files)
    names = sorted(name for name in files.contents if name.endswith(".log"))
    files.contents[names[1]][70] ^= 1
    crash(files)
    found, _ = manager(files, SMALL)
    log = found.get(TP)
    assert log is not None
    assert records_of(log) == records[: log.log_end_offset]
    assert [segment.base_offset for segment in log.segments] == [0, int(names[1][-24:-4])]
    assert sorted(name for name in files.contents if name.endswith(".log")) == names[:2]
    assert log.latest_epoch == 0


def test_recovery_starts_at_the_segment_of_the_recovery_point() -> None:
    files = MemoryFiles()
    found, _ = filled_manager(files)
    log = found.get(TP)
    assert log is not None
    log.flush()
    found.checkpoint_recovery_points()
    log.append_as_leader(batch(b"later"), 1, NOW_MS)
    crash(files)
    files.operations.clear()
    manager(files, SMALL)
    rebuilt = {path for operation, path in files.operations if operation == "truncate" and path.endswith(".index")}
    assert len(rebuilt) == 1


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "zeros", "noise", "partial entry", "too long"])
def test_a_damaged_index_is_rebuilt_or_ignored(damage: str, suffix: str, clean: bool) -> None:
    files = MemoryFiles()
    found, records = filled_manager(files)
    if clean:
        found.shutdown()
    crash(files)
    rng = random.Random(damage)
    for name in [name for name in files.contents if name.endswith(suffix)]:
        size = len(files.contents[name])
        if damage == "missing":
            del files.contents[name]
        elif damage == "partial entry":
            files.contents[name] = files.contents[name][:-1] if size else bytearray(b"\x00")
        else:
            noise = {"empty": b"", "zeros": bytes(size + 24), "noise": rng.randbytes(size or 24)}
            files.contents[name] = bytearray(noise.get(damage, bytes(files.contents[name]) + bytes(240)))
    again, _ = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None
    assert log.log_end_offset == 40
    assert records_of(log) == records
    for record in records:
        assert log.read(record.offset, 1, 40)
        answer = log.offset_for_timestamp(record.timestamp, 40)
        assert answer is not None and answer[1] >= record.timestamp
    log.truncate_to(21)
    assert records_of(log) == records[:20]


@pytest.mark.parametrize("start", [1, 2, 3])
def test_an_index_rebuilt_below_the_log_start_keeps_the_epochs_of_later_segments(start: int) -> None:
    files = MemoryFiles()
    found, _ = filled_manager(files)
    log = found.get(TP)
    assert log is not None and len(log.segments) > 2
    log.update_high_watermark(40)
    log.increment_log_start_offset(start)
    entries = log.epochs.entries
    assert [entry.epoch for entry in entries] == [0, 1] and log.segments[1].base_offset < entries[1].start_offset
    found.shutdown()
    del files.contents[f"{DIRECTORY}/00000000000000000000.index"]
    again = manager(files, SMALL)[0].get(TP)
    assert again is not None and again.log_start_offset == start
    assert again.epochs.entries == entries


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "content", [b"", b"0\n5\n", b"9\n0\n", b"0\n1\nx\n", b"\xff\x00\xfe", b"0\n1\norders-eu.v1 0 -7\n"]
)
@pytest.mark.parametrize(
    "name",
    [
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        f"{directory_name(TP)}/leader-epoch-checkpoint",
    ],
)
def test_a_damaged_checkpoint_prevents_no_start_and_does_not_raise_the_high_watermark(
    name: str, content: bytes, clean: bool
) -> None:
    files = MemoryFiles()
    found, records = filled_manager(files)
    log = found.get(TP)
    assert log is not None
    log.update_high_watermark(30)
    log.flush()
    found.checkpoint_high_watermarks()
    found.checkpoint_recovery_points()
    if clean:
        found.shutdown()
    crash(files)
    files.contents[f"{ROOT}/{name}"] = bytearray(content)
    again, report = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None
    assert records_of(log) == records
    assert log.high_watermark == (0 if name.startswith("replication") else 30)
    if content and b"-7" not in content:
        assert any(path.endswith(name) for path in report.directories[0].damaged)
        assert log.epochs.entries == [(0, 0), (1, 20)]


def test_all_records_are_loaded_with_every_derived_file_damaged() -> None:
    files = MemoryFiles()
    found, records = filled_manager(files)
    found.shutdown()
    for name in list(files.contents):
        if not name.endswith((".log", ".lock", ".kafka_cleanshutdown")):
            files.contents[name] = bytearray(b"garbage")
    again, _ = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None
    assert records_of(log) == records
    assert log.topic_id is None


def test_a_high_watermark_above_the_recovered_end_is_limited_to_it() -> None:
    files = MemoryFiles()
    found, _ = filled_manager(files)
    log = found.get(TP)
    assert log is not None
    log.update_high_watermark(40)
    found.checkpoint_high_watermarks()
    del last_segment(files)[:]
    crash(files)
    again, _ = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None
    assert log.log_end_offset < 40
    assert log.high_watermark == log.log_end_offset


def test_a_log_that_ends_below_its_log_start_is_loaded_empty_at_its_log_start() -> None:
    files = MemoryFiles()
    found, _ = filled_manager(files)
    log = found.get(TP)
    assert log is not None
    log.increment_log_start_offset(25)
    found.checkpoint_log_start_offsets()
    crash(files)
    for name in [name for name in files.contents if name.endswith(".log")]:
        if int(name[-24:-4]) > 0:
            del files.contents[name]
    again, _ = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (25, 25, 0)


def test_outdated_snapshots_are_not_used_after_a_crash() -> None:
    files = MemoryFiles()
    filled_manager(files)
    for name in [name for name in files.contents if name.endswith(".snapshot")]:
        files.contents[name] = bytearray(b"\x00" * 10)
    files.contents[f"{DIRECTORY}/00000000000000000999.snapshot"] = bytearray(10)
    crash(files)
    again, _ = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None
    entry = log.producers.get(9)
    assert entry is not None and entry.last_sequence == 39
    assert f"{DIRECTORY}/00000000000000000999.snapshot" not in files.contents


def log_with_deleted_batches(files: MemoryFiles, start: int) -> PartitionLog:
    """A log of one record per batch that starts at ``start``, durably: producer 7 wrote 0 to 9, producer 8 two more."""
    found, _ = manager(files, SMALL)
    log = found.get_or_create(TP, None, True)
    for i in range(12):
        log.append_as_leader(batch(b"%d" % i, producer=(7, 0, i) if i < 10 else (8, 0, i - 10)), 0, NOW_MS)
    log.flush()
    found.checkpoint_recovery_points()
    log.increment_log_start_offset(start)
    found.checkpoint_log_start_offsets()
    log.remove_segments_below_start()
    return log


@pytest.mark.parametrize("start", [10, 11, 12])
def test_the_sequence_of_a_deleted_batch_is_known_after_a_crash(start: int) -> None:
    files = MemoryFiles()
    log = log_with_deleted_batches(files, start)
    assert [segment.base_offset for segment in log.segments] == log.snapshots.offsets() == [8]
    before = log.producers.encode()
    crash(files)
    again = manager(files, SMALL)[0].get(TP)
    assert again is not None and again.log_start_offset == start
    assert again.producers.encode() == before
    again.append_as_leader(batch(b"next", producer=(7, 0, 10)), 0, NOW_MS)


def test_a_snapshot_below_the_first_segment_is_ignored() -> None:
    files = MemoryFiles()
    log = log_with_deleted_batches(files, 12)
    for segment in log.segments:
        del files.contents[segment.log_path]
    stale = ProducerStateManager()
    stale.update(parse_header(batch(b"old", producer=(7, 0, 4), base_offset=4)))
    files.contents[f"{DIRECTORY}/00000000000000000005.snapshot"] = bytearray(stale.encode())
    crash(files)
    again = manager(files, SMALL)[0].get(TP)
    assert again is not None and again.log_start_offset == again.log_end_offset == 12
    assert again.producers.entries == []
    again.append_as_leader(batch(b"next", producer=(7, 0, 10)), 0, NOW_MS)


def test_epochs_are_corrected_from_the_batches_when_the_file_has_truncated_ones() -> None:
    files = MemoryFiles()
    log = new_log(files, SMALL)
    for i in range(6):
        log.append_as_follower(batch(b"x", base_offset=i, leader_epoch=3))
    log.assign_leader_epoch(5, 4)
    log.epochs.flush()
    crash(files)
    again, _ = manager(files, SMALL)
    found = again.get(TP)
    assert found is not None
    assert found.epochs.entries == [(3, 0)]


def test_interrupted_cleaning_is_finished_or_undone() -> None:
    files = MemoryFiles()
    found, records = filled_manager(files)
    found.shutdown()
    first = f"{DIRECTORY}/00000000000000000000.log"
    files.contents[first + ".swap"] = bytearray(files.contents[first])
    files.contents[first.replace(".log", ".index") + ".swap"] = bytearray(b"old")
    files.contents[f"{DIRECTORY}/00000000000000000020.log.cleaned"] = bytearray(b"half")
    files.contents[f"{DIRECTORY}/00000000000000000030.log.swap"] = bytearray(b"behind the cleaned one")
    files.contents[f"{DIRECTORY}/00000000000000000007.log.deleted"] = bytearray(b"gone")
    again, _ = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None
    assert records_of(log) == records
    assert not [name for name in files.contents if name.endswith((".swap", ".cleaned", ".deleted"))]


def replace_epoch_file(files: MemoryFiles, content: bytes | None) -> None:
    """Write other content to the only epoch file, or remove it."""
    (path,) = [name for name in files.contents if name.endswith("leader-epoch-checkpoint")]
    if content is None:
        del files.contents[path]
    else:
        files.contents[path] = bytearray(content)


@pytest.mark.parametrize("damage", [b"", None])
def test_epochs_are_rebuilt_when_their_file_is_empty_or_missing(damage: bytes | None) -> None:
    """Recovery alone reads only the batches after the recovery point."""
    files = MemoryFiles()
    found, _ = filled_manager(files)
    log = found.get(TP)
    assert log is not None
    log.flush()
    found.checkpoint_recovery_points()
    log.append_as_leader(batch(b"later"), 1, NOW_MS)
    known = log.epochs.entries
    crash(files)
    replace_epoch_file(files, damage)
    again, _ = manager(files, SMALL)
    loaded = again.get(TP)
    assert loaded is not None and loaded.epochs.entries == known and known[0].start_offset == 0


@pytest.mark.parametrize(
    ("damage", "is_flushed"),
    [
        (b"not an epoch file", True),
        (b"not an epoch file", False),
        (b"", True),
        (b"", False),
        (None, True),
        (None, False),
        (b"0\n1\n3 0\n", False),
    ],
    ids=[
        "damaged",
        "damaged, recovered",
        "empty",
        "empty, recovered",
        "missing",
        "missing, recovered",
        "latest missing",
    ],
)
def test_rebuilt_epochs_begin_where_compaction_may_have_removed_their_first_batches(
    damage: bytes | None, is_flushed: bool
) -> None:
    """A follower with other records at offset 0 in epoch 0 must be truncated to 0, not to the first batch left."""
    files = MemoryFiles()
    found, _ = manager(files, SMALL)
    log = found.get_or_create(TP, "A" * 22, True)
    for offset, epoch in ((2, 3), (3, 3), (7, 6)):
        log.append_as_follower(batch(b"x", base_offset=offset, leader_epoch=epoch))
    assert log.epochs.entries == [(3, 0), (6, 4)]
    log.flush()
    if is_flushed:
        found.checkpoint_recovery_points()
    crash(files)
    replace_epoch_file(files, damage)
    again, _ = manager(files, SMALL)
    loaded = again.get(TP)
    assert loaded is not None and loaded.epochs.entries == [(3, 0), (6, 4)]
    assert loaded.end_offset_for_epoch(0) == (0, 0)
