"""Parquet files with manifests: one JSON file per commit, created by an atomic hard link that never overwrites.

``_paceline/00000000000000000012.json`` is version 12: the files it adds and the progress after it. `read_table` reads
the files of all manifests. The directory needs a file system with hard links, which every local file system has.
"""

import json
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from paceline.model.errors import CorruptMessageError
from paceline.pipeline.jobs.lake.table import Snapshot, Source, WrittenFile, already_committed, driver_name

MANIFESTS: Final = "_paceline"
_DIGITS: Final = 20


class ParquetTable:
    """A directory of Parquet files; see the module docstring."""

    def __init__(self, root: Path, schema: pa.Schema, partition_columns: Sequence[str]) -> None:
        self._root = root
        self._schema = schema
        self._partition_columns = tuple(partition_columns)
        self._driver = driver_name()

    @property
    def root(self) -> Path:
        return self._root

    def load(self, sources: Collection[Source]) -> Snapshot:
        """Read the latest manifest, which has the progress of every source."""
        versions = manifest_versions(self._root)
        if not versions:
            return Snapshot(-1, {})
        content = read_manifest(self._root, versions[-1])
        progress = {Source(topic, topic_id, partition): end for topic, topic_id, partition, end in content["progress"]}
        return Snapshot(versions[-1], progress)

    def commit(self, seen: Snapshot, files: Sequence[WrittenFile], progress: Mapping[Source, int]) -> bool:
        """Write the next manifest; see `Table.commit`."""
        now = seen
        while True:
            merged = {**now.progress, **progress}
            content = {
                "version": now.version + 1,
                "driver": self._driver,
                "partition_columns": list(self._partition_columns),
                "progress": [[s.topic, s.topic_id, s.partition, end] for s, end in sorted(merged.items())],
                "files": [
                    {"path": f.path, "size_bytes": f.size_bytes, "rows": f.rows, "partition": dict(f.partition),
                     "min_offset": f.min_offset, "max_offset": f.max_offset}
                    for f in files
                ],
            }  # fmt: skip
            if _put_manifest(self._root, now.version + 1, content):
                return True
            now = self.load(progress)
            if already_committed(seen, now, progress, self._driver, partial(self._committed_by, seen)):
                return False

    def _committed_by(self, seen: Snapshot, source: Source) -> str:
        key, before = [source.topic, source.topic_id, source.partition], seen.progress.get(source)
        later = (read_manifest(self._root, each) for each in manifest_versions(self._root) if each > seen.version)
        moved = (each for each in later if any(at[:3] == key and at[3] != before for at in each["progress"]))
        return str(next(moved).get("driver", ""))

    def live_paths(self) -> set[str]:
        """Return the paths of the files in all manifests."""
        return {each["path"] for each in table_files(self._root)}


def _put_manifest(root: Path, version: int, content: Mapping[str, Any]) -> bool:
    """Create the manifest of a version durably; return False when that version exists."""
    folder = root / MANIFESTS
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("w", encoding="utf-8") as out:
            json.dump(content, out)
            out.flush()
            os.fsync(out.fileno())
        os.link(temporary, _manifest_path(root, version))
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(folder)
    return True


def sync_folder(folder: Path) -> None:
    """Flush the directory entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest_path(root: Path, version: int) -> Path:
    return root / MANIFESTS / f"{version:0{_DIGITS}}.json"


def manifest_versions(root: Path) -> list[int]:
    """Return the versions of the table in order."""
    folder = root / MANIFESTS
    if not folder.is_dir():
        return []
    return sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit() and len(path.stem) == _DIGITS)


def read_manifest(root: Path, version: int) -> dict[str, Any]:
    """Return the content of a manifest.

    Raises:
        CorruptMessageError: it is not JSON. A manifest gets its name only when complete, so it was changed by hand.
    """
    path = _manifest_path(root, version)
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptMessageError(f"{path} is damaged: {error}") from error
    return content


def table_files(root: Path) -> list[dict[str, Any]]:
    """Return the file entries of every manifest, in order of commits."""
    return [each for version in manifest_versions(root) for each in read_manifest(root, version)["files"]]


_PARTITION_TYPES: Final = {"topic": pa.string(), "date": pa.date32()}


def _partitioning(root: Path) -> ds.Partitioning:
    versions = manifest_versions(root)
    names = read_manifest(root, versions[-1])["partition_columns"] if versions else []
    return ds.partitioning(pa.schema([(name, _PARTITION_TYPES[name]) for name in names]), flavor="hive")


def read_table(path: str | Path) -> ds.Dataset:
    """Return the table as a pyarrow dataset of exactly the committed files, partition columns included."""
    root = Path(path)
    paths = [str(root / each["path"]) for each in table_files(root)]
    return ds.dataset(paths, format="parquet", partitioning=_partitioning(root), partition_base_dir=str(root / "data"))
