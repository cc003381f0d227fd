"""Names, checkpoints and topic ids in log directories; creation and deletion of logs; directories that fail."""

import pytest

from paceline.log.checkpoint import HIGH_WATERMARK_CHECKPOINT, MetaProperties, read_offsets
from paceline.log.directory_names import directory_name, parse_directory_name
from paceline.log.files import DiskSpace, join
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.model.errors import InconsistentTopicIdError, KafkaStorageError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from tests.unit.log.helpers import DIRECTORY, NOW_MS, ROOT, SMALL, TP, batch, crash, filled_manager, manager, records_of
from tests.unit.log.memory_files import MemoryFiles

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
    found, records = filled_manager(files)
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
    assert sorted(report.directories[0].quarantined) == sorted(
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
    found, _ = filled_manager(files)
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
    assert log is not None and report.directories[0].quarantined == []
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
    found, _ = filled_manager(files)
    found.get_or_create(TopicPartition("other", 0), None, True)
    log = found.get(TP)
    assert log is not None
    log.increment_log_start_offset(7)
    found.checkpoint_log_start_offsets()
    assert bytes(files.contents[f"{ROOT}/log-start-offset-checkpoint"]) == b"0\n1\norders-eu.v1 0 7\n"


def test_a_topic_id_is_synced_again_after_a_crash() -> None:
    """The process that wrote it may have died before it was durable."""
    files = MemoryFiles()
    filled_manager(files)
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
    filled_manager(files)
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
    files.make_directory(f"/d1/{directory_name(TP)}")
    files.make_directory(f"/d2/{directory_name(TP)}")
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
    assert found.live_log_dirs == ["/d1"]
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


def test_a_new_log_goes_to_the_directory_with_most_free_bytes_if_space_decides() -> None:
    free = {"/d1": 10, "/d2": 30, "/d3": 20}

    class Disks(MemoryFiles):
        def space(self, path: str) -> DiskSpace:
            return DiskSpace(free[path], 100, path)

    found = LogManager(Disks(), list(free), SMALL, on_dir_failure=lambda _path, _error: None, by_space=True)
    found.load(0)
    assert found.get_or_create(TP, None, True).directory.path == "/d2"
    free["/d3"] = 31
    found.measure_space(1)
    assert found.get_or_create(TopicPartition("t", 7), None, True).directory.path == "/d3"
    found.prefer(TopicPartition("t", 8), "/d1")
    assert found.get_or_create(TopicPartition("t", 8), None, True).directory.path == "/d1"
