"""Delta tables through delta-rs. Progress is an application transaction per source, which Delta's checkpoints retain.

delta-rs accepts the same application transaction twice. Its retries are therefore switched off: a commit fails when
the table has changed since it was loaded, and `DeltaLakeTable.commit` then compares the progress.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from paceline.model.errors import InvalidConfigError
from paceline.pipeline.jobs.lake.table import Snapshot, Source, WrittenFile, already_committed, driver_name

APP_ID_PREFIX: Final = "paceline/"
PROGRESS: Final = "paceline.progress"
DRIVER: Final = "paceline.driver"
"""Names in the metadata of a commit."""


class DeltaLakeTable:
    """A Delta table in a directory."""

    def __init__(self, root: Path, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        """Open or create the table.

        Raises:
            InvalidConfigError: the package ``deltalake`` is missing, or the table has other columns.
        """
        try:
            import deltalake
        except ImportError as error:
            raise InvalidConfigError(
                "Delta tables need the package deltalake: pip install 'paceline[delta]'"
            ) from error
        self._root = root
        self._driver = driver_name()
        self._partition_columns = list(partition_columns)
        root.mkdir(parents=True, exist_ok=True)
        wanted = deltalake.Schema.from_arrow(schema)
        deltalake.DeltaTable.create(str(root), wanted, mode="ignore", partition_by=self._partition_columns)
        self._table = deltalake.DeltaTable(str(root))
        _check_schema(self._table, wanted, self._partition_columns)

    @property
    def root(self) -> Path:
        return self._root

    def load(self, sources: Collection[Source]) -> Snapshot:
        """Read the latest version and the progress of these sources."""
        self._table.update_incremental()
        found = {source: self._table.transaction_version(f"{APP_ID_PREFIX}{source}") for source in sources}
        return Snapshot(self._table.version(), {source: int(end) for source, end in found.items() if end is not None})

    def commit(self, seen: Snapshot, files: Sequence[WrittenFile], progress: Mapping[Source, int]) -> bool:
        """Commit one Delta version; see `Table.commit`."""
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
        if self._table.version() != seen.version and self._already_committed(seen, progress):
            return False
        while True:
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
                before = self._table.version()
                if self._already_committed(seen, progress):
                    return False
                if self._table.version() == before:
                    raise

    def _already_committed(self, seen: Snapshot, progress: Collection[Source]) -> bool:
        return already_committed(seen, self.load(progress), progress, self._driver, self._committed_by)

    def _committed_by(self, source: Source) -> str:
        """Return the driver of the last commit that has changed the progress of a source."""
        moved = (each for each in self._table.history() if str(source) in json.loads(each.get(PROGRESS, "{}")))
        return str(next(moved, {}).get(DRIVER, ""))

    def live_paths(self) -> set[str]:
        """Return the paths of the files in the latest version."""
        self._table.update_incremental()
        actions: Any = pa.table(self._table.get_add_actions(flatten=True))
        return set(actions.column("path").to_pylist())


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
    if there != asked:
        odd = sorted(name for name in there.keys() | asked.keys() if there.get(name) != asked.get(name))
        raise InvalidConfigError(
            f"{table.table_uri} has other columns than this job writes; they differ in {', '.join(odd)}. Use another "
            "directory, or the same value format and columns as before"
        )
    if list(table.metadata().partition_columns) != list(partition_columns):
        raise InvalidConfigError(f"{table.table_uri} is partitioned by {table.metadata().partition_columns}")
