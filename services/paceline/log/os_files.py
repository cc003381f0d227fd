"""The door to real files: the `Files` interface on the operating system, with a bounded cache of descriptors."""

# Paths are plain strings here, and descriptors are the point.
# ruff: noqa: PTH102, PTH103, PTH104, PTH108
import contextlib
import fcntl
import os
import shutil
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from paceline.log.files import NO_DESCRIPTOR, DirectoryEntry, FileKind, FileLock

_RESERVED_DESCRIPTORS = 16
_OPEN_RETRIES = 50
_OPEN_RETRY_S = 0.02
_OPEN_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class _Handle:
    """One open descriptor; closed when evicted and no longer in use."""

    __slots__ = ("descriptor", "evicted", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0
        self.evicted = False


class _Reserve:
    """Descriptors of this process that are given up when a file cannot be opened without them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[int] = []
        self._mutex = threading.Lock()

    def fill(self) -> None:
        """Hold as many as there are to be, or as can be had."""
        if len(self._held) < self._size:
            with self._mutex, contextlib.suppress(OSError):
                while len(self._held) < self._size:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def free(self) -> bool:
        """Give up all; return whether there were any."""
        with self._mutex:
            held, self._held = self._held, []
        for descriptor in held:
            os.close(descriptor)
        return bool(held)


_RESERVE = _Reserve(_RESERVED_DESCRIPTORS)


class OsFileLock(FileLock):
    """An advisory lock (flock) on an open descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        stat = os.fstat(descriptor)
        self.identity = f"{stat.st_dev:x}:{stat.st_ino:x}"

    def release(self) -> None:
        """Close the descriptor, which gives the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class OsFiles:
    """Files of the operating system. Safe to use from several threads.

    At most ``max_open_files`` descriptors stay open while idle, so ten thousand partitions do not need ten thousand
    descriptors; those in use at the same moment may go beyond it. A process that has run out of descriptors is no
    failure of its storage: some are held in reserve, and idle ones are closed, before opening a file fails.
    """

    def __init__(self, max_open_files: int = 1024, observe_sync: Callable[[float], None] = lambda _: None) -> None:
        """``observe_sync`` is called with the seconds of each flush of a file, on the thread that flushed."""
        self._observe_sync = observe_sync
        self._max_open_files = max_open_files
        self._names_gone = 0
        """How often names were taken away: a file opened meanwhile may be one that its path means no more."""
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._mutex = threading.Lock()
        _RESERVE.fill()

    def exists(self, path: str) -> bool:
        """Whether the name exists; a dangling link counts as existing."""
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        """Size in bytes."""
        return os.lstat(path).st_size

    def modified_ms(self, path: str) -> int:
        """Time of the last change in milliseconds."""
        return os.lstat(path).st_mtime_ns // 1_000_000

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Names with their kind, sorted by name; links count as neither file nor directory."""
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
        """Create a directory and its parents."""
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
        """Write everything at the end; one system call unless the kernel takes less."""
        handle = self._acquire(path, create=True)
        try:
            written = os.write(handle.descriptor, data)
            if written < len(data):
                view = memoryview(data)
                while written < len(data):
                    written += os.write(handle.descriptor, view[written:])
        finally:
            self._release(handle)

    def read_at(self, path: str, position: int, length: int) -> bytes:
        """Positioned read; does not move anything shared."""
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
        """Cut to ``size`` bytes."""
        handle = self._acquire(path, create=False)
        try:
            os.ftruncate(handle.descriptor, size)
        finally:
            self._release(handle)

    def rename(self, source: str, target: str) -> None:
        """Rename; descriptors below either name are closed, for their paths mean something else from now on."""
        is_directory = stat.S_ISDIR(os.lstat(source).st_mode)
        try:
            os.rename(source, target)
        finally:
            if is_directory:
                self._forget_below(source)
            self._forget(source)
            self._forget(target)

    def remove(self, path: str) -> None:
        """Remove one file."""
        try:
            os.unlink(path)
        finally:
            self._forget(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory; links inside it are removed, not followed."""
        try:
            shutil.rmtree(path)
        finally:
            self._forget_below(path)

    def sync(self, path: str) -> None:
        """Flush a file's content to the device."""
        handle = self._acquire(path, create=False)
        begin = time.perf_counter()
        try:
            os.fsync(handle.descriptor)
        finally:
            self._release(handle)
        self._observe_sync(time.perf_counter() - begin)

    def sync_directory(self, path: str) -> None:
        """Flush a directory's names to the device."""
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> FileLock | None:
        """Take the lock without waiting."""
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return OsFileLock(descriptor)

    def close(self) -> None:
        """Close every cached descriptor."""
        with self._mutex:
            handles = list(self._handles.values())
            self._handles.clear()
            for handle in handles:
                self._evict(handle)

    def _open(self, path: str, flags: int, mode: int = 0o600) -> int:
        """Open a file; when the process has no descriptor left, close this cache's files and try again for a second.

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
                    time.sleep(_OPEN_RETRY_S)  # other holders of descriptors may close some
            else:
                _RESERVE.fill()
                return descriptor
        return os.open(path, flags, mode)

    def _close_idle(self) -> bool:
        """Close the cached descriptors that are not in use; return whether there were any."""
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
            names_gone = self._names_gone
        flags = _OPEN_FLAGS | os.O_CREAT if create else _OPEN_FLAGS
        return self._remember(path, self._open(path, flags, 0o600), 1, names_gone)

    def _remember(self, path: str, descriptor: int, users: int = 0, names_gone: int | None = None) -> _Handle:
        handle = _Handle(descriptor)
        handle.users = users
        with self._mutex:
            if names_gone not in (None, self._names_gone):
                # Perhaps this name was among them; another file of that name must not be taken for this one.
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
            self._names_gone += 1
            handle = self._handles.pop(path, None)
            if handle is not None:
                self._evict(handle)

    def _forget_below(self, path: str) -> None:
        prefix = path + "/"
        with self._mutex:
            self._names_gone += 1
            for known in [name for name in self._handles if name.startswith(prefix)]:
                self._evict(self._handles.pop(known))

    @staticmethod
    def _evict(handle: _Handle) -> None:
        handle.evicted = True
        if handle.users == 0:
            os.close(handle.descriptor)
