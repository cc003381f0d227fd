"""Loading, recovery after every kind of damage, checkpoints, deletion, offline directories."""

import random

import pytest

from paceline.log.checkpoint import HIGH_WATERMARK_CHECKPOINT, MetaProperties, read_offsets
from paceline.log.directory_names import parse_directory_name
from paceline.log.files import join
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.producer_state import ProducerStateManager
from paceline.log.record_batch import Record, parse_header
from paceline.model.errors import (
    InconsistentTopicIdError,
    KafkaStorageError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from tests.unit.log.helpers import NOW_MS, ROOT, TP, batch, crash, manager, new_log, records_of
from tests.unit.log.memory_files import MemoryFiles

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100)
DIRECTORY = f"{ROOT}/{TP}"


def filled(files: MemoryFiles, batches: int = 20) -> tuple[LogManager, list[Record]]:
    """A manager with one log of batches of two records, epochs 0 and 1; nothing flushed."""
    found, _ = manager(files, SMALL)
    log = found.get_or_create(TP, "A" * 22, True)
    for i in range(batches):
        log.append_as_leader(batch(b"a%d" % i, b"b%d" % i, producer=(9, 0, 2 * i)), i * 2 // batches, NOW_MS)
    return found, records_of(log)


def last_segment(files: MemoryFiles) -> bytearray:
    name = max(name for name in files.contents if name.startswith(DIRECTORY) and name.endswith(".log"))
    return files.contents[name]


# -- clean and unclean stops ---------------------------------------------------------------------------------------


def test_a_clean_stop_and_start_reads_no_batch_and_keeps_everything() -> None:
    files = MemoryFiles()
    found, records = filled(files)
    log = found.get(TP)
    assert log is not None
    log.update_high_watermark(31)
    log.increment_log_start_offset(3)
    found.shutdown()
    assert f"{ROOT}/.kafka_cleanshutdown" in files.contents
    files.operations.clear()
    again, report = manager(files, SMALL)
    assert report.clean_shutdown and report.recovered == [] and report.truncated_bytes == 0
    assert f"{ROOT}/.kafka_cleanshutdown" not in files.contents
    log = again.get(TP)
    assert log is not None
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.recovery_point) == (3, 31, 40, 40)
    assert log.topic_id == "A" * 22
    assert log.epochs.entries == [(0, 3), (1, 20)]
    entry = log.producers.get(9)
    assert entry is not None and entry.last_sequence == 39
    assert records_of(log) == records[3:]


def test_the_clean_shutdown_marker_is_written_last_and_removed_first() -> None:
    files = MemoryFiles()
    found, _ = filled(files)
    files.operations.clear()
    found.shutdown()
    changes = [path for operation, path in files.operations if operation in {"append", "create", "rename", "truncate"}]
    assert changes[-1] == f"{ROOT}/.kafka_cleanshutdown"
    assert files.synced[-1] == f"{ROOT}/.kafka_cleanshutdown"
    files.operations.clear()
    manager(files, SMALL)
    removed = files.operations.index(("remove", f"{ROOT}/.kafka_cleanshutdown"))
    assert not any(operation == "read_at" for operation, _ in files.operations[:removed])


def test_a_crash_of_the_process_loses_nothing_and_is_no_unclean_restart() -> None:
    files = MemoryFiles()
    _, records = filled(files)
    crash(files)
    found, report = manager(files, SMALL)
    assert not report.clean_shutdown and report.recovered == [TP] and report.truncated_bytes == 0
    assert not report.is_unclean_restart("boot")
    log = found.get(TP)
    assert log is not None
    assert records_of(log) == records
    assert log.epochs.entries == [(0, 0), (1, 20)]
    entry = log.producers.get(9)
    assert entry is not None and entry.last_sequence == 39
    assert log.append_as_leader(batch(b"a19", b"b19", producer=(9, 0, 38)), 2, NOW_MS).duplicate


def test_a_restart_of_the_machine_without_the_marker_is_an_unclean_restart() -> None:
    files = MemoryFiles()
    filled(files)
    crash(files)
    _, report = manager(files, SMALL, boot_id="another boot")
    assert report.directories[0].stored_boot_id == "boot"
    assert report.is_unclean_restart("another boot")


@pytest.mark.parametrize("clean_stop", [False, True])
def test_an_unclean_restart_is_reported_until_a_controller_acknowledges_it(clean_stop: bool) -> None:
    files = MemoryFiles()
    filled(files)
    crash(files)
    found, _ = manager(files, SMALL, boot_id="another boot")
    if clean_stop:
        found.shutdown()
    crash(files)
    found, report = manager(files, SMALL, boot_id="another boot")
    assert report.clean_shutdown is clean_stop and report.is_unclean_restart("another boot")
    found.unclean_restart_noted()
    crash(files)
    _, report = manager(files, SMALL, boot_id="another boot")
    assert not report.is_unclean_restart("another boot")


def test_a_new_directory_is_no_unclean_restart() -> None:
    files = MemoryFiles()
    _, report = manager(files, SMALL)
    assert report.directories[0].is_new and not report.is_unclean_restart("boot")


def test_logs_in_a_directory_without_a_boot_id_are_an_unclean_restart() -> None:
    files = MemoryFiles()
    filled(files)
    del files.contents[f"{ROOT}/.kernel_boot_id"]
    crash(files)
    _, report = manager(files, SMALL)
    assert not report.directories[0].is_new and report.is_unclean_restart("boot")


def test_whole_batches_that_had_to_be_cut_are_an_unclean_restart() -> None:
    files = MemoryFiles()
    filled(files)
    last_segment(files)[-1] ^= 1
    crash(files)
    _, report = manager(files, SMALL)
    assert report.directories[0].lost_batches == [TP] and report.is_unclean_restart("boot")
    crash(files)
    _, report = manager(files, SMALL)
    assert report.truncated_bytes == 0 and report.is_unclean_restart("boot"), "no controller has acknowledged it yet"


@pytest.mark.parametrize("missing", [1, 50, 85])
def test_an_append_interrupted_by_the_crash_is_no_unclean_restart(missing: int) -> None:
    files = MemoryFiles()
    filled(files)
    del last_segment(files)[-missing:]
    crash(files)
    _, report = manager(files, SMALL)
    assert report.truncated_bytes > 0 and not report.is_unclean_restart("boot")


# -- damage --------------------------------------------------------------------------------------------------------


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
    _, records = filled(files)
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
    _, records = filled(files)
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
    found, _ = filled(files)
    log = found.get(TP)
    assert log is not None
    log.flush()
    found.checkpoint_recovery_points()
    log.append_as_leader(batch(b"later"), 1, NOW_MS)
    crash(files)
    files.operations.clear()
    manager(files, SMALL)
    read = {path for operation, path in files.operations if operation == "read_at" and path.endswith(".log")}
    assert len(read) == 1


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "zeros", "noise", "partial entry", "too long"])
def test_a_damaged_index_is_rebuilt_or_ignored(damage: str, suffix: str, clean: bool) -> None:
    files = MemoryFiles()
    found, records = filled(files)
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
    found, _ = filled(files)
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
        f"{TP}/leader-epoch-checkpoint",
    ],
)
def test_a_damaged_checkpoint_prevents_no_start_and_does_not_raise_the_high_watermark(
    name: str, content: bytes, clean: bool
) -> None:
    files = MemoryFiles()
    found, records = filled(files)
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
    found, records = filled(files)
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
    found, _ = filled(files)
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
    found, _ = filled(files)
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
    filled(files)
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


# -- interrupted work of the cleaner -------------------------------------------------------------------------------


def test_interrupted_cleaning_is_finished_or_undone() -> None:
    files = MemoryFiles()
    found, records = filled(files)
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


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("t-0", TopicPartition("t", 0)),
        ("a-b-12", TopicPartition("a-b", 12)),
        ("a--1", TopicPartition("a-", 1)),
        ("t-2147483647", TopicPartition("t", 2147483647)),
        ("t-2147483648", None),
        ("t-01", None),
        ("t-", None),
        ("-0", None),
        ("t", None),
        ("..-0", None),
        ("a b-0", None),
        ("t-0.0123456789abcdef0123456789abcdef-delete", None),
        ("t-\u0660", None),
        ("", None),
    ],
)
def test_directory_names(name: str, expected: TopicPartition | None) -> None:
    assert parse_directory_name(name) == expected


def test_directories_with_other_names_are_reported_and_not_changed() -> None:
    files = MemoryFiles()
    found, records = filled(files)
    found.shutdown()
    foreign = ("lost+found", "t-99999999999", "x y-0", f"t-1.{'0' * 32}-future")
    for name in foreign:
        files.make_directory(f"{ROOT}/{name}")
    files.links.update({f"{ROOT}/link-0", f"{DIRECTORY}/00000000000000000400.log"})
    files.contents[f"{ROOT}/some-0"] = bytearray(b"a file, not a log")
    strange = [f"{DIRECTORY}/{'9' * 20}.log", f"{DIRECTORY}/-0000000000000000001.log", f"{DIRECTORY}/notes.txt"]
    for path in strange:
        files.contents[path] = bytearray(b"planted")
    files.make_directory(f"{DIRECTORY}/00000000000000000500.log")
    before = set(files.contents)
    again, report = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None and [one.topic_partition for one in again.all_logs()] == [TP]
    assert records_of(log) == records
    assert sorted(report.quarantined) == sorted(
        [
            *(
                f"{ROOT}/{name}"
                for name in ("lost+found", "t-99999999999", "x y-0", f"t-1.{'0' * 32}-future", "link-0")
            ),
            *strange,
            f"{DIRECTORY}/00000000000000000400.log",
            f"{DIRECTORY}/00000000000000000500.log",
        ]
    )
    assert before - {f"{ROOT}/.kafka_cleanshutdown"} <= set(files.contents)
    assert bytes(files.contents[strange[0]]) == b"planted"


# -- creating and deleting -----------------------------------------------------------------------------------------


def test_a_new_log_is_an_empty_directory_until_the_first_append() -> None:
    files = MemoryFiles()
    found, _ = manager(files)
    files.operations.clear()
    log = found.get_or_create(TP, "A" * 22, True)
    log.assign_leader_epoch(0, 0)
    assert files.operations == [("make_directory", DIRECTORY)]
    assert found.get_or_create(TP, "A" * 22, False) is log
    with pytest.raises(InconsistentTopicIdError):
        found.get_or_create(TP, "B" * 22, False)


def test_new_logs_are_created_in_the_directory_with_the_fewest_logs() -> None:
    files = MemoryFiles()
    found, _ = manager(files, dirs=["/d1", "/d2", "/d3/"])
    for partition in range(7):
        found.get_or_create(TopicPartition("t", partition), None, True)
    counts = [sum(log.directory.path == path for log in found.all_logs()) for path in ("/d1", "/d2", "/d3")]
    assert counts == [3, 2, 2]


def test_a_deleted_log_is_renamed_then_removed_and_a_new_one_starts_empty() -> None:
    files = MemoryFiles()
    found, _ = filled(files)
    old = found.get(TP)
    assert old is not None
    old.update_high_watermark(40)
    old.flush()
    found.checkpoint_high_watermarks()
    found.checkpoint_recovery_points()
    found.delete(TP)
    assert found.get(TP) is None and DIRECTORY not in files.directories
    with pytest.raises(UnknownTopicOrPartitionError):
        old.read(0, 100, 40)
    new = found.get_or_create(TP, "B" * 22, True)
    for i in range(3):
        new.append_as_leader(batch(b"new%d" % i), 0, NOW_MS)
    crash(files)
    again, report = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None and report.quarantined == []
    assert [record.value for record in records_of(log)] == [b"new0", b"new1", b"new2"]
    assert (log.high_watermark, log.topic_id) == (0, "B" * 22)
    assert again.purge_deleted() == 1
    assert [name for name in files.directories if name.endswith("-delete")] == []
    with pytest.raises(UnknownTopicOrPartitionError):
        again.delete(TopicPartition("none", 0))


def test_the_name_of_a_deleted_log_fits_a_directory_entry() -> None:
    files = MemoryFiles()
    found, _ = manager(files)
    tp = TopicPartition("t" * 249, 123)
    found.get_or_create(tp, None, True)
    found.delete(tp)
    (name,) = [path.rpartition("/")[2] for path in files.directories if path.endswith("-delete")]
    assert len(name) == 255 and name.startswith("ttt") and "-123." in name


# -- checkpoints ---------------------------------------------------------------------------------------------------


def test_checkpoints_keep_entries_of_logs_that_have_no_role_yet() -> None:
    files = MemoryFiles()
    found, _ = manager(files)
    for partition in range(3):
        log = found.get_or_create(TopicPartition("t", partition), None, True)
        log.append_as_leader(batch(b"a", b"b", b"c"), 0, NOW_MS)
        log.update_high_watermark(partition + 1)
    found.checkpoint_high_watermarks()
    crash(files)
    again, _ = manager(files)
    log = again.get(TopicPartition("t", 0))
    assert log is not None
    log.update_high_watermark(3)
    again.checkpoint_high_watermarks()
    assert read_offsets(files, join(ROOT, HIGH_WATERMARK_CHECKPOINT)) == {
        TopicPartition("t", p): hw for p, hw in enumerate((3, 2, 3))
    }


def test_only_log_starts_above_the_first_segment_are_in_the_checkpoint() -> None:
    files = MemoryFiles()
    found, _ = filled(files)
    found.get_or_create(TopicPartition("other", 0), None, True)
    log = found.get(TP)
    assert log is not None
    log.increment_log_start_offset(7)
    found.checkpoint_log_start_offsets()
    assert bytes(files.contents[f"{ROOT}/log-start-offset-checkpoint"]) == b"0\n1\norders-eu.v1 0 7\n"


def test_a_topic_id_is_synced_again_after_a_crash() -> None:
    """The process that wrote it may have died before it was durable."""
    files = MemoryFiles()
    filled(files)
    crash(files)
    again, _ = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None
    log.append_as_leader(batch(b"later"), 1, NOW_MS)
    files.operations.clear()
    again.shutdown()
    assert any(op == "sync" and path.endswith("partition.metadata") for op, path in files.operations)


def test_a_topic_id_adopted_by_a_log_is_durable() -> None:
    """The records had a leader meanwhile; without the topic id they would be set aside."""
    files = MemoryFiles()
    filled(files)
    crash(files)
    files.contents.pop(next((path for path in files.contents if path.endswith("partition.metadata")), ""), None)
    found, _ = manager(files, SMALL)
    log = found.get_or_create(TP, "B" * 22, False)
    assert log.size_bytes
    crash(files)
    again = manager(files, SMALL)[0].get(TP)
    assert again is not None and again.topic_id == "B" * 22


def test_the_topic_id_of_a_log_that_was_stopped_empty_is_synced_with_its_first_records() -> None:
    files = MemoryFiles()
    logs, _ = manager(files, SMALL)
    logs.get_or_create(TP, "A" * 22, True)
    logs.shutdown()
    again, _ = manager(files, SMALL)
    log = again.get(TP)
    assert log is not None and log.topic_id == "A" * 22
    log.append_as_leader(batch(b"first"), 1, NOW_MS)
    files.operations.clear()
    log.flush()
    assert any(op == "sync" and path.endswith("partition.metadata") for op, path in files.operations)


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
    found, _ = filled(files)
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


def test_meta_properties_are_written_to_every_directory() -> None:
    files = MemoryFiles()
    found, _ = manager(files, dirs=["/d1", "/d2"])
    assert found.read_meta_properties() == {"/d1": None, "/d2": None}
    found.write_meta_properties(7, "PPb5wP8aRkWBzrLcCoLJCg", "Sat Nov 21 10:49:20 UTC 2026")
    assert found.read_meta_properties() == dict.fromkeys(["/d1", "/d2"], MetaProperties(7, "PPb5wP8aRkWBzrLcCoLJCg"))


# -- directories that fail -----------------------------------------------------------------------------------------


def test_a_directory_in_use_is_refused() -> None:
    files = MemoryFiles()
    manager(files)
    with pytest.raises(KafkaStorageError):
        manager(files)


def test_a_partition_in_two_directories_is_refused() -> None:
    files = MemoryFiles()
    files.make_directory(f"/d1/{TP}")
    files.make_directory(f"/d2/{TP}")
    with pytest.raises(KafkaStorageError, match=r"is in /d1 and in /d2: .*[.] Remove its log from"):
        manager(files, dirs=["/d1", "/d2"])


def test_a_directory_that_cannot_be_loaded_goes_offline_and_gets_no_marker() -> None:
    files = MemoryFiles()
    first, _ = manager(files, dirs=["/d1", "/d2"])
    for partition in range(2):
        first.get_or_create(TopicPartition("t", partition), None, True).append_as_leader(batch(b"a"), 0, NOW_MS)
    first.shutdown()
    failures: list[str] = []
    files.fails = lambda operation, path: operation == "list_directory" and path == "/d2"
    found = LogManager(files, ["/d1", "/d2"], LogConfig(), on_dir_failure=lambda path, _error: failures.append(path))
    report = found.load(NOW_MS)
    assert failures == ["/d2"] and report.directories[1].error is not None
    assert found.is_offline("/d2") and found.live_log_dirs == ["/d1"]
    files.fails = lambda _operation, _path: False
    with pytest.raises(KafkaStorageError):
        found.get_or_create(TopicPartition("t", 1), None, is_new=False)
    fresh = found.get_or_create(TopicPartition("fresh", 0), None, is_new=True)
    assert fresh.directory.path == "/d1"
    found.shutdown()
    assert "/d1/.kafka_cleanshutdown" in files.contents
    assert "/d2/.kafka_cleanshutdown" not in files.contents


def test_a_failure_while_running_takes_one_directory_and_its_logs_offline() -> None:
    files = MemoryFiles()
    failures: list[str] = []
    found = LogManager(files, ["/d1", "/d2"], LogConfig(), on_dir_failure=lambda path, _error: failures.append(path))
    found.load(NOW_MS)
    logs = [found.get_or_create(TopicPartition("t", partition), None, True) for partition in range(4)]
    files.fails = lambda operation, path: operation == "append" and path.startswith("/d1/")
    outcomes = []
    for log in logs:
        try:
            log.append_as_leader(batch(b"a"), 0, NOW_MS)
            outcomes.append("done")
        except KafkaStorageError:
            outcomes.append("refused")
    assert outcomes == ["refused", "done", "refused", "done"]
    assert failures == ["/d1"]
    found.checkpoint_high_watermarks()
    assert "/d1/replication-offset-checkpoint" not in files.contents
    found.shutdown()
    assert "/d1/.kafka_cleanshutdown" not in files.contents
    assert "/d2/.kafka_cleanshutdown" in files.contents


def test_a_failed_sync_at_the_stop_leaves_no_marker() -> None:
    files = MemoryFiles()
    found, _ = filled(files)
    files.fails = lambda operation, path: operation == "sync" and path.endswith(".log")
    found.shutdown()
    assert f"{ROOT}/.kafka_cleanshutdown" not in files.contents
    files.fails = lambda _operation, _path: False
    _, report = manager(files, SMALL)
    assert not report.clean_shutdown


# -- sessions of earlier processes ---------------------------------------------------------------------------------


def booted(files: MemoryFiles, boot_id: str = "boot-1", *log_dirs: str) -> LogManager:
    """Load the logs of a process; its locks are given back when `killed` ends it."""
    found = LogManager(files, log_dirs or (ROOT,), SMALL, on_dir_failure=lambda *_: None, boot_id=boot_id)
    found.load(NOW_MS)
    return found


def killed(files: MemoryFiles) -> None:
    files.locked.clear()


def test_sessions_of_earlier_processes_with_the_same_locks_have_ended() -> None:
    files = MemoryFiles()
    booted(files).remember_session(0x11)
    killed(files)
    second = booted(files)
    assert second.sessions_of_dead_processes == {0x11}
    second.remember_session(0x12)
    killed(files)
    assert booted(files).sessions_of_dead_processes == {0x11, 0x12}, (
        "the registration may still be that of the first process"
    )


def test_another_boot_of_the_kernel_proves_no_death() -> None:
    files = MemoryFiles()
    booted(files).remember_session(0x11)
    killed(files)
    assert booted(files, "boot-2").sessions_of_dead_processes == frozenset(), "it may be another machine"
    killed(files)
    assert booted(files, "").sessions_of_dead_processes == frozenset()


def test_a_copied_directory_proves_no_death() -> None:
    files = MemoryFiles()
    booted(files).remember_session(0x11)
    for path in [path for path in files.contents if path.startswith(ROOT)]:
        files.contents["/copy" + path.removeprefix(ROOT)] = files.contents[path]
    files.directories.add("/copy")
    assert booted(files, "boot-1", "/copy").sessions_of_dead_processes == frozenset()


def test_one_of_two_directories_proves_no_death() -> None:
    files = MemoryFiles()
    booted(files, "boot-1", ROOT, "/other").remember_session(0x11)
    files.locked.discard(
        f"{ROOT}/.lock"
    )  # As after a failure of this directory, when the process continues with the other.
    assert booted(files, "boot-1", ROOT).sessions_of_dead_processes == frozenset()
    killed(files)
    assert booted(files, "boot-1", ROOT, "/other").sessions_of_dead_processes == {0x11}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version":2}', b'{"version":1,"sessions":["x"]}'])
def test_a_damaged_list_of_sessions_counts_as_empty(content: bytes) -> None:
    files = MemoryFiles()
    booted(files).remember_session(0x11)
    killed(files)
    files.contents[f"{ROOT}/.zookeeper_sessions"] = bytearray(content)
    assert booted(files).sessions_of_dead_processes == frozenset()
