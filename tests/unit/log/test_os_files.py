"""Real files: bounded descriptors, links that are not followed, and exclusive locks."""

import contextlib
import errno
import fcntl
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.log.files import DirectoryEntry, FileKind, read_all, write_atomically
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.os_files import OsFiles, ReadOnlyFiles
from paceline.model.errors import ThrottledError
from paceline.model.identifiers import TopicPartition
from tests.unit.log.helpers import NOW_MS, TP, batch, records_of


def open_descriptors(directory: Path) -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += str(descriptor.readlink()).startswith(str(directory))
        except OSError:
            continue
    return found


def test_files_behave_as_the_interface_documents(tmp_path: Path) -> None:
    files, root = OsFiles(), str(tmp_path)
    files.append(f"{root}/a", b"hello ")
    files.append(f"{root}/a", memoryview(b"world"))
    assert files.read_at(f"{root}/a", 6, 100) == b"world"
    assert files.size(f"{root}/a") == 11
    files.truncate(f"{root}/a", 5)
    files.append(f"{root}/a", b"!")
    assert read_all(files, f"{root}/a") == b"hello!"
    files.create(f"{root}/a")
    assert files.size(f"{root}/a") == 0
    files.make_directory(f"{root}/x/y/z")
    files.make_directory(f"{root}/x")
    files.append(f"{root}/x/f", b"1")
    files.rename(f"{root}/x", f"{root}/w")
    assert files.read_at(f"{root}/w/f", 0, 9) == b"1"
    assert not files.exists(f"{root}/x/f")
    files.sync(f"{root}/w/f")
    files.sync_directory(f"{root}/w")
    assert files.modified_ms(f"{root}/w/f") > 0
    assert files.list_directory(root) == [
        DirectoryEntry("a", FileKind.FILE),
        DirectoryEntry("w", FileKind.DIRECTORY),
    ]
    files.remove_tree(f"{root}/w")
    files.remove(f"{root}/a")
    for missing in (lambda: files.read_at(f"{root}/a", 0, 1), lambda: files.sync(f"{root}/a")):
        with pytest.raises(FileNotFoundError):
            missing()
    assert files.list_directory(root) == []


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    files, path = OsFiles(), f"{tmp_path}/checkpoint"
    write_atomically(files, path, b"old")
    assert read_all(files, path) == b"old"
    write_atomically(files, path, b"newer")
    assert read_all(files, path) == b"newer"
    assert [entry.name for entry in files.list_directory(str(tmp_path))] == ["checkpoint"]


def test_idle_descriptors_are_bounded_and_closed_on_rename_and_removal(tmp_path: Path) -> None:
    files = OsFiles(max_open_files=5)
    for i in range(50):
        files.append(f"{tmp_path}/{i}", b"x")
    assert open_descriptors(tmp_path) == 5
    for i in range(50):
        assert files.read_at(f"{tmp_path}/{i}", 0, 1) == b"x"
    assert open_descriptors(tmp_path) == 5
    files.remove(f"{tmp_path}/49")
    files.rename(f"{tmp_path}/48", f"{tmp_path}/moved")
    assert open_descriptors(tmp_path) == 3
    files.close()
    assert open_descriptors(tmp_path) == 0


def test_threads_share_descriptors_while_others_are_evicted(tmp_path: Path) -> None:
    files = OsFiles(max_open_files=2)
    paths = [f"{tmp_path}/{i}" for i in range(8)]
    for path in paths:
        files.append(path, path.encode())
    wrong: list[str] = []

    def read() -> None:
        for _ in range(200):
            wrong.extend(path for path in paths if files.read_at(path, 0, 1000) != path.encode())

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    assert open_descriptors(tmp_path) <= 2


def test_links_are_reported_and_never_followed(tmp_path: Path) -> None:
    files = OsFiles()
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "dir").symlink_to(tmp_path)
    assert {entry.kind for entry in files.list_directory(str(inside))} == {FileKind.OTHER}
    for action in (
        lambda: files.read_at(f"{inside}/link", 0, 10),
        lambda: files.append(f"{inside}/link", b"x"),
        lambda: files.create(f"{inside}/link"),
        lambda: files.lock(f"{inside}/link"),
    ):
        with pytest.raises(OSError):
            action()
    assert outside.read_bytes() == b"secret"


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="No locks available"):
        OsFiles().lock(f"{tmp_path}/.lock")
    report = LogManager(OsFiles(), [str(tmp_path)], LogConfig(), on_dir_failure=lambda *_: None).load(NOW_MS)
    assert "No locks available" in str(report.directories[0].error)
    assert open_descriptors(tmp_path) == 0


def test_a_lock_excludes_until_it_is_released(tmp_path: Path) -> None:
    files = OsFiles()
    lock = files.lock(f"{tmp_path}/.lock")
    assert lock is not None
    assert OsFiles().lock(f"{tmp_path}/.lock") is None
    lock.release()
    lock.release()
    again = OsFiles().lock(f"{tmp_path}/.lock")
    assert again is not None
    again.release()


def test_a_log_on_real_files_survives_a_stop_a_crash_and_a_deletion(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=100)

    def start() -> LogManager:
        found = LogManager(
            OsFiles(max_open_files=4), [f"{tmp_path}/data"], config, on_dir_failure=lambda _path, error: failed(error)
        )
        found.load(NOW_MS)
        return found

    def failed(error: Exception) -> None:
        raise error

    found = start()
    log = found.get_or_create(TP, "A" * 22, True)
    for i in range(100):
        log.append_as_leader(batch(b"value %d" % i), i // 30, NOW_MS)
    records = records_of(log)
    found.shutdown()
    found = start()
    log = found.get_or_create(TP, "A" * 22, False)
    assert records_of(log) == records and len(log.segments) > 3
    log.append_as_leader(batch(b"after"), 9, NOW_MS)
    last = Path(log.segments[-1].log_path)
    with last.open("ab") as file:
        file.write(b"torn")
    for lock in found._locks.values():
        lock.release()
    found = start()
    log = found.get_or_create(TP, "A" * 22, False)
    assert [record.value for record in records_of(log)][-2:] == [b"value 99", b"after"]
    assert log.epochs.entries == [(0, 0), (1, 30), (2, 60), (3, 90), (9, 100)]
    found.delete(TP)
    found.purge_deleted()
    assert sorted(path.name for path in (tmp_path / "data").iterdir() if path.is_dir()) == []
    assert found.get_or_create(TopicPartition("t", 0), None, True).log_end_offset == 0
    found.shutdown()


@pytest.mark.parametrize("call", ["unlink", "rename"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_flush_in_progress_does_not_keep_a_removed_file_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, is_late: bool
) -> None:
    """A flush may open a file while it is removed: the next file of that name is another file."""
    files = OsFiles()
    folder = str(tmp_path / "t-0")
    path = f"{folder}/0.log"
    files.make_directory(folder)
    files.append(path, b"old")
    taken_away, opened = getattr(os, call), os.open

    def take_away(*names: str) -> None:
        if not is_late:
            files.close()
            files.sync(path)
        taken_away(*names)

    def take_away_behind_the_open(name: str, *args: int) -> int:
        descriptor = opened(name, *args)
        monkeypatch.setattr(os, "open", opened)
        change()
        return descriptor

    def change() -> None:
        if call == "unlink":
            files.remove(path)
        else:
            files.rename(folder, folder + "-delete")

    monkeypatch.setattr(os, call, take_away)
    if is_late:
        files.close()
        monkeypatch.setattr(os, "open", take_away_behind_the_open)
        files.sync(path)
    else:
        change()
    files.make_directory(folder)
    files.append(path, b"new")
    assert Path(path).read_bytes() == b"new"


@contextlib.contextmanager
def without_descriptors() -> Iterator[None]:
    """Open as many descriptors as the process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    largest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (largest + 40, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_files_are_still_opened_when_connections_hold_all_other_descriptors(tmp_path: Path) -> None:
    files, root = OsFiles(), str(tmp_path)
    files.append(f"{root}/known", b"k")
    with without_descriptors():
        for number in range(10):
            files.append(f"{root}/{number}", b"x")
        files.sync_directory(root)
        assert files.read_at(f"{root}/known", 0, 1) == b"k"
    assert files.read_at(f"{root}/9", 0, 1) == b"x"
    files.close()
    assert open_descriptors(tmp_path) == 0


def test_a_read_without_descriptors_does_not_take_the_log_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = LogManager(OsFiles(), [f"{tmp_path}/data"], LogConfig(), on_dir_failure=lambda _path, _error: None)
    manager.load(NOW_MS)
    log = manager.get_or_create(TP, None, True)
    log.append_as_leader(batch(b"a"), 0, NOW_MS)
    with monkeypatch.context() as patched:

        def no_descriptor(*_arguments: object) -> bytes:
            raise OSError(errno.EMFILE, "Too many open files")

        patched.setattr(OsFiles, "read_at", no_descriptor)
        with pytest.raises(ThrottledError):
            log.read(0, 1_000, 1)
    assert not log.directory.is_offline
    assert len(log.read(0, 1_000, 1)) > 0


def test_data_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        files, root = OsFiles(), f"{tmp_path}/log"
        files.make_directory(root)
        files.make_directory(f"{root}/t-0")
        files.create(f"{root}/t-0/created")
        files.append(f"{root}/t-0/appended", b"x")
        files.lock(f"{root}/.lock")
        modes = {path.name: path.stat().st_mode & 0o777 for path in [Path(root), *Path(root).rglob("*")]}
    finally:
        os.umask(old_mask)
    assert modes == {"log": 0o700, "t-0": 0o700, "created": 0o600, "appended": 0o600, ".lock": 0o600}


def test_read_only_files_are_read_and_refuse_every_change(tmp_path: Path) -> None:
    path, name = f"{tmp_path}/a", "a"
    OsFiles().append(path, b"hello")
    files = ReadOnlyFiles()
    assert (read_all(files, path), [entry.name for entry in files.list_directory(str(tmp_path))]) == (b"hello", [name])
    descriptors = [one for one in Path("/proc/self/fd").iterdir() if one.exists() and one.samefile(path)]
    flags = [Path(f"/proc/self/fdinfo/{one.name}").read_text() for one in descriptors]
    assert any(int(text.split("flags:\t")[1].split()[0], 8) & os.O_ACCMODE == os.O_RDONLY for text in flags)
    changes = [
        lambda: files.make_directory(f"{tmp_path}/d"),
        lambda: files.create(path),
        lambda: files.append(path, b"!"),
        lambda: files.truncate(path, 0),
        lambda: files.rename(path, f"{path}2"),
        lambda: files.remove(path),
        lambda: files.remove_tree(str(tmp_path)),
    ]
    for change in changes:
        with pytest.raises(OSError, match="Read-only"):
            change()
    with pytest.raises(FileNotFoundError):
        files.lock(f"{tmp_path}/.lock")
    assert [one.name for one in tmp_path.iterdir()] == [name] and Path(path).read_bytes() == b"hello"


def test_read_only_files_share_a_lock_that_excludes_a_broker(tmp_path: Path) -> None:
    path = f"{tmp_path}/.lock"
    held = OsFiles().lock(path)
    assert held is not None and ReadOnlyFiles().lock(path) is None
    held.release()
    first, second = ReadOnlyFiles().lock(path), ReadOnlyFiles().lock(path)
    assert first is not None and second is not None and OsFiles().lock(path) is None
    first.release()
    second.release()
    assert OsFiles().lock(path) is not None
