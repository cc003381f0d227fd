"""The only way the log touches storage: a small file interface that a test disk can implement.

Paths are strings with ``/``. A file is named by its path in every call; implementations may keep descriptors open
behind the scenes. Every method raises ``OSError`` (``FileNotFoundError`` where a file is missing) when storage
fails; the caller turns that into a failed log directory. No method follows a symbolic link.
"""

import errno
from enum import Enum
from typing import Final, NamedTuple, Protocol

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or a machine, that has too many files and connections open: its storage is well."""


class FileKind(Enum):
    """Kind of a directory entry."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"
    """Symbolic links, sockets, devices: never opened by the log."""


class DirectoryEntry(NamedTuple):
    """One name in a directory."""

    name: str
    kind: FileKind


class FileLock(Protocol):
    """An exclusive lock on a file, held until released or until the process ends."""

    identity: str
    """Identity of the locked file, unique on this machine and independent of its path."""

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""


class Files(Protocol):
    """Storage as the log sees it. Written bytes are durable only after `sync`, names only after `sync_directory`."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""

    def size(self, path: str) -> int:
        """Size of a file in bytes."""

    def modified_ms(self, path: str) -> int:
        """Time of the last change, wall clock, milliseconds."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Names in a directory, sorted."""

    def make_directory(self, path: str) -> None:
        """Create a directory and missing parents; an existing one is fine."""

    def create(self, path: str) -> None:
        """Create an empty file, or empty an existing one."""

    def append(self, path: str, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at the end of a file, creating it when missing."""

    def read_at(self, path: str, position: int, length: int) -> bytes:
        """Read up to ``length`` bytes from ``position``; fewer at the end of the file."""

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to ``size`` bytes."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; a file at ``target`` is replaced in one step."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all it contains."""

    def sync(self, path: str) -> None:
        """Make the content of a file durable (fsync). After a failure the content is unknown: do not try again."""

    def sync_directory(self, path: str) -> None:
        """Make names created, renamed or removed in a directory durable."""

    def lock(self, path: str) -> FileLock | None:
        """Take the exclusive lock on a file, creating it when missing; ``None`` when another process holds it."""


def join(directory: str, name: str) -> str:
    """Return the path of ``name`` inside ``directory``."""
    return f"{directory}/{name}"


def parent(path: str) -> str:
    """Return the directory part of a path."""
    return path.rpartition("/")[0] or "/"


def read_all(files: Files, path: str) -> bytes:
    """Return the whole content of a file."""
    return files.read_at(path, 0, files.size(path))


def write_atomically(files: Files, path: str, data: bytes, *, durable: bool = True) -> None:
    """Replace a file so that a crash leaves the old content or the new one: write aside, fsync, rename, fsync names.

    Without ``durable`` this holds for a crash of the process only.
    Source: docs/protocol/log-format.md#text-checkpoints; KAFKA-16541 for the order.
    """
    temporary = path + ".tmp"
    files.create(temporary)
    files.append(temporary, data)
    if durable:
        files.sync(temporary)
    files.rename(temporary, path)
    if durable:
        files.sync_directory(parent(path))
