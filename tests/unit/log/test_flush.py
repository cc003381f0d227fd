"""Flushing one log, and the end of its directory after a storage error."""

import pytest

from paceline.log.log_config import LogConfig
from paceline.model.errors import KafkaStorageError, UnknownTopicOrPartitionError
from tests.unit.log.helpers import NOW_MS, ROOT, TP, batch, filled_log, manager, new_log, records_of
from tests.unit.log.memory_files import MemoryFiles


def test_a_flush_makes_batches_epochs_and_indexes_durable_before_the_recovery_point_moves() -> None:
    files = MemoryFiles()
    log = filled_log(files, 20)
    assert log.flush_needed()  # segments were rolled
    log.flush()
    assert log.recovery_point == 40 and not log.flush_needed() and not log.epochs.dirty
    for segment in log.segments:
        assert set(segment.paths()) <= set(files.synced)
    assert log.begin_flush() is None


def test_a_flush_on_another_thread_covers_only_records_from_before_its_start() -> None:
    log = filled_log(MemoryFiles(), 3)
    task = log.begin_flush()
    assert task is not None and log.begin_flush() is None
    log.append_as_leader(batch(b"later"), 0, NOW_MS)
    task.run()
    log.finish_flush(task)
    assert (log.recovery_point, log.log_end_offset) == (6, 7)


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
    log = filled_log(files, 3, LogConfig())
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
