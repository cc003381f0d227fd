"""A disk that keeps synced data and may lose the rest.

Each file has a content that the process sees and a content that is durable. A process crash loses no data, because the
page cache survives. A power loss keeps, per file, the durable content and a random part of the later writes, maybe with
a torn last block; of the names created, renamed or removed since the last sync of their directory, it keeps a random
prefix in order.
"""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.log.files import DirectoryEntry, DiskSpace, FileKind
from paceline.log.segment_names import CLEANED_SUFFIX

_BLOCK = 512
_NAME_BYTES = 64
"""Bytes that a file without content takes on a full disk."""


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    modified_ms: int = 0
    locked: bool = False


_DIRECTORY = _File()
"""Stands for a directory in the changes of a rename: after a power loss it has either its old or its new name."""


class ProcessKilled(BaseException):
    """The process died during a change of its files."""


class _Lock:
    def __init__(self, file: _File, identity: str) -> None:
        self._file = file
        self.identity = identity

    def release(self) -> None:
        self._file.locked = False


class SimulatedDisk:
    """Implements `paceline.log.files.Files` for one machine; survives its processes."""

    def __init__(self, wall_ms: Callable[[], int], chance: random.Random) -> None:
        self._wall_ms = wall_ms
        self._chance = chance
        self._files: dict[str, _File] = {}
        self._directories: set[str] = {"/"}
        self._durable_names: dict[str, _File] = {}
        self._durable_directories: set[str] = {"/"}
        self._pending_names: list[tuple[str, dict[str, _File | None]]] = []
        """Name changes since they were last made durable, in order: directory, and file by name (None: removed)."""
        self.watcher: object = None
        """Receives the events of the logs on this disk; see `observed_log`."""
        self.fail_next_sync = False
        self.fail_next_write = False
        self.lost_bytes = 0
        self.capacity_bytes: int | None = None
        """Bytes that the files may have together; None while the disk has room for all."""
        self.refused_writes = 0
        self.steps_until_death: int | None = None
        """Number of file changes until the process dies, counted from the next of `counts_from`; None: it lives on."""
        self.counts_from = CLEANED_SUFFIX
        """Part of the path of the first change that is counted."""
        self._is_counting = False

    def _step(self, path: str) -> None:
        """Count a file change; kill the process when the limit is reached."""
        if self.steps_until_death is None:
            return
        self._is_counting = self._is_counting or self.counts_from in path
        if self._is_counting:
            if not self.steps_until_death:
                raise ProcessKilled
            self.steps_until_death -= 1

    def disarm(self) -> None:
        """Kill no more processes."""
        self.steps_until_death = None
        self._is_counting = False

    # --- Files -----------------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ms

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        prefix = path.rstrip("/") + "/"
        found: dict[str, FileKind] = {}
        for name in self._files:
            if name.startswith(prefix) and "/" not in name[len(prefix) :]:
                found[name[len(prefix) :]] = FileKind.FILE
        for name in self._directories:
            if name.startswith(prefix) and name != path and "/" not in name[len(prefix) :]:
                found[name[len(prefix) :]] = FileKind.DIRECTORY
        return [DirectoryEntry(name, found[name]) for name in sorted(found)]

    def make_directory(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            # A new directory is durable at once: the log does not rely on the loss of a directory.
            self._directories.add("/" + "/".join(parts[:depth]))
            self._durable_directories.add("/" + "/".join(parts[:depth]))

    def space(self, path: str) -> DiskSpace:
        if self.capacity_bytes is None:
            return DiskSpace(1 << 40, 1 << 41)
        return DiskSpace(max(0, self.capacity_bytes - self.used_bytes), self.capacity_bytes, "/")

    def forget(self, path: str) -> None:
        pass

    @property
    def used_bytes(self) -> int:
        """Bytes of all files and their names."""
        return sum(_NAME_BYTES + len(file.data) for file in self._files.values())

    def _need_room(self, path: str, size: int) -> None:
        if self.capacity_bytes is not None and size and self.used_bytes + size > self.capacity_bytes:
            self.refused_writes += 1
            raise OSError(errno.ENOSPC, "no space left on device", path)

    def create(self, path: str) -> None:
        self._step(path)
        self._need_directory(path)
        self._need_room(path, 0 if path in self._files else _NAME_BYTES)
        if path in self._files:
            file = self._files[path]
            file.data = bytearray()
        else:
            file = self._files[path] = _File()
            self._changed({path: file})
        file.modified_ms = self._wall_ms()

    def append(self, path: str, data: bytes | bytearray | memoryview) -> None:
        self._step(path)
        if path not in self._files:
            self.create(path)
        file = self._files[path]
        if self.fail_next_write:
            self.fail_next_write = False
            file.data += data[: self._chance.randint(0, len(data))]
            raise OSError(errno.EIO, "input/output error", path)
        self._need_room(path, len(data))
        file.data += data
        file.modified_ms = self._wall_ms()

    def read_at(self, path: str, position: int, length: int) -> bytes:
        return bytes(self._file(path).data[position : position + length])

    def truncate(self, path: str, size: int) -> None:
        self._step(path)
        file = self._file(path)
        del file.data[size:]
        file.modified_ms = self._wall_ms()

    def rename(self, source: str, target: str) -> None:
        self._step(source)
        if source in self._files:
            file = self._files.pop(source)
            self._files[target] = file
            self._changed({source: None, target: file})
            return
        if source not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._forget_pending(source)
        removed = self._removed_below(source)
        moved: dict[str, _File | None] = {}
        for name in sorted(self._files):
            if name.startswith(source + "/"):
                file = self._files.pop(name)
                self._files[target + name[len(source) :]] = file
                moved[name] = None
                moved[target + name[len(source) :]] = file
        for name in sorted(self._directories):
            if name == source or name.startswith(source + "/"):
                self._directories.discard(name)
                self._directories.add(target + name[len(source) :])
                moved[name] = None
                moved[target + name[len(source) :]] = _DIRECTORY
        for name, file in removed.items():
            moved[name] = None
            moved[target + name[len(source) :]] = file
        self._changed(moved, directory=target)
        for name in removed:
            self._changed({target + name[len(source) :]: None})

    def _removed_below(self, path: str) -> dict[str, _File]:
        """Return names below a directory that were removed, but not durably: they move and disappear with it."""
        return {
            name: file
            for name, file in sorted(self._durable_names.items())
            if name.startswith(path + "/") and name not in self._files
        }

    def remove(self, path: str) -> None:
        self._step(path)
        self._file(path)
        del self._files[path]
        self._changed({path: None})

    def _forget_pending(self, path: str) -> None:
        """Drop name changes below a removed directory, because a new directory at that path does not have them."""
        self._pending_names = [
            (directory, changes)
            for directory, changes in self._pending_names
            if directory != path and not directory.startswith(path + "/")
        ]

    def remove_tree(self, path: str) -> None:
        self._step(path)
        self._forget_pending(path)
        gone: dict[str, _File | None] = dict.fromkeys(self._removed_below(path))
        for name in sorted(self._files):
            if name.startswith(path + "/"):
                del self._files[name]
                gone[name] = None
        for name in sorted(self._directories):
            if name == path or name.startswith(path + "/"):
                self._directories.discard(name)
                self._durable_directories.discard(name)
        self._changed(gone, directory=path)

    def sync(self, path: str) -> None:
        self._step(path)
        file = self._file(path)
        if self.fail_next_sync:
            self.fail_next_sync = False
            raise OSError(errno.EIO, "input/output error", path)
        file.durable = bytes(file.data)

    def sync_directory(self, path: str) -> None:
        self._step(path)
        kept = []
        for directory, changes in self._pending_names:
            # The sync of a renamed directory also makes the rename durable, as the journal of ext4 does.
            if directory == path or changes.get(path) is _DIRECTORY:
                self._apply(changes)
            else:
                kept.append((directory, changes))
        self._pending_names = kept

    def lock(self, path: str) -> _Lock | None:
        if path not in self._files:
            self.create(path)
        file = self._files[path]
        if file.locked:
            return None
        file.locked = True
        return _Lock(file, path)

    # --- faults ----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults of the disk."""
        self.fail_next_sync = self.fail_next_write = False
        self.capacity_bytes = None

    def garble(self, path: str) -> None:
        """Replace the content of a file: by nothing, its first half, its content with extra bytes, or random bytes."""
        file = self._file(path)
        data = bytes(file.data)
        noise = bytes(self._chance.randrange(256) for _ in range(40))
        garbled = self._chance.choice((b"", data[: len(data) // 2], data + noise, noise))
        file.data, file.durable = bytearray(garbled), garbled

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        return sorted(self._files)

    def folders(self) -> list[str]:
        """Return the paths of all directories, sorted."""
        return sorted(self._directories)

    def crash_process(self) -> None:
        """Kill the process; the kernel keeps every byte and releases its locks."""
        for file in self._files.values():
            file.locked = False

    def flip_byte(self, path: str, position: int, mask: int = 0x40) -> None:
        """Change one byte in place, durably; only a read detects it."""
        file = self._file(path)
        file.data[position] ^= mask
        if position < len(file.durable):
            durable = bytearray(file.durable)
            durable[position] = file.data[position]
            file.durable = bytes(durable)

    def vanish(self, path: str) -> None:
        """Remove a file durably, as an operator's mistake would."""
        del self._files[path]
        self._durable_names.pop(path, None)
        for _, changes in self._pending_names:
            changes.pop(path, None)  # a loss of power would apply the creation or rename and restore the file

    def lose_power(self) -> None:
        """Lose a random part of the unsynced data and of the unsynced names."""
        survivors = self._chance.randint(0, len(self._pending_names))
        for _, changes in self._pending_names[:survivors]:
            self._apply(changes)
        self._pending_names = []
        self._files = dict(self._durable_names)
        self._directories = set(self._durable_directories)
        for path in sorted(self._files):
            file = self._files[path]
            file.locked = False
            file.data = bytearray(self._after_power_loss(bytes(file.data), file.durable))
            file.durable = bytes(file.data)

    def _after_power_loss(self, written: bytes, durable: bytes) -> bytes:
        if not written.startswith(durable):
            kept = written if self._chance.random() < 0.5 else durable
            self.lost_bytes += max(len(written) - len(kept), 0)
            return kept
        unsynced = len(written) - len(durable)
        if not unsynced:
            return durable
        kept_bytes = self._chance.choice([0, unsynced, self._chance.randint(0, unsynced)])
        self.lost_bytes += unsynced - kept_bytes
        kept = written[: len(durable) + kept_bytes]
        torn = min(kept_bytes, _BLOCK)
        if torn and self._chance.random() < 0.3:
            kept = kept[:-torn] + bytes(torn)
        return kept

    def _apply(self, changes: dict[str, _File | None]) -> None:
        for name, file in changes.items():
            if file is None:
                self._durable_names.pop(name, None)
                if name not in self._directories:
                    self._durable_directories.discard(name)
            elif file is _DIRECTORY:
                self._durable_directories.add(name)
            else:
                self._durable_names[name] = file

    def _changed(self, changes: dict[str, _File | None], directory: str | None = None) -> None:
        if changes:
            where = directory or next(reversed(changes))
            self._pending_names.append((where.rpartition("/")[0] or "/", changes))

    def _file(self, path: str) -> _File:
        file = self._files.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return file

    def _need_directory(self, path: str) -> None:
        folder = path.rpartition("/")[0] or "/"
        if folder not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", folder)
