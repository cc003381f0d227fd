"""Commands on the Delta tables of an ingest: make one of a Parquet table of an earlier version, and compact one."""

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from paceline.model.errors import InvalidConfigError
from paceline.pipeline.jobs.ingest.config import MANIFESTS
from paceline.pipeline.jobs.ingest.delta_table import DeltaLakeTable, Source
from paceline.pipeline.jobs.ingest.parquet_files import WrittenFile
from paceline.pipeline.jobs.ingest.rows import table_fields
from paceline.pipeline.jobs.run import ExitCode, JobResult


def migrate(root: Path) -> dict[str, int]:
    """Commit files and progress of a Parquet table with manifests to a Delta table in its directory.

    No file is copied, and files in no manifest stay out of the table. A migration that was interrupted is repeated.
    Returns the numbers of files and rows.

    Raises:
        InvalidConfigError: the directory has no manifests.
    """
    folder = root / MANIFESTS
    manifests = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("[0-9]*.json"))]
    if not manifests:
        raise InvalidConfigError(f"{root} has no Parquet table of an earlier version: there is no manifest in {folder}")
    progress = {Source(topic, topic_id, number): end for topic, topic_id, number, end in manifests[-1]["progress"]}
    files = [
        WrittenFile(**{**each, "partition": tuple(each["partition"].items())})
        for manifest in manifests
        for each in manifest["files"]
    ]
    fields = pq.read_schema(root / files[0].path) if files else table_fields(include_headers=True)
    columns = manifests[-1]["partition_columns"]
    table = DeltaLakeTable(str(root), fields, columns)
    # Delta counts a path once, so the repetition of an interrupted migration adds no row.
    table.commit(table.load(progress), files, progress)
    folder.rename(root / f"{MANIFESTS}_migrated")
    return {"files": len(files), "rows": sum(each.rows for each in files)}


def compact(path: str, keep_hours: float, storage_options: Mapping[str, str] | None = None) -> JobResult:
    """Merge small files of a Delta table, then delete files that are in no version younger than ``keep_hours``.

    The progress of an ingest is kept, and an ingest may run meanwhile. Files of batches that failed are deleted, too.

    Raises:
        InvalidConfigError: there is no Delta table.
    """
    import deltalake

    options = dict(storage_options or {})
    if not deltalake.DeltaTable.is_deltatable(path, storage_options=options):
        raise InvalidConfigError(f"{path} has no Delta table")
    table = deltalake.DeltaTable(path, storage_options=options)
    merged = table.optimize.compact()
    deleted = table.vacuum(int(keep_hours), dry_run=False, enforce_retention_duration=False, full=True)
    counts = {"files_added": merged["numFilesAdded"], "files_merged": merged["numFilesRemoved"]}
    return JobResult(ExitCode.OK, {"table": path, **counts, "files_deleted": len(deleted)})
