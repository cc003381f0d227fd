"""The Delta table of an ingest, through delta-rs. Progress is an application transaction per source.

Exactly-once follows from three rules: progress is stored only in the table's commits; a commit succeeds only on the
version from which the batch was planned; and a file counts only when it is in a commit. So a driver that dies between
writing files and the commit adds no rows, and two drivers cannot both commit the same offsets.

delta-rs accepts the same application transaction twice. Its retries are therefore switched off: a commit fails when
the table has changed since it was loaded, and `DeltaLakeTable.commit` then compares the progress.
"""

import json
import os
import socket
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from paceline.model.errors import ErrorCode, InvalidConfigError, PacelineError
from paceline.pipeline.jobs.ingest.config import is_local
from paceline.pipeline.jobs.ingest.parquet_files import WrittenFile

APP_ID_PREFIX: Final = "paceline/"
PROGRESS: Final = "paceline.progress"
DRIVER: Final = "paceline.driver"
"""Names in the metadata of a commit."""
_PARTITION_TYPES: Final = {"topic": pa.string(), "date": pa.date32()}


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A partition of a topic id: a re-created topic has another id and is read from its beginning."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.topic_id}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The table at one version."""

    version: int
    progress: Mapping[Source, int]
    """First offset of each source that is not in the table."""


class CommitConflictError(PacelineError):
    """Another driver has committed progress to this table; its batch is in the table, this driver's is not."""

    code = ErrorCode.INVALID_UPDATE_VERSION


class DeltaLakeTable:
    """A Delta table in a directory or in an object store, where a commit is a put if absent."""

    def __init__(
        self,
        table: str,
        fields: pa.Schema,
        partition_columns: Sequence[str],
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Open or create the table; ``fields`` are the columns of its files, without the partition columns.

        Raises:
            InvalidConfigError: the table has other columns.
        """
        import deltalake

        self._driver = f"process {os.getpid()} of {socket.gethostname()} ({uuid.uuid4().hex[:8]})"
        self._partition_columns = list(partition_columns)
        if is_local(table):
            Path(table).mkdir(parents=True, exist_ok=True)
        options = dict(storage_options or {})
        types = [(name, _PARTITION_TYPES[name]) for name in partition_columns]
        wanted = deltalake.Schema.from_arrow(pa.schema([*fields, *types]))
        deltalake.DeltaTable.create(
            table, wanted, mode="ignore", partition_by=self._partition_columns, storage_options=options
        )
        self._table = deltalake.DeltaTable(table, storage_options=options)
        _check_schema(self._table, wanted, self._partition_columns)

    def load(self, sources: Collection[Source]) -> Snapshot:
        """Read the latest version and the progress of these sources."""
        self._table.update_incremental()
        found = {source: self._table.transaction_version(f"{APP_ID_PREFIX}{source}") for source in sources}
        return Snapshot(self._table.version(), {source: int(end) for source, end in found.items() if end is not None})

    def commit(self, seen: Snapshot, files: Sequence[WrittenFile], progress: Mapping[Source, int]) -> bool:
        """Add the files and advance the progress atomically; return False if an earlier attempt has done so.

        Args:
            seen: the version from which the files were planned.
            files: finished files of the table.
            progress: new progress of the sources that advanced.

        Raises:
            CommitConflictError: another driver has changed the progress of a source.
        """
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        now_ms = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(f.path, f.size_bytes, dict(f.partition), now_ms, True, _stats(f)) for f in files
        ]
        properties = CommitProperties(
            custom_metadata={
                PROGRESS: json.dumps({str(s): end for s, end in sorted(progress.items())}),
                DRIVER: self._driver,
            },
            max_commit_retries=0,
            app_transactions=[Transaction(f"{APP_ID_PREFIX}{s}", end, now_ms) for s, end in sorted(progress.items())],
        )
        while (before := self._table.version()) == seen.version or not self._already_committed(seen, progress):
            try:
                self._table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=self._table.schema(),
                    partition_by=self._partition_columns,
                    commit_properties=properties,
                )
                return True
            except CommitFailedError:
                # The version exists: from another writer, or from this commit, whose response was lost.
                self._table.update_incremental()
                if self._table.version() == before:
                    raise
        return False

    def _already_committed(self, seen: Snapshot, progress: Collection[Source]) -> bool:
        """Return whether a commit that reported a failure has succeeded; if not, the caller may retry it.

        Raises:
            CommitConflictError: another driver has changed the progress of a source.
        """
        now = self.load(progress).progress
        moved = next((source for source in progress if now.get(source) != seen.progress.get(source)), None)
        if moved is None:
            return False
        owner = self._committed_by(moved)
        if owner == self._driver:
            return True
        raise CommitConflictError(
            f"the table belongs to another driver, {owner or 'of an earlier version'}, which has moved {moved} to "
            f"{now.get(moved)}; this driver, {self._driver}, ends"
        )

    def _committed_by(self, source: Source) -> str:
        """Return the driver of the last commit that has changed the progress of a source."""
        moved = (each for each in self._table.history() if str(source) in json.loads(each.get(PROGRESS, "{}")))
        return str(next(moved, {}).get(DRIVER, ""))


def _stats(file: WrittenFile) -> str:
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {"offset": file.min_offset},
            "maxValues": {"offset": file.max_offset},
            "nullCount": {"offset": 0},
        }
    )


def _check_schema(table: Any, wanted: Any, partition_columns: Sequence[str]) -> None:
    there = {field.name: field.type for field in table.schema().fields}
    asked = {field.name: field.type for field in wanted.fields}
    # A column that was added to the table is null in the rows of an ingest.
    if odd := sorted(name for name in asked if there.get(name) != asked[name]):
        raise InvalidConfigError(
            f"{table.table_uri} has other columns than this job writes; they differ in {', '.join(odd)}. Use another "
            "directory; a query with from_json parses values (docs/spark.md)"
        )
    if list(table.metadata().partition_columns) != list(partition_columns):
        raise InvalidConfigError(f"{table.table_uri} is partitioned by {table.metadata().partition_columns}")
