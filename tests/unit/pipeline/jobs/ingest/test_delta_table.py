"""The Delta table of an ingest: files and progress in one commit, conflicts found; migration and compaction."""

import os
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError

from paceline.model.errors import InvalidConfigError
from paceline.pipeline.jobs.ingest.delta_table import CommitConflictError, DeltaLakeTable, Source
from paceline.pipeline.jobs.ingest.maintenance import compact, migrate
from paceline.pipeline.jobs.ingest.parquet_files import PartitionedWriter, WrittenFile

GOLDEN = Path(__file__).resolve().parents[4] / "golden" / "ingest"
"""Tables that the version before the removal of Parquet tables with manifests has written."""
FIELDS = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
A, B = Source("a", "id-a", 0), Source("b", "id-b", 3)


def open_table(root: Path) -> DeltaLakeTable:
    return DeltaLakeTable(str(root), FIELDS, ["topic"])


def write(root: Path, topic: str, first: int, count: int) -> list[WrittenFile]:
    writer = PartitionedWriter(str(root), "part-00000", FIELDS, 1 << 20, "ZSTD")
    offsets = list(range(first, first + count))
    batch = pa.RecordBatch.from_pydict({"offset": offsets, "value": [b"%d" % n for n in offsets]}, schema=FIELDS)
    writer.write((("topic", topic),), batch)
    return writer.close()


def rows(root: Path) -> list[tuple[str, int]]:
    table = deltalake.DeltaTable(str(root)).to_pyarrow_table()
    return sorted(zip(table.column("topic").to_pylist(), table.column("offset").to_pylist(), strict=True))


def test_a_commit_adds_rows_and_progress_together(tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    seen = table.load([A, B])
    assert seen.progress == {}
    assert table.commit(seen, write(root, "a", 0, 5), {A: 5})
    assert table.commit(table.load([A, B]), write(root, "b", 7, 2), {B: 9})
    assert open_table(root).load([A, B]).progress == {A: 5, B: 9}
    assert rows(root) == [("a", n) for n in range(5)] + [("b", 7), ("b", 8)]


def test_files_without_a_commit_are_no_rows(tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    table.commit(table.load([A]), write(root, "a", 0, 2), {A: 2})
    write(root, "a", 2, 2)
    assert len(rows(root)) == 2


def test_the_second_of_two_drivers_that_planned_from_the_same_version_fails(tmp_path: Path) -> None:
    root = tmp_path / "table"
    first, second = open_table(root), open_table(root)
    seen, also_seen = first.load([A]), second.load([A])
    assert first.commit(seen, write(root, "a", 0, 5), {A: 5})
    with pytest.raises(CommitConflictError, match="another driver"):
        second.commit(also_seen, write(root, "a", 0, 3), {A: 3})
    assert [offset for _, offset in rows(root)] == list(range(5))


def test_a_driver_does_not_take_the_commit_of_another_driver_for_its_own(tmp_path: Path) -> None:
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
    table = open_table(root)
    really = deltalake.DeltaTable.create_write_transaction

    def lose_answer(*given: Any, **named: Any) -> None:
        really(*given, **named)
        raise CommitFailedError("planned")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", lose_answer)
    assert not table.commit(table.load([A]), write(root, "a", 0, 5), {A: 5})
    assert len(rows(root)) == 5


def test_drivers_of_different_topics_share_a_table(tmp_path: Path) -> None:
    root = tmp_path / "table"
    first, second = open_table(root), open_table(root)
    seen, also_seen = first.load([A]), second.load([B])
    assert first.commit(seen, write(root, "a", 0, 5), {A: 5})
    assert second.commit(also_seen, write(root, "b", 0, 5), {B: 5})
    assert open_table(root).load([A, B]).progress == {A: 5, B: 5}


def test_a_topic_made_again_has_its_own_progress(tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    table.commit(table.load([A]), write(root, "a", 0, 5), {A: 5})
    again = Source("a", "id-a-2", 0)
    assert again not in table.load([A, again]).progress


def test_delta_progress_survives_a_checkpoint_and_clean_up_of_the_log(tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    table.commit(table.load([A]), write(root, "a", 0, 5), {A: 5})
    delta = deltalake.DeltaTable(str(root))
    delta.create_checkpoint()
    for path in (root / "_delta_log").glob("*.json"):
        path.unlink()
    assert open_table(root).load([A]).progress == {A: 5}


def test_a_delta_table_without_a_column_or_with_another_type_is_refused(tmp_path: Path) -> None:
    open_table(tmp_path / "table")
    for name, kind in (("value", pa.string()), ("more", pa.binary())):
        with pytest.raises(InvalidConfigError, match=f"differ in {name}"):
            DeltaLakeTable(str(tmp_path / "table"), pa.schema([("offset", pa.int64()), (name, kind)]), ["topic"])


def test_a_column_that_was_added_to_the_table_is_null_in_new_rows(tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    table.commit(table.load([A]), write(root, "a", 0, 1), {A: 1})
    deltalake.DeltaTable(str(root)).alter.add_columns(deltalake.Field("checked", "boolean"))
    # The table of an ingest that runs, and one that is opened later.
    assert table.commit(table.load([A]), write(root, "a", 1, 1), {A: 2})
    later = open_table(root)
    assert later.commit(later.load([A]), write(root, "a", 2, 1), {A: 3})
    found = deltalake.DeltaTable(str(root)).to_pyarrow_table()
    assert found.num_rows == 3 and found.column("checked").to_pylist() == [None] * 3


def test_files_roll_at_their_size_and_partitions_stay_apart(tmp_path: Path) -> None:
    writer = PartitionedWriter(str(tmp_path), "part-00001", FIELDS, 1, "NONE")
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


def test_a_task_that_failed_leaves_no_file(tmp_path: Path) -> None:
    writer = PartitionedWriter(str(tmp_path), "part-00001", FIELDS, 50 << 20, "NONE")
    for first in range(3):
        batch = pa.RecordBatch.from_pydict({"offset": [first], "value": [bytes(33 << 20)]}, schema=FIELDS)
        writer.write((("topic", "a"),), batch)
    assert len(list(tmp_path.rglob("*.parquet"))) == 2  # a finished file and an open file
    writer.discard()
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_table_with_manifests_becomes_a_delta_table_with_every_row_once_and_its_progress(tmp_path: Path) -> None:
    root = tmp_path / "table"
    shutil.copytree(GOLDEN / "parquet", root)
    (data,) = (root / "data" / "topic=t").iterdir()
    shutil.copyfile(next(data.glob("*.parquet")), data / "part-00000-of-a-batch-that-failed.parquet")
    assert migrate(root) == {"files": 2, "rows": 30}
    assert rows(root) == [("t", offset) for offset in range(30)]
    with pytest.raises(InvalidConfigError, match="no manifest"):
        migrate(root)


def test_an_interrupted_migration_is_repeated_and_adds_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "table"
    shutil.copytree(GOLDEN / "parquet", root)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", interrupt)
        migrate(root)
    migrate(root)
    assert rows(root) == [("t", offset) for offset in range(30)]


def test_compaction_keeps_rows_and_progress_and_deletes_files_of_failed_batches(tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    for first in range(0, 10, 2):
        table.commit(table.load([A]), write(root, "a", first, 2), {A: first + 2})
    write(root, "a", 10, 2)
    summary = compact(str(root), keep_hours=0).summary
    assert (summary["files_added"], summary["files_merged"], summary["files_deleted"]) == (1, 5, 6)
    assert rows(root) == [("a", n) for n in range(10)]
    assert len(list(root.rglob("*.parquet"))) == 1
    # The table object of a running ingest plans and commits on.
    assert table.load([A]).progress == {A: 10}
    assert table.commit(table.load([A]), write(root, "a", 10, 1), {A: 11})
    assert len(rows(root)) == 11


def test_a_compaction_between_plan_and_commit_of_an_ingest_does_no_harm(tmp_path: Path) -> None:
    root = tmp_path / "table"
    table = open_table(root)
    table.commit(table.load([A]), write(root, "a", 0, 2), {A: 2})
    table.commit(table.load([A]), write(root, "a", 2, 2), {A: 4})
    seen = table.load([A])
    compact(str(root), keep_hours=1)
    assert table.commit(seen, write(root, "a", 4, 2), {A: 6})
    assert rows(root) == [("a", n) for n in range(6)]


def test_only_a_delta_table_is_compacted(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="no Delta table"):
        compact(str(tmp_path), keep_hours=1)
