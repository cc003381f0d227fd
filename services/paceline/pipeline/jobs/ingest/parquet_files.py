"""Write Parquet files, split by partition values, under names that are unique per attempt.

Rows are buffered per partition so that row groups stay large; a new file starts at a size limit. Every file is durable
before it is reported, because a commit may then contain it.
"""

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from paceline.pipeline.jobs.ingest.config import is_local

DATA_FOLDER: Final = "data"
"""Folder of all data files, as ``data/COLUMN=VALUE/part-....parquet``."""
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
BUFFER_BYTES: Final = 64 * 1024 * 1024
"""Arrow bytes buffered by a writer, for all partitions together."""
MAX_OPEN_FILES: Final = 32

Partition = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished Parquet file."""

    path: str
    """Relative to the table, with forward slashes."""
    size_bytes: int
    rows: int
    partition: Partition
    """Partition columns with values; they are not stored in the file."""
    min_offset: int
    max_offset: int


class _Files:
    """Files of a table by their relative paths, in a directory or in an object store."""

    def __init__(self, table: str, storage_options: Mapping[str, str]) -> None:
        self._root = Path(table)
        self._store: fs.FileSystem | None = None
        if not is_local(table):
            from deltalake.fs import DeltaStorageHandler

            self._store = fs.PyFileSystem(DeltaStorageHandler(table, dict(storage_options)))

    def create(self, path: str) -> Any:
        if self._store is not None:
            return self._store.open_output_stream(path)
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        return (self._root / path).open("xb")

    def finish(self, sink: Any) -> None:
        """Make a file durable and close it."""
        if self._store is None:
            sink.flush()
            os.fsync(sink.fileno())
        sink.close()

    def delete(self, path: str) -> None:
        """Delete a file that no commit names; if that fails, ``compact`` deletes it later."""
        with suppress(OSError):
            if self._store is not None:
                self._store.delete_file(path)
            else:
                (self._root / path).unlink()


class _OpenFile:
    def __init__(
        self, files: _Files, partition: Partition, name: str, schema: pa.Schema, options: dict[str, Any]
    ) -> None:
        folder = "/".join([DATA_FOLDER, *(f"{column}={value}" for column, value in partition)])
        self.partition = partition
        self.path = f"{folder}/{name}"
        self._files = files
        self._sink = files.create(self.path)
        self._writer = pq.ParquetWriter(self._sink, schema, **options)
        self.rows = 0
        self.min_offset: int | None = None
        self.max_offset = -1

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.rows += table.num_rows
        for chunk in table.column("offset").chunks:
            offsets = chunk.to_numpy()
            low, high = int(offsets.min()), int(offsets.max())
            self.min_offset = low if self.min_offset is None else min(self.min_offset, low)
            self.max_offset = max(self.max_offset, high)

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def close(self) -> WrittenFile:
        self._writer.close()
        size = self.size_bytes
        self._files.finish(self._sink)
        return WrittenFile(self.path, size, self.rows, self.partition, self.min_offset or 0, self.max_offset)

    def discard(self) -> None:
        with suppress(OSError):  # the disk may be full
            self._writer.close()
            self._sink.close()
        self._files.delete(self.path)


class PartitionedWriter:
    """Writes the files of a task attempt."""

    def __init__(
        self,
        table: str,
        prefix: str,
        schema: pa.Schema,
        target_file_bytes: int,
        compression: str,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """``schema`` is the schema of the files, without partition columns; it must have a column ``offset``."""
        self._files = _Files(table, storage_options or {})
        self._prefix = prefix
        self._schema = schema
        self._target_file_bytes = target_file_bytes
        self._options = {
            "compression": compression,
            "use_dictionary": False,
            "write_statistics": [name for name in ("partition", "offset", "timestamp") if name in schema.names],
            "store_schema": False,
        }
        self._buffers: dict[Partition, list[pa.RecordBatch]] = {}
        self._buffered: dict[Partition, int] = {}
        self._open: dict[Partition, _OpenFile] = {}
        self._written: list[WrittenFile] = []

    def write(self, partition: Partition, batch: pa.RecordBatch) -> None:
        """Add rows of one partition."""
        if not batch.num_rows:
            return
        self._buffers.setdefault(partition, []).append(batch)
        self._buffered[partition] = self._buffered.get(partition, 0) + batch.nbytes
        if self._buffered[partition] >= ROW_GROUP_BYTES:
            self._flush(partition)
        elif sum(self._buffered.values()) > BUFFER_BYTES:
            self._flush(max(self._buffered, key=lambda each: self._buffered[each]))

    def close(self) -> list[WrittenFile]:
        """Finish and return all files."""
        for partition in list(self._buffers):
            self._flush(partition)
        for partition in list(self._open):
            self._close(partition)
        return self._written

    def discard(self) -> None:
        """Remove all files after an error: no commit will contain them."""
        for file in self._open.values():
            file.discard()
        for written in self._written:
            self._files.delete(written.path)

    def _flush(self, partition: Partition) -> None:
        table = pa.Table.from_batches(self._buffers.pop(partition), schema=self._schema)
        del self._buffered[partition]
        file = self._open.get(partition)
        if file is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            # The unique part separates attempts of the same task, and drivers that run concurrently.
            name = f"{self._prefix}-{uuid.uuid4().hex}.parquet"
            file = self._open[partition] = _OpenFile(self._files, partition, name, self._schema, self._options)
        file.write(table)
        if file.size_bytes >= self._target_file_bytes:
            self._close(partition)

    def _close(self, partition: Partition) -> None:
        self._written.append(self._open.pop(partition).close())


def split_rows(keys: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return (key, row numbers) for every distinct key of an integer array; row numbers are None for a single key."""
    numbers = np.asarray(keys)
    if not len(numbers):
        return []
    if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        return [(numbers[0], None)]
    return [(key, np.flatnonzero(numbers == key)) for key in np.unique(numbers)]
