"""Implement the `Files` interface with files of the operating system and a bounded cache of descriptors."""

# Paths are strings and files are descriptors here, so pathlib does not fit.
# ruff: noqa: PTH102, PTH103, PTH104, PTH108
import contextlib
import errno
import fcntl
import os
import shutil
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from paceline.log.files import NO_DESCRIPTOR, DirectoryEntry, DiskSpace, FileKind, FileLock, is_no_room, parent

_RESERVED_DESCRIPTORS = 16
_OPEN_RETRIES = 50
_OPEN_RETRY_S = 0.02
_READ_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
_OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class _Handle:
    """One open descriptor; closed when evicted and no longer in use."""

    __slots__ = ("descriptor", "evicted", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0
        self.evicted = False


class _Reserve:
    """Descriptors that this process holds open, to close them when it cannot open a file otherwise."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[int] = []
        self._mutex = threading.Lock()

    def fill(self) -> None:
        """Open descriptors until the reserve is full or the process has none left."""
        if len(self._held) < self._size:
            with self._mutex, contextlib.suppress(OSError):
                while len(self._held) < self._size:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def free(self) -> bool:
        """Close all reserved descriptors; return whether there were any."""
        with self._mutex:
            held, self._held = self._held, []
        for descriptor in held:
            os.close(descriptor)
        return bool(held)


_RESERVE = _Reserve(_RESERVED_DESCRIPTORS)


@contextlib.contextmanager
def _changing_content(path: str) -> Iterator[None]:
    """Convert an error of a full disk to EIO: a caller must not take the content of the file for unchanged."""
    try:
        yield
    except OSError as error:
        if is_no_room(error):
            raise OSError(errno.EIO, f"the content of the file is unknown: {error.strerror}", path) from error
        raise


class OsFileLock(FileLock):
    """An advisory lock (flock) on an open descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        stat = os.fstat(descriptor)
        self.identity = f"{stat.st_dev:x}:{stat.st_ino:x}"

    def release(self) -> None:
        """Close the descriptor, which releases the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class OsFiles:
    """Files of the operating system; thread-safe.

    The cache keeps at most ``max_open_files`` idle descriptors, so ten thousand partitions do not need ten thousand
    descriptors; descriptors in use may exceed this limit. Running out of descriptors is not a storage failure: before
    opening a file fails, idle descriptors and then reserved descriptors are closed.
    """

    _lock_kind = fcntl.LOCK_EX

    def __init__(self, max_open_files: int = 1024, observe_sync: Callable[[float], None] = lambda _: None) -> None:
        """``observe_sync`` is called with the duration of each file's fsync in seconds, on the thread that synced."""
        self._observe_sync = observe_sync
        self._max_open_files = max_open_files
        self._path_changes = 0
        """Number of times that paths were renamed, removed or re-created.

        If it changes while a file is being opened, the path may now belong to another file.
        """
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._mutex = threading.Lock()
        _RESERVE.fill()

    def exists(self, path: str) -> bool:
        """Whether the path exists; a dangling symbolic link counts as existing."""
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return os.lstat(path).st_size

    def modified_ms(self, path: str) -> int:
        """Return the time of the last change, wall clock, in milliseconds."""
        return os.lstat(path).st_mtime_ns // 1_000_000

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return names with their kind, sorted by name; symbolic links count as `FileKind.OTHER`."""
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    kind = FileKind.FILE
                elif entry.is_dir(follow_symlinks=False):
                    kind = FileKind.DIRECTORY
                else:
                    kind = FileKind.OTHER
                found.append(DirectoryEntry(entry.name, kind))
        found.sort(key=lambda entry: entry.name)
        return found

    def make_directory(self, path: str) -> None:
        """Create a directory and missing parents; an existing directory is not an error."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise
        except FileNotFoundError:
            os.makedirs(path, 0o700, exist_ok=True)

    def create(self, path: str) -> None:
        """Create or empty a file."""
        self._forget(path)
        descriptor = self._open(path, _OPEN_FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
        self._remember(path, descriptor)

    def append(self, path: str, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at the end, with one system call unless the kernel writes only a part.

        A disk that becomes full in between has taken a part, which is removed before the error is raised.
        """
        handle = self._acquire(path, create=True)
        written = 0
        try:
            written = os.write(handle.descriptor, data)
            if written < len(data):
                view = memoryview(data)
                while written < len(data):
                    written += os.write(handle.descriptor, view[written:])
        except OSError as error:
            if written and is_no_room(error):
                with _changing_content(path):
                    os.ftruncate(handle.descriptor, os.fstat(handle.descriptor).st_size - written)
            raise
        finally:
            self._release(handle)

    def read_at(self, path: str, position: int, length: int) -> bytes:
        """Read up to ``length`` bytes from ``position`` with pread, so concurrent reads share no file position."""
        handle = self._acquire(path, create=False)
        try:
            data = os.pread(handle.descriptor, length, position)
            if not data or len(data) == length:
                return data
            pieces = [data]
            missing = length - len(data)
            position += len(data)
            while missing:
                piece = os.pread(handle.descriptor, missing, position)
                if not piece:
                    break
                pieces.append(piece)
                missing -= len(piece)
                position += len(piece)
            return b"".join(pieces)
        finally:
            self._release(handle)

    def truncate(self, path: str, size: int) -> None:
        """Shorten a file to ``size`` bytes."""
        handle = self._acquire(path, create=False)
        try:
            os.ftruncate(handle.descriptor, size)
        finally:
            self._release(handle)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory and close the cached descriptors of both paths, which now name other files."""
        is_directory = stat.S_ISDIR(os.lstat(source).st_mode)
        try:
            os.rename(source, target)
        finally:
            if is_directory:
                self._forget_below(source)
            self._forget(source)
            self._forget(target)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        finally:
            self._forget(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its content; symbolic links in it are removed, not followed."""
        try:
            shutil.rmtree(path)
        finally:
            self._forget_below(path)

    def sync(self, path: str) -> None:
        """Write a file's content to the device (fsync)."""
        handle = self._acquire(path, create=False)
        begin = time.perf_counter()
        try:
            with _changing_content(path):
                os.fsync(handle.descriptor)
        finally:
            self._release(handle)
        self._observe_sync(time.perf_counter() - begin)

    def sync_directory(self, path: str) -> None:
        """Write a directory's names to the device (fsync)."""
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def forget(self, path: str) -> None:
        """Close the cached descriptors below a directory; those in use are closed after the call that uses them."""
        self._forget_below(path)

    def space(self, path: str) -> DiskSpace:
        """Return the free bytes for a process without privileges, the size, and the mount point of the file system."""
        found = os.statvfs(path)
        mount_point = os.path.realpath(path)
        while not os.path.ismount(mount_point):
            mount_point = parent(mount_point)
        return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, mount_point)

    def lock(self, path: str) -> FileLock | None:
        """Acquire the lock without waiting; return ``None`` when another process holds it."""
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, self._lock_kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return OsFileLock(descriptor)

    def close(self) -> None:
        """Close every cached descriptor."""
        with self._mutex:
            handles = list(self._handles.values())
            self._handles.clear()
            for handle in handles:
                self._evict(handle)

    def _open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open a file; while the process has no descriptor left, close idle or reserved ones and retry for a second.

        Raises:
            OSError: the file cannot be opened.
        """
        for _retry in range(_OPEN_RETRIES):
            try:
                descriptor = os.open(path, flags, mode)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
                    raise
                if not (self._close_idle() or _RESERVE.free()):
                    time.sleep(_OPEN_RETRY_S)  # other threads may close descriptors in the meantime
            else:
                _RESERVE.fill()
                return descriptor
        return os.open(path, flags, mode)

    def _close_idle(self) -> bool:
        """Close the cached descriptors that no call uses; return whether there were any."""
        with self._mutex:
            idle = [path for path, handle in self._handles.items() if handle.users == 0]
            for path in idle:
                self._evict(self._handles.pop(path))
        return bool(idle)

    def _acquire(self, path: str, *, create: bool) -> _Handle:
        with self._mutex:
            handle = self._handles.get(path)
            if handle is not None:
                self._handles.move_to_end(path)
                handle.users += 1
                return handle
            path_changes = self._path_changes
        flags = _OPEN_FLAGS | os.O_CREAT if create else _OPEN_FLAGS
        return self._remember(path, self._open(path, flags, 0o600), 1, path_changes)

    def _remember(self, path: str, descriptor: int, users: int = 0, path_changes: int | None = None) -> _Handle:
        handle = _Handle(descriptor)
        handle.users = users
        with self._mutex:
            if path_changes not in (None, self._path_changes):
                # This path may now belong to another file, so do not cache the descriptor under it.
                handle.evicted = True
                return handle
            other = self._handles.pop(path, None)
            if other is not None:
                self._evict(other)
            self._handles[path] = handle
            while len(self._handles) > self._max_open_files:
                _, oldest = self._handles.popitem(last=False)
                self._evict(oldest)
        return handle

    def _release(self, handle: _Handle) -> None:
        with self._mutex:
            handle.users -= 1
            if handle.evicted and handle.users == 0:
                os.close(handle.descriptor)

    def _forget(self, path: str) -> None:
        with self._mutex:
            self._path_changes += 1
            handle = self._handles.pop(path, None)
            if handle is not None:
                self._evict(handle)

    def _forget_below(self, path: str) -> None:
        prefix = path + "/"
        with self._mutex:
            self._path_changes += 1
            for known in [name for name in self._handles if name.startswith(prefix)]:
                self._evict(self._handles.pop(known))

    @staticmethod
    def _evict(handle: _Handle) -> None:
        handle.evicted = True
        if handle.users == 0:
            os.close(handle.descriptor)


class ReadOnlyFiles(OsFiles):
    """Files that are only read, also on a file system that is mounted read-only; every change raises ``OSError``.

    Several processes may hold the lock on a file, but not while a process holds the exclusive lock of `OsFiles`.
    """

    _lock_kind = fcntl.LOCK_SH

    def _open(self, path: str, flags: int, mode: int = 0o600) -> int:
        return super()._open(path, os.O_RDONLY | flags & _READ_FLAGS, mode)

    def _refuse(self, *paths: object, **_: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), paths[0])

    make_directory = create = append = truncate = rename = remove = remove_tree = _refuse
