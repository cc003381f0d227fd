"""Both kinds of table: files and progress in one commit, conflicts found, orphans collected."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError

from paceline.model.errors import CorruptMessageError, InvalidConfigError
from paceline.pipeline.jobs.lake.delta_table import DeltaLakeTable
from paceline.pipeline.jobs.lake.orphans import collect_orphans
from paceline.pipeline.jobs.lake.parquet_files import PartitionedWriter
from paceline.pipeline.jobs.lake.parquet_table import MANIFESTS, ParquetTable, read_table
from paceline.pipeline.jobs.lake.table import CommitConflictError, Source, Table, WrittenFile, local_root

FIELDS = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
SCHEMA = pa.schema([*FIELDS, pa.field("topic", pa.string())])
A, B = Source("a", "id-a", 0), Source("b", "id-b", 3)
Open = Callable[[Path], Table]


def open_parquet(root: Path) -> Table:
    return ParquetTable(root, SCHEMA, ["topic"])


def open_delta(root: Path) -> Table:
    return DeltaLakeTable(root, SCHEMA, ["topic"])


both = pytest.mark.parametrize("open_table", [open_parquet, open_delta])


def write(root: Path, topic: str, first: int, count: int) -> list[WrittenFile]:
    writer = PartitionedWriter(root, "part-00000", FIELDS, 1 << 20, "ZSTD")
    offsets = list(range(first, first + count))
    batch = pa.RecordBatch.from_pydict({"offset": offsets, "value": [b"%d" % n for n in offsets]}, schema=FIELDS)
    writer.write((("topic", topic),), batch)
    return writer.close()


def rows(root: Path) -> list[tuple[str, int]]:
    if (root / "_delta_log").exists():
        table = deltalake.DeltaTable(str(root)).to_pyarrow_table()
    else:
        table = read_table(root).to_table()
    return sorted(zip(table.column("topic").to_pylist(), table.column("offset").to_pylist(), strict=True))


@both
def test_a_commit_adds_rows_and_progress_together(open_table: Open, tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    seen = table.load([A, B])
    assert seen.progress == {}
    assert table.commit(seen, write(root, "a", 0, 5), {A: 5})
    assert table.commit(table.load([A, B]), write(root, "b", 7, 2), {B: 9})
    assert open_table(root).load([A, B]).progress == {A: 5, B: 9}
    assert rows(root) == [("a", n) for n in range(5)] + [("b", 7), ("b", 8)]


@both
def test_files_without_a_commit_are_no_rows(open_table: Open, tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    table.commit(table.load([A]), write(root, "a", 0, 2), {A: 2})
    write(root, "a", 2, 2)
    assert len(rows(root)) == 2


@both
def test_the_second_of_two_drivers_that_planned_from_the_same_version_fails(open_table: Open, tmp_path: Path) -> None:
    root = tmp_path / "table"
    first, second = open_table(root), open_table(root)
    seen, also_seen = first.load([A]), second.load([A])
    assert first.commit(seen, write(root, "a", 0, 5), {A: 5})
    with pytest.raises(CommitConflictError, match="another driver"):
        second.commit(also_seen, write(root, "a", 0, 3), {A: 3})
    assert [offset for _, offset in rows(root)] == list(range(5))


@both
def test_a_driver_does_not_take_the_commit_of_another_driver_for_its_own(open_table: Open, tmp_path: Path) -> None:
    root = tmp_path / "table"
    first, second = open_table(root), open_table(root)
    seen, also_seen = first.load([A]), second.load([A])
    assert first.commit(seen, write(root, "a", 0, 5), {A: 5})
    with pytest.raises(CommitConflictError, match=rf"belongs to another driver, process {os.getpid()} of "):
        second.commit(also_seen, write(root, "a", 0, 5), {A: 5})
    assert len(rows(root)) == 5


def test_a_delta_commit_whose_answer_was_lost_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "table"
    table = open_delta(root)
    really = deltalake.DeltaTable.create_write_transaction

    def lose_answer(*given: Any, **named: Any) -> None:
        really(*given, **named)
        raise CommitFailedError("planned")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", lose_answer)
    assert not table.commit(table.load([A]), write(root, "a", 0, 5), {A: 5})
    assert len(rows(root)) == 5


@both
def test_drivers_of_different_topics_share_a_table(open_table: Open, tmp_path: Path) -> None:
    root = tmp_path / "table"
    first, second = open_table(root), open_table(root)
    seen, also_seen = first.load([A]), second.load([B])
    assert first.commit(seen, write(root, "a", 0, 5), {A: 5})
    assert second.commit(also_seen, write(root, "b", 0, 5), {B: 5})
    assert open_table(root).load([A, B]).progress == {A: 5, B: 5}


@both
def test_a_topic_made_again_has_its_own_progress(open_table: Open, tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    table.commit(table.load([A]), write(root, "a", 0, 5), {A: 5})
    again = Source("a", "id-a-2", 0)
    assert again not in table.load([A, again]).progress


@both
def test_orphans_are_removed_once_they_are_old_and_live_files_never(open_table: Open, tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    table.commit(table.load([A]), write(root, "a", 0, 5), {A: 5})
    (orphan,) = write(root, "a", 5, 5)
    now_s = (root / orphan.path).stat().st_mtime
    assert collect_orphans(table, 60, now_s + 59) == []
    assert collect_orphans(table, 60, now_s + 61) == [orphan.path]
    assert len(rows(root)) == 5


def test_delta_progress_survives_a_checkpoint_and_clean_up_of_the_log(tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_delta(root)
    table.commit(table.load([A]), write(root, "a", 0, 5), {A: 5})
    delta = deltalake.DeltaTable(str(root))
    delta.create_checkpoint()
    for path in (root / "_delta_log").glob("*.json"):
        path.unlink()
    assert open_delta(root).load([A]).progress == {A: 5}


def test_a_delta_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    open_delta(tmp_path / "table")
    with pytest.raises(InvalidConfigError, match="differ in value"):
        DeltaLakeTable(tmp_path / "table", pa.schema([("offset", pa.int64()), ("topic", pa.string())]), ["topic"])


def test_a_damaged_manifest_is_an_error_and_not_an_empty_table(tmp_path: Path) -> None:
    table = open_parquet(tmp_path)
    table.commit(table.load([A]), write(tmp_path, "a", 0, 5), {A: 5})
    (manifest,) = (tmp_path / MANIFESTS).glob("*.json")
    manifest.write_text(json.dumps({})[:1])
    with pytest.raises(CorruptMessageError, match="damaged"):
        table.load([A])


def test_files_roll_at_their_size_and_partitions_stay_apart(tmp_path: Path) -> None:
    writer = PartitionedWriter(tmp_path, "part-00001", FIELDS, 1, "NONE")
    for first in range(3):
        batch = pa.RecordBatch.from_pydict({"offset": [first], "value": [bytes(40 << 20)]}, schema=FIELDS)
        writer.write((("topic", "ab"[first % 2]),), batch)
    files = writer.close()
    assert [(dict(f.partition)["topic"], f.min_offset, f.max_offset, f.rows) for f in files] == [
        ("a", 0, 0, 1),
        ("b", 1, 1, 1),
        ("a", 2, 2, 1),
    ]
    assert all(pq.read_metadata(tmp_path / f.path).num_rows == f.rows for f in files)


def test_a_table_in_an_object_store_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="directory"):
        local_root("s3://bucket/table")
