"""The interface through which the log accesses storage, small enough for a test disk to implement.

Paths are strings with ``/``. Every call names a file by its path; an implementation may cache open descriptors. Every
method raises ``OSError`` when storage fails (``FileNotFoundError`` when a file is missing); the caller then takes the
log directory offline. No method follows a symbolic link.
"""

import errno
from enum import Enum
from typing import Final, NamedTuple, Protocol

NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
"""Error numbers of a process or machine that has too many descriptors open; they do not indicate a storage failure."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk, or of an exhausted quota. The operation has changed nothing."""


def is_no_room(error: BaseException) -> bool:
    """Whether a file operation changed nothing because the disk is full."""
    return isinstance(error, OSError) and error.errno in NO_ROOM


class DiskSpace(NamedTuple):
    """Space of the file system that holds a path."""

    free_bytes: int
    """Bytes that this process may still write."""
    total_bytes: int
    mount_point: str = ""


class FileKind(Enum):
    """Kind of a directory entry."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"
    """Symbolic links, sockets and devices, which the log never opens."""


class DirectoryEntry(NamedTuple):
    """One name in a directory."""

    name: str
    kind: FileKind


class FileLock(Protocol):
    """An exclusive lock on a file, held until `release` or the end of the process."""

    identity: str
    """Identity of the locked file, unique on this machine and independent of its path."""

    def release(self) -> None:
        """Release the lock; a second call does nothing."""


class Files(Protocol):
    """The storage of the log. Written bytes are durable only after `sync`, names only after `sync_directory`."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def modified_ms(self, path: str) -> int:
        """Return the wall-clock time of a file's last change, in milliseconds."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by name."""

    def make_directory(self, path: str) -> None:
        """Create a directory and missing parents; an existing directory is not an error."""

    def create(self, path: str) -> None:
        """Create an empty file, or empty an existing one."""

    def append(self, path: str, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at the end of a file; create the file when it is missing.

        On a full disk (`is_no_room`) no part of ``data`` stays in the file.
        """

    def read_at(self, path: str, position: int, length: int) -> bytes:
        """Read up to ``length`` bytes from ``position``; fewer at the end of the file."""

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to ``size`` bytes."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory; a file at ``target`` is replaced atomically."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its content."""

    def sync(self, path: str) -> None:
        """Make the content of a file durable (fsync). Do not retry after a failure: the content on disk is unknown.

        The error is never one of `NO_ROOM`, which would mean that nothing has changed.
        """

    def sync_directory(self, path: str) -> None:
        """Make the creation, renaming and removal of names in a directory durable."""

    def forget(self, path: str) -> None:
        """Close the descriptors cached for files below a directory, so that its file system can be unmounted."""

    def space(self, path: str) -> DiskSpace:
        """Return the space of the file system that holds ``path``."""

    def lock(self, path: str) -> FileLock | None:
        """Acquire the exclusive lock on a file, created when missing; ``None`` when another process holds the lock."""


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
    """Replace a file so that a crash leaves either the old or the new content.

    Write a temporary file, fsync it, rename it and fsync the directory. Without ``durable`` the fsyncs are left out,
    and the guarantee covers a crash of the process but not a power loss.
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
