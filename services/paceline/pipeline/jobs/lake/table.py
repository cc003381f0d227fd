"""A table that accepts files and progress in one atomic commit.

Exactly-once follows from three rules: progress is stored only in the table's commits; a commit succeeds only on the
version from which the batch was planned; and a file counts only when it is in a commit. So a driver that dies between
writing files and the commit leaves orphaned files but adds no rows, and two drivers cannot both commit the same offsets.
"""

import os
import socket
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from paceline.model.errors import ErrorCode, InvalidConfigError, PacelineError

DATA_FOLDER: Final = "data"
"""Folder of all data files, as ``data/COLUMN=VALUE/part-....parquet``."""


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A partition of a topic id: a re-created topic has another id and is read from its beginning."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.topic_id}/{self.partition}"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished Parquet file."""

    path: str
    """Relative to the table, with forward slashes."""
    size_bytes: int
    rows: int
    partition: tuple[tuple[str, str], ...]
    """Partition columns with values; they are not stored in the file."""
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The table at one version."""

    version: int
    """-1: the table does not exist yet."""
    progress: Mapping[Source, int]
    """First offset of each source that is not in the table."""


class CommitConflictError(PacelineError):
    """Another driver has committed progress to this table; its batch is in the table, this driver's is not."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class Table(Protocol):
    """Interface of Parquet tables with manifests and of Delta tables."""

    @property
    def root(self) -> Path:
        """Directory of the table."""

    def load(self, sources: Collection[Source]) -> Snapshot:
        """Read the latest version and the progress of these sources."""

    def commit(self, seen: Snapshot, files: Sequence[WrittenFile], progress: Mapping[Source, int]) -> bool:
        """Add the files and advance the progress atomically; return False if an earlier attempt of this driver has done so.

        Args:
            seen: the version from which the files were planned.
            files: finished files in the table's directory.
            progress: new progress of the sources that advanced.

        Raises:
            CommitConflictError: another driver has changed the progress of a source.
        """

    def live_paths(self) -> set[str]:
        """Return the paths of all files in the latest version, relative to the table."""


def driver_name() -> str:
    """Return a name for the driver of this process, which tables store with each commit."""
    return f"process {os.getpid()} of {socket.gethostname()} ({uuid.uuid4().hex[:8]})"


def already_committed(
    seen: Snapshot, now: Snapshot, progress: Iterable[Source], driver: str, committed_by: Callable[[Source], str]
) -> bool:
    """Return whether a commit that reported a failure has succeeded; if not, the caller may retry it.

    Args:
        seen: the version from which the batch was planned.
        now: the present version.
        progress: the sources that the commit advances.
        driver: name of this driver.
        committed_by: returns the name of the driver that has changed the progress of a source since ``seen``.

    Raises:
        CommitConflictError: another driver has changed the progress of a source.
    """
    moved = next((source for source in progress if now.progress.get(source) != seen.progress.get(source)), None)
    if moved is None:
        return False
    owner = committed_by(moved)
    if owner == driver:
        return True
    raise CommitConflictError(
        f"the table belongs to another driver, {owner or 'of an earlier version'}, which has moved {moved} to "
        f"{now.progress.get(moved)}; this driver, {driver}, ends"
    )


def local_root(path: str) -> Path:
    """Return the directory of a table.

    Raises:
        InvalidConfigError: the path is a URL with a scheme other than ``file``.
    """
    text = path.removeprefix("file://")
    if "://" in text:
        raise InvalidConfigError(f"{path}: a table is a directory that the driver and every worker can reach")
    return Path(text).absolute()
