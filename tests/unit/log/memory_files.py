"""A disk in memory for unit tests: the `Files` interface, with failures on demand."""

import errno
from collections.abc import Callable

from paceline.log.files import DirectoryEntry, DiskSpace, FileKind, FileLock, parent


class MemoryLock(FileLock):
    def __init__(self, files: "MemoryFiles", path: str) -> None:
        self._files = files
        self._path = path
        self.identity = path

    def release(self) -> None:
        self._files.locked.discard(self._path)


class MemoryFiles:
    """Files as byte arrays by path.

    ``fails(operation, path)`` makes a call raise ``OSError``. With ``limit_bytes`` the disk has no more bytes: a file
    costs its content and `NAME_BYTES` for its name.
    """

    NAME_BYTES = 100

    def __init__(self) -> None:
        self.contents: dict[str, bytearray] = {}
        self.directories: set[str] = {"/"}
        self.links: set[str] = set()
        self.locked: set[str] = set()
        self.synced: list[str] = []
        self.operations: list[tuple[str, str]] = []
        self.fails: Callable[[str, str], bool] = lambda _operation, _path: False
        self.now_ms = 0
        self.limit_bytes: int | None = None
        self.other_bytes = 0
        """Bytes that other programs use on the same disk."""

    @property
    def used_bytes(self) -> int:
        return self.other_bytes + sum(self.NAME_BYTES + len(content) for content in self.contents.values())

    def space(self, path: str) -> DiskSpace:
        if self.limit_bytes is None:
            return DiskSpace(1 << 40, 1 << 41)
        return DiskSpace(max(0, self.limit_bytes - self.used_bytes), self.limit_bytes, "/disk")

    def forget(self, path: str) -> None:
        self.operations.append(("forget", path))

    def _need_room(self, path: str, size: int) -> None:
        size += 0 if path in self.contents else self.NAME_BYTES
        if self.limit_bytes is not None and size > 0 and self.used_bytes + size > self.limit_bytes:
            raise OSError(errno.ENOSPC, "no space left on device", path)

    def _do(self, operation: str, path: str) -> None:
        self.operations.append((operation, path))
        if self.fails(operation, path):
            raise OSError(5, "injected", path)

    def _content(self, path: str) -> bytearray:
        if path not in self.contents:
            raise FileNotFoundError(2, "no such file", path)
        return self.contents[path]

    def _need_parent(self, path: str) -> None:
        if parent(path) not in self.directories:
            raise FileNotFoundError(2, "no such directory", path)

    def exists(self, path: str) -> bool:
        return path in self.contents or path in self.directories or path in self.links

    def size(self, path: str) -> int:
        self._do("size", path)
        return len(self._content(path))

    def modified_ms(self, path: str) -> int:
        self._content(path)
        return self.now_ms

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        self._do("list_directory", path)
        if path not in self.directories:
            raise FileNotFoundError(2, "no such directory", path)
        found = [
            DirectoryEntry(name.rpartition("/")[2], FileKind.FILE) for name in self.contents if parent(name) == path
        ]
        found += [
            DirectoryEntry(name.rpartition("/")[2], FileKind.DIRECTORY)
            for name in self.directories
            if name != "/" and parent(name) == path
        ]
        found += [
            DirectoryEntry(name.rpartition("/")[2], FileKind.OTHER) for name in self.links if parent(name) == path
        ]
        return sorted(found, key=lambda entry: entry.name)

    def make_directory(self, path: str) -> None:
        self._do("make_directory", path)
        while path not in self.directories:
            self.directories.add(path)
            path = parent(path)

    def create(self, path: str) -> None:
        self._do("create", path)
        self._need_parent(path)
        self._need_room(path, 0)
        self.contents[path] = bytearray()

    def append(self, path: str, data: bytes | bytearray | memoryview) -> None:
        self._do("append", path)
        self._need_parent(path)
        self._need_room(path, len(data))
        self.contents.setdefault(path, bytearray()).extend(data)

    def read_at(self, path: str, position: int, length: int) -> bytes:
        self._do("read_at", path)
        return bytes(self._content(path)[position : position + length])

    def truncate(self, path: str, size: int) -> None:
        self._do("truncate", path)
        del self._content(path)[size:]

    def rename(self, source: str, target: str) -> None:
        self._do("rename", source)
        if source in self.contents:
            self.contents[target] = self.contents.pop(source)
            return
        if source not in self.directories:
            raise FileNotFoundError(2, "no such file", source)
        for name in [n for n in self.contents if n.startswith(source + "/")]:
            self.contents[target + name[len(source) :]] = self.contents.pop(name)
        for name in [n for n in self.directories if n == source or n.startswith(source + "/")]:
            self.directories.discard(name)
            self.directories.add(target + name[len(source) :])

    def remove(self, path: str) -> None:
        self._do("remove", path)
        self._content(path)
        del self.contents[path]

    def remove_tree(self, path: str) -> None:
        self._do("remove_tree", path)
        if path not in self.directories:
            raise FileNotFoundError(2, "no such directory", path)
        for name in [n for n in self.contents if n.startswith(path + "/")]:
            del self.contents[name]
        self.directories = {n for n in self.directories if n != path and not n.startswith(path + "/")}

    def sync(self, path: str) -> None:
        self._do("sync", path)
        self._content(path)
        self.synced.append(path)

    def sync_directory(self, path: str) -> None:
        self._do("sync_directory", path)
        if path not in self.directories:
            raise FileNotFoundError(2, "no such directory", path)

    def lock(self, path: str) -> FileLock | None:
        self._do("lock", path)
        if path in self.locked:
            return None
        self.locked.add(path)
        self.contents.setdefault(path, bytearray())
        return MemoryLock(self, path)
