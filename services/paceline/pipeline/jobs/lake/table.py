"""A table that takes files and progress in one atomic commit.

Exactly once follows from three rules: progress is stored nowhere but in the table's own commits; a commit succeeds only
on the version that the batch was planned from; and a file counts only when a commit names it. So a driver that dies
between writing files and the commit leaves orphans, never rows, and two drivers cannot both commit the same offsets.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from paceline.model.errors import ErrorCode, InvalidConfigError, PacelineError

DATA_FOLDER: Final = "data"
"""Every data file lies below it, as ``data/COLUMN=VALUE/part-....parquet``."""


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """One partition of one incarnation of a topic: a re-created topic has another id and starts from its beginning."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.topic_id}/{self.partition}"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file that a task has finished."""

    path: str
    """Relative to the table, with forward slashes."""
    size_bytes: int
    rows: int
    partition: tuple[tuple[str, str], ...]
    """Partition columns and their values; they are not stored in the file."""
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The table at one version."""

    version: int
    """-1: the table does not exist yet."""
    progress: Mapping[Source, int]
    """The first offset of each source that is not in the table."""


class CommitConflictError(PacelineError):
    """Another driver has moved the progress of this table; its batch is in, ours is not."""

    code = ErrorCode.INVALID_UPDATE_VERSION
    retriable = True


class Table(Protocol):
    """What Parquet with manifests and Delta have in common."""

    @property
    def root(self) -> Path:
        """The table's directory."""

    def load(self, sources: Collection[Source]) -> Snapshot:
        """Read the newest version and the progress of these sources."""

    def commit(self, seen: Snapshot, files: Sequence[WrittenFile], progress: Mapping[Source, int]) -> bool:
        """Add the files and advance the progress in one step; return False when an earlier attempt already did.

        Args:
            seen: the version that the files were planned from.
            files: finished files below the table's directory.
            progress: new progress of the sources that moved.

        Raises:
            CommitConflictError: a source's progress is neither as planned from nor as committed now.
        """

    def live_paths(self) -> set[str]:
        """Return the paths of every file of the newest version, relative to the table."""


def already_committed(seen: Snapshot, now: Snapshot, progress: Mapping[Source, int]) -> bool:
    """Return whether a failed commit had in fact been made; False when nothing of it has and it may be tried again.

    Raises:
        CommitConflictError: another driver moved one of the sources.
    """
    if progress and all(now.progress.get(source, -1) == end for source, end in progress.items()):
        return True
    moved = [source for source in progress if now.progress.get(source) != seen.progress.get(source)]
    if moved:
        raise CommitConflictError(
            f"another driver writes to this table: {moved[0]} is at {now.progress.get(moved[0])}, this batch was "
            f"planned from {seen.progress.get(moved[0])}"
        )
    return False


def local_root(path: str) -> Path:
    """Return the directory of a table.

    Raises:
        InvalidConfigError: the path is a URL of something other than a file system.
    """
    text = path.removeprefix("file://")
    if "://" in text:
        raise InvalidConfigError(f"{path}: a table is a directory that the driver and every worker can reach")
    return Path(text).absolute()
