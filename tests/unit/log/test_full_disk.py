"""Logs on a disk that becomes full: a refused append leaves nothing, and the log continues when there is room."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.log.checkpoint import LEADER_EPOCH_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, read_offsets
from paceline.log.directory_space import Room
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.os_files import OsFiles
from paceline.log.partition_log import PartitionLog
from paceline.model.errors import KafkaStorageError, LogDirFullError
from tests.unit.log.helpers import DIRECTORY, NOW_MS, ROOT, SMALL, TP, batch, crash, filled_manager, manager, records_of
from tests.unit.log.memory_files import MemoryFiles


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in records_of(log)]


def no_room(files: MemoryFiles, when: Callable[[str, str], bool]) -> None:
    """Make the next matching operation fail because the disk is full."""

    def fails(operation: str, path: str) -> bool:
        if when(operation, path):
            files.fails = lambda _operation, _path: False
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return False

    files.fails = fails


@pytest.mark.parametrize("follower", [False, True])
def test_every_refused_append_leaves_a_log_that_continues_and_loads(follower: bool) -> None:
    """Fill the disk to each size between two appends, so that each write of an append is the first without room."""
    config = replace(SMALL, segment_bytes=400)
    for spare in range(0, 1_400, 17):
        files = MemoryFiles()
        logs, _ = manager(files, config)
        log = logs.get_or_create(TP, "A" * 22, True)

        def append(number: int, log: PartitionLog = log) -> None:
            value = b"%d" % number
            if follower:
                log.append_as_follower(batch(value, base_offset=log.log_end_offset, leader_epoch=0))
            else:
                log.append_as_leader(batch(value, producer=(7, 0, log.log_end_offset)), 0, NOW_MS)

        append(0)
        files.limit_bytes = files.used_bytes + spare
        number, refused = 1, 0
        while number < 20:
            end = log.log_end_offset
            try:
                append(number)
            except LogDirFullError:
                assert log.log_end_offset == end
                assert not log.directory.is_offline and log.directory.space.room is Room.FULL
                refused += 1
                files.limit_bytes = files.used_bytes + spare + refused
                continue
            number += 1
        assert refused
        expected = [b"%d" % one for one in range(20)]
        assert values(log) == expected
        crash(files)
        files.limit_bytes = None
        again = manager(files, config)[0].get(TP)
        assert again is not None and values(again) == expected


def test_the_index_of_appended_batches_waits_for_room() -> None:
    files = MemoryFiles()
    log = manager(files, LogConfig(index_interval_bytes=1))[0].get_or_create(TP, None, True)
    refused: list[str] = []

    def fails(operation: str, path: str) -> bool:
        if operation in ("append", "create") and path.endswith("index"):
            refused.append(path)
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return False

    files.fails = fails
    for number in range(1_100):
        log.append_as_leader(batch(b"%d" % number), 0, NOW_MS)
    assert refused
    with pytest.raises(LogDirFullError):
        log.flush()
    files.fails = lambda _operation, _path: False
    log.flush()
    assert log.recovery_point == 1_100
    index = log.segments[0].offset_index
    assert len(files.contents[index.path]) == index.entry_count * 8 and index.entry_count > 1_000
    assert log.read(1_000, 1, 1_100)


@pytest.mark.parametrize("name", [LEADER_EPOCH_CHECKPOINT, ".index"])
def test_a_flush_without_room_is_repeated(name: str) -> None:
    files = MemoryFiles()
    log = manager(files)[0].get_or_create(TP, None, True)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    no_room(files, lambda operation, path: operation == "create" and name in path)
    with pytest.raises(LogDirFullError):
        log.flush()
    assert log.recovery_point == 0 and not log.directory.is_offline
    log.flush()
    assert log.recovery_point == 1 and not log.epochs.dirty


def test_a_batch_that_must_be_flushed_is_durable_without_room_for_its_index() -> None:
    files = MemoryFiles()
    log = manager(files, LogConfig(flush_messages=1))[0].get_or_create(TP, None, True)
    no_room(files, lambda operation, path: operation == "create" and "index" in path)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    assert log.segments[0].log_path in files.synced and log.recovery_point == 0
    assert log.log_end_offset == 1


def test_an_fsync_without_room_takes_the_directory_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OsFiles()
    logs = LogManager(files, [str(tmp_path)], LogConfig(), on_dir_failure=lambda *_: None, boot_id="boot")
    logs.load(NOW_MS)
    log = logs.get_or_create(TP, None, True)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)

    def fsync(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KafkaStorageError) as found:
        log.flush()
    assert not isinstance(found.value, LogDirFullError) and log.directory.is_offline
    files.close()


def test_a_part_that_the_disk_took_before_it_was_full_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = OsFiles(), str(tmp_path / "f")
    files.append(path, b"before")
    real = os.write
    sizes = [4, 0]

    def write(descriptor: int, data: bytes) -> int:
        size = sizes.pop(0)
        if not size:
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(descriptor, data[:size])

    with monkeypatch.context() as patches:
        patches.setattr(os, "write", write)
        with pytest.raises(OSError, match="no space"):
            files.append(path, b"0123456789")
    assert Path(path).read_bytes() == b"before"
    files.append(path, b"-after")
    assert Path(path).read_bytes() == b"before-after"
    files.close()


def test_a_truncation_without_room_for_the_recovery_point_removes_nothing() -> None:
    files = MemoryFiles()
    logs, _ = manager(files)
    log = logs.get_or_create(TP, None, True)
    for number in range(4):
        log.append_as_follower(batch(b"%d" % number, base_offset=number, leader_epoch=0))
    log.flush()
    logs.checkpoint_recovery_points()
    no_room(files, lambda operation, path: operation == "create" and RECOVERY_POINT_CHECKPOINT in path)
    with pytest.raises(LogDirFullError):
        log.truncate_to(2)
    assert log.log_end_offset == 4 and not log.directory.is_offline
    log.truncate_to(2)
    assert log.log_end_offset == 2 and read_offsets(files, f"{ROOT}/{RECOVERY_POINT_CHECKPOINT}")[TP] == 2


def test_retention_without_room_for_a_new_segment_first_removes_the_old_ones() -> None:
    files = MemoryFiles()
    log = manager(files, replace(SMALL, retention_ms=1_000))[0].get_or_create(TP, None, True)
    for number in range(12):
        log.append_as_leader(batch(b"%d" % number), 0, NOW_MS)
    log.update_high_watermark(12)
    active = log.segments[-1].base_offset
    assert active > 0
    files.limit_bytes = files.used_bytes
    offset = log.retained_from(NOW_MS)
    assert offset == active
    log.increment_log_start_offset(active)
    log.remove_files(log.remove_segments_below_start())
    assert log.retained_from(NOW_MS) == 12


def small_disk(files: MemoryFiles, config: LogConfig, min_free_bytes: int | None = None) -> LogManager:
    found = LogManager(
        files, [ROOT], config, on_dir_failure=lambda *_: None, boot_id="boot", min_free_bytes=min_free_bytes
    )
    found.load(NOW_MS)
    return found


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("free", [0, 200])
def test_old_records_are_deleted_at_the_start_on_a_full_disk(clean: bool, free: int) -> None:
    files = MemoryFiles()
    logs = small_disk(files, SMALL)
    log = logs.get_or_create(TP, "A" * 22, True)
    for number in range(40):
        timestamp = NOW_MS if number >= 30 else NOW_MS - 100_000
        log.append_as_leader(batch(b"%d" % number, timestamp=timestamp), 0, NOW_MS)
    log.update_high_watermark(40)
    log.flush()
    logs.checkpoint_high_watermarks()
    logs.checkpoint_recovery_points()
    if clean:
        logs.shutdown()
    crash(files)
    files.limit_bytes = files.used_bytes + free
    again = small_disk(files, replace(SMALL, retention_ms=50_000))
    loaded = again.get(TP)
    assert loaded is not None and not loaded.directory.is_offline
    assert 27 <= loaded.log_start_offset <= 30 and loaded.log_end_offset == 40
    assert values(loaded)[-10:] == [b"%d" % number for number in range(30, 40)]
    assert loaded.directory.space.room is Room.ROOMY
    assert not any(path.endswith(".deleted") for path in files.contents)
    loaded.append_as_leader(batch(b"new"), 0, NOW_MS)


def test_the_files_of_deleted_logs_are_removed_before_logs_are_loaded_on_a_full_disk() -> None:
    files = MemoryFiles()
    logs = small_disk(files, LogConfig())
    logs.get_or_create(TP, None, True).append_as_leader(batch(b"x" * 5_000), 0, NOW_MS)
    logs.delete(TP)
    logs.shutdown()
    files.limit_bytes = files.used_bytes
    again = small_disk(files, LogConfig())
    assert not any(DIRECTORY in path for path in files.contents)
    assert again.spaces[ROOT].room is Room.ROOMY


def test_checkpoints_without_room_keep_the_directory_online() -> None:
    files = MemoryFiles()
    logs, _ = manager(files)
    log = logs.get_or_create(TP, None, True)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    files.limit_bytes = files.used_bytes
    for write in (
        logs.checkpoint_high_watermarks,
        logs.checkpoint_recovery_points,
        logs.checkpoint_log_start_offsets,
        logs.checkpoint_cleaner_offsets,
        lambda: logs.remember_session(5),
    ):
        write()
    assert logs.live_log_dirs == [ROOT] and not log.directory.log_starts_durable
    files.limit_bytes = None
    logs.checkpoint_log_start_offsets()
    assert log.directory.log_starts_durable


@pytest.mark.parametrize("name", [RECOVERY_POINT_CHECKPOINT, ".snapshot", ".kafka_cleanshutdown"])
def test_a_stop_without_room_is_unclean_but_no_failure_of_the_directory(name: str) -> None:
    files = MemoryFiles()
    failed: list[str] = []
    logs = LogManager(files, [ROOT], SMALL, on_dir_failure=lambda path, _: failed.append(path), boot_id="boot")
    logs.load(NOW_MS)
    log = logs.get_or_create(TP, None, True)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    no_room(files, lambda operation, path: operation == "append" and name in path)
    logs.shutdown()
    assert failed == [] and f"{ROOT}/.kafka_cleanshutdown" not in files.contents
    again = manager(files, SMALL)[0].get(TP)
    assert again is not None and values(again) == [b"a"]


@pytest.mark.parametrize("free", [0, MemoryFiles.NAME_BYTES], ids=["no byte", "an empty file"])
@pytest.mark.parametrize("lost", ["a segment", "the last batch"])
def test_damage_found_on_a_full_disk_is_still_known_at_the_next_load(lost: str, free: int) -> None:
    """There is no room for its description, so an unreadable file stands for it, which counts as a gap."""
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    log = logs.get(TP)
    assert log is not None
    first, last = log.segments[0].log_path, log.segments[-1].log_path
    epochs = [entry.epoch for entry in log.epochs.entries]
    logs.shutdown()
    if lost == "a segment":
        files.other_bytes += MemoryFiles.NAME_BYTES + len(files.contents.pop(first))
        for suffix in (".index", ".timeindex"):
            files.other_bytes += MemoryFiles.NAME_BYTES + len(files.contents.pop(first.replace(".log", suffix)))
    else:
        files.contents[last][-1] ^= 1
    crash(files)
    files.limit_bytes = files.used_bytes + free
    again, report = manager(files, SMALL)
    assert report.directories[0].error is None
    found = again.unexplained_gaps if lost == "a segment" else again.truncated_after_clean_stop
    assert list(found) == [TP]
    crash(files)
    third, _ = manager(files, SMALL)
    assert third.unexplained_gaps == {TP: f"{DIRECTORY}/known-damage cannot be read"}
    kept = third.get(TP)
    assert kept is not None and not kept.directory.is_offline
    assert [entry.epoch for entry in kept.epochs.entries] == epochs


def test_the_epochs_of_a_log_whose_damage_had_no_room_are_written_again() -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    log = logs.get(TP)
    assert log is not None
    logs.shutdown()
    files.other_bytes += MemoryFiles.NAME_BYTES + len(files.contents.pop(log.segments[0].log_path))
    crash(files)
    path = f"{DIRECTORY}/{LEADER_EPOCH_CHECKPOINT}"
    before = bytes(files.contents[path])
    no_room(files, lambda operation, path: operation == "create" and "known-damage" in path)
    again, _ = manager(files, SMALL)
    kept = again.get(TP)
    assert kept is not None and path not in files.contents
    kept.flush()
    assert files.contents[path] == kept.epochs.encode() != before


def test_a_loss_found_on_a_full_disk_is_an_unclean_restart_at_the_next_load_too() -> None:
    files = MemoryFiles()
    logs, _ = filled_manager(files)
    log = logs.get(TP)
    assert log is not None
    last = log.segments[-1].log_path
    log.flush()
    crash(files)
    files.contents[last][-1] ^= 1
    files.limit_bytes = files.used_bytes
    again, report = manager(files, SMALL)
    assert report.directories[0].error is None and report.is_unclean_restart("boot")
    again.shutdown()
    third, report = manager(files, SMALL)
    assert report.is_unclean_restart("boot"), "a clean stop in between does not hide the loss"
    files.limit_bytes = None
    third.unclean_restart_noted()
    third.shutdown()
    assert not manager(files, SMALL)[1].is_unclean_restart("boot")
