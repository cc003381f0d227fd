"""The clean-shutdown marker, unclean restarts, and sessions of processes that have ended."""

import pytest

from paceline.log.log_manager import LogManager
from tests.unit.log.helpers import (
    NOW_MS,
    ROOT,
    SMALL,
    TP,
    batch,
    crash,
    filled_manager,
    last_segment,
    manager,
    records_of,
)
from tests.unit.log.memory_files import MemoryFiles

# -- clean and unclean stops ---------------------------------------------------------------------------------------


def test_a_clean_stop_and_start_reads_no_batch_and_keeps_everything() -> None:
    files = MemoryFiles()
    found, records = filled_manager(files)
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
    found, _ = filled_manager(files)
    files.operations.clear()
    found.shutdown()
    changes = [path for operation, path in files.operations if operation in {"append", "create", "rename", "truncate"}]
    assert changes[-1] == f"{ROOT}/.kafka_cleanshutdown.tmp", "the last change is its rename"
    assert files.synced[-1] == f"{ROOT}/.kafka_cleanshutdown.tmp"
    files.operations.clear()
    manager(files, SMALL)
    removed = files.operations.index(("rename", f"{ROOT}/.kafka_cleanshutdown"))
    assert not any(operation == "read_at" for operation, _ in files.operations[:removed])
    assert not any(".kafka_cleanshutdown" in path for path in files.contents)


def test_a_crash_of_the_process_loses_nothing_and_is_no_unclean_restart() -> None:
    files = MemoryFiles()
    _, records = filled_manager(files)
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
    filled_manager(files)
    crash(files)
    _, report = manager(files, SMALL, boot_id="another boot")
    assert report.directories[0].stored_boot_id == "boot"
    assert report.is_unclean_restart("another boot")


@pytest.mark.parametrize("clean_stop", [False, True])
def test_an_unclean_restart_is_reported_until_a_controller_acknowledges_it(clean_stop: bool) -> None:
    files = MemoryFiles()
    filled_manager(files)
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
    filled_manager(files)
    del files.contents[f"{ROOT}/.kernel_boot_id"]
    crash(files)
    _, report = manager(files, SMALL)
    assert not report.directories[0].is_new and report.is_unclean_restart("boot")


def test_whole_batches_that_had_to_be_cut_are_an_unclean_restart() -> None:
    files = MemoryFiles()
    filled_manager(files)
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
    filled_manager(files)
    del last_segment(files)[-missing:]
    crash(files)
    _, report = manager(files, SMALL)
    assert report.truncated_bytes > 0 and not report.is_unclean_restart("boot")


def test_a_failed_sync_at_the_stop_leaves_no_marker() -> None:
    files = MemoryFiles()
    found, _ = filled_manager(files)
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
