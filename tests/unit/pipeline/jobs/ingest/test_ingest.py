"""An ingest against served logs: what reaches the table, what reaches the dead letters, and nothing twice.

Spark is not needed for any of this; `tests/integration/test_pipeline_ingest.py` runs the same job in Spark.
"""

import dataclasses
import shutil
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import deltalake
import google_crc32c
import pytest

from paceline.model.errors import ErrorCode, InvalidConfigError, UnknownTopicOrPartitionError
from paceline.pipeline.errors import DataLossError
from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.delta_table import CommitConflictError
from paceline.pipeline.jobs.ingest.maintenance import migrate
from paceline.pipeline.jobs.ingest.rows import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from paceline.pipeline.jobs.run import JobResult
from tests.soak import kill_matrix
from tests.support.inline_spark import InlineSpark
from tests.unit.pipeline.batches import encode, simple_records, with_payload
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

GOLDEN = Path(__file__).resolve().parents[4] / "golden" / "ingest"
PARTITIONS = 3
PER_PARTITION = 1_000


def log(count: int, per_batch: int = 10) -> bytes:
    return b"".join(encode(simple_records(per_batch, at)) for at in range(0, count, per_batch))


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    parts = {("numbers", p): ServedPartition(log(PER_PARTITION), leader=1 + p % 2) for p in range(PARTITIONS)}
    with ServedCluster(parts, brokers=2) as cluster:
        yield cluster


def config(served: ServedCluster, tmp_path: Path, topic: str = "numbers", **more: Any) -> IngestConfig:
    return IngestConfig((served.bootstrap,), (topic,), str(tmp_path / "table"), **more)


def ingest(settings: IngestConfig, listener: Any = None, stop: threading.Event | None = None) -> JobResult:
    return job.run(InlineSpark(), settings, listener, stop)


def rows_of(table: str) -> list[dict[str, Any]]:
    """Return the rows in the order of their offsets."""
    found: list[dict[str, Any]] = deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def positions(table: str) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows_of(table)]


def bad(offset: int, value: bytes = b"bad") -> bytes:
    """Return a batch of one record whose timestamp Spark cannot hold; the record becomes a dead letter."""
    return record_at(MAX_TIMESTAMP_MS + 1, offset, value)


def bad_records(count: int) -> ServedPartition:
    return ServedPartition(b"".join(bad(at) for at in range(count)))


def record_at(timestamp_ms: int, offset: int, value: bytes) -> bytes:
    batch = bytearray(encode([Expected(b"k", value, offset, 1_000, 0, ())]))
    struct.pack_into(">qq", batch, 27, timestamp_ms, timestamp_ms)
    struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
    return bytes(batch)


EVERYTHING = [(p, offset) for p in range(PARTITIONS) for offset in range(PER_PARTITION)]


def test_every_record_arrives_once_over_several_batches_and_runs(served: ServedCluster, tmp_path: Path) -> None:
    settings = config(served, tmp_path, max_batch_bytes=50_000)
    first = ingest(settings)
    assert first.exit_code == 0 and first.summary["batches"] > 1 and first.summary["rows"] == len(EVERYTHING)
    assert positions(settings.table) == EVERYTHING
    assert ingest(settings).summary["rows"] == 0
    assert positions(settings.table) == EVERYTHING


def test_batches_smaller_than_a_record_batch_keep_their_size(tmp_path: Path) -> None:
    record_batch = log(200, per_batch=200)
    with ServedCluster({("t", 0): ServedPartition(record_batch)}) as served:
        settings = config(served, tmp_path, "t", max_batch_bytes=len(record_batch) // 2)
        summary = ingest(settings).summary
    assert summary["rows"] == 200 and summary["stored_bytes"] == pytest.approx(len(record_batch), abs=10)
    # A sample gives the size of the records, so each batch holds about half of the record batch.
    assert summary["batches"] <= 3


def test_the_kill_matrix_reads_every_row_of_a_table_and_its_dead_letters_in_order(tmp_path: Path) -> None:
    values = [kill_matrix.value_of(number) for number in range(20)]
    records = [record_at(1_000 if at % 5 else MAX_TIMESTAMP_MS + 1, at, value) for at, value in enumerate(values)]
    with ServedCluster({("t", 0): ServedPartition(b"".join(records))}) as served:
        settings = config(served, tmp_path, "t")
        summary = ingest(settings).summary
    assert (summary["rows"], summary["dead_letters"]) == (16, 4)
    assert kill_matrix.delta_rows(Path(settings.table)) == {0: values}


def test_a_run_ends_at_the_end_that_the_log_had_at_its_start(served: ServedCluster, tmp_path: Path) -> None:
    for partition in range(PARTITIONS):
        served.partitions["numbers", partition].high_watermark = 100

    class Grow:
        def step(self, name: str, facts: Mapping[str, Any]) -> None:
            for partition in range(PARTITIONS):
                served.partitions["numbers", partition].high_watermark = PER_PARTITION

    summary = ingest(config(served, tmp_path, max_batch_bytes=5_000), Grow()).summary
    assert summary["rows"] == 100 * PARTITIONS and summary["batches"] > 1


def test_rows_carry_what_the_records_had(tmp_path: Path) -> None:
    records = [
        Expected(b"k", b"v", 0, 1_700_000_000_123, 0, (("trace", b"\xff"), ("none", None))),
        Expected(None, None, 1, -1, 0, ()),
        Expected(b"", b"", 2, 1_700_000_000_123, 0, ()),
        Expected(b"\xff", bytes(1 << 20), 3, MAX_TIMESTAMP_MS, 0, (("big", bytes(1 << 20)),)),
    ]
    with ServedCluster({("t", 0): ServedPartition(encode(records))}) as served:
        settings = config(served, tmp_path, "t")
        ingest(settings)
        rows = rows_of(settings.table)
    assert [(row["key"], row["value"]) for row in rows] == [(each.key, each.value) for each in records]
    assert [[(h["key"], h["value"]) for h in row["headers"] or ()] for row in rows] == [
        list(r.headers) for r in records
    ]
    assert [row["date"].isoformat() for row in rows] == ["2023-11-14", "1969-12-31", "2023-11-14", "9999-12-31"]
    assert rows[0]["topic"] == "t" and rows[0]["timestamp"].isoformat() == "2023-11-14T22:13:20.123000+00:00"


@pytest.mark.parametrize(
    "timestamp_ms", [MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS + 1, 2**63 - 1, -(2**63)], ids=["low", "high", "max", "min"]
)
def test_a_timestamp_that_spark_cannot_hold_is_a_dead_letter(tmp_path: Path, timestamp_ms: int) -> None:
    log = record_at(1_000, 0, b"good") + record_at(timestamp_ms, 1, b"bad")
    with ServedCluster({("t", 0): ServedPartition(log)}) as served:
        settings = config(served, tmp_path, "t")
        summary = ingest(settings).summary
    assert summary["reasons"] == {"timestamp-out-of-range": 1} and positions(settings.table) == [(0, 0)]
    (letter,) = rows_of(settings.dead_letter_table)
    assert letter["offset"] == 1 and letter["value"] == b"bad" and "timestamp" in letter["error"]


def test_a_batch_that_cannot_be_decoded_is_one_dead_letter_with_its_bytes(tmp_path: Path) -> None:
    good = encode(simple_records(10))
    lying = bytearray(with_payload(b"\xff" * 40, 2))
    struct.pack_into(">q", lying, 0, 10)
    after = encode(simple_records(10, 12))
    with ServedCluster({("t", 0): ServedPartition(good + bytes(lying) + after)}) as served:
        settings = config(served, tmp_path, "t")
        summary = ingest(settings).summary
    assert summary["rows"] == 20 and summary["reasons"] == {"undecodable-batch": 1}
    assert [offset for _, offset in positions(settings.table)] == [*range(10), *range(12, 22)]
    (letter,) = rows_of(settings.dead_letter_table)
    assert (letter["offset"], letter["last_offset"], letter["value"]) == (10, 11, bytes(lying))


def test_dead_letters_of_a_recreated_topic_are_kept(tmp_path: Path) -> None:
    with ServedCluster({("t", 0): bad_records(10)}) as served:
        settings = config(served, tmp_path, "t")
        assert ingest(settings).summary["dead_letters"] == 10
        served.topic_ids["t"] = "another-id".ljust(22, "0")
        served.partitions["t", 0] = bad_records(4)
        assert ingest(settings).summary["dead_letters"] == 4


class DiesAfter:
    """Stands for a driver that is killed after a step."""

    def __init__(self, step: str) -> None:
        self._step = step

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        if name == self._step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["planned", "written", "dead-letters-committed", "committed"])
def test_a_driver_that_dies_after_any_step_leaves_nothing_out_and_nothing_twice(tmp_path: Path, step: str) -> None:
    records = b"".join(record_at(1_000, n, b"good") if n % 3 else bad(n) for n in range(30))
    with ServedCluster({("t", 0): ServedPartition(records)}) as served:
        settings = config(served, tmp_path, "t")
        with pytest.raises(KeyboardInterrupt):
            ingest(settings, DiesAfter(step))
        result = ingest(settings)
    assert result.exit_code == 0
    assert [offset for _, offset in positions(settings.table)] == [n for n in range(30) if n % 3]
    assert [offset for _, offset in positions(settings.dead_letter_table)] == [n for n in range(30) if n % 3 == 0]


def test_a_second_driver_names_the_driver_of_the_table_and_ends(served: ServedCluster, tmp_path: Path) -> None:
    settings = config(served, tmp_path)

    class OvertakenBy:
        def step(self, name: str, facts: Mapping[str, Any]) -> None:
            if name == "written":
                assert ingest(settings).summary["rows"] == len(EVERYTHING)

    with pytest.raises(CommitConflictError, match="belongs to another driver, process"):
        ingest(settings, OvertakenBy())
    assert positions(settings.table) == EVERYTHING


def test_a_leader_that_moves_is_followed(served: ServedCluster, tmp_path: Path) -> None:
    served.partitions["numbers", 0].errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    settings = config(served, tmp_path)
    assert ingest(settings).summary["rows"] == len(EVERYTHING)


def test_records_that_were_deleted_fail_the_run_unless_loss_is_allowed(served: ServedCluster, tmp_path: Path) -> None:
    settings = config(served, tmp_path)
    for partition in range(PARTITIONS):
        served.partitions["numbers", partition].high_watermark = 100
    ingest(settings)
    for partition in range(PARTITIONS):
        served.partitions["numbers", partition].high_watermark = PER_PARTITION
    served.partitions["numbers", 1].log_start_offset = 500
    with pytest.raises(DataLossError, match=r"numbers/1.*100 to 499"):
        ingest(settings)
    ingest(dataclasses.replace(settings, allow_data_loss=True))
    assert positions(settings.table) == [(p, n) for p, n in EVERYTHING if p != 1 or not 100 <= n < 500]


def test_a_new_partition_may_start_at_its_end(served: ServedCluster, tmp_path: Path) -> None:
    settings = config(served, tmp_path, start_at_latest=True)
    for partition in range(PARTITIONS):
        served.partitions["numbers", partition].high_watermark = 400
    ingest(settings)
    for partition in range(PARTITIONS):
        served.partitions["numbers", partition].high_watermark = PER_PARTITION
    ingest(settings)
    assert positions(settings.table) == [(p, n) for p, n in EVERYTHING if n >= 400]


def test_a_continuous_run_copies_what_arrives_and_ends_when_told(served: ServedCluster, tmp_path: Path) -> None:
    settings = config(served, tmp_path, continuous=True, interval_s=0.01)
    for partition in range(PARTITIONS):
        served.partitions["numbers", partition].high_watermark = 10
    stop = threading.Event()
    seen = []

    class Grow:
        def step(self, name: str, facts: Mapping[str, Any]) -> None:
            if name == "committed":
                seen.append(facts["total_rows"])
                for partition in range(PARTITIONS):
                    served.partitions["numbers", partition].high_watermark = PER_PARTITION
                if facts["total_rows"] == len(EVERYTHING):
                    stop.set()

    assert ingest(settings, Grow(), stop).exit_code == 0
    assert seen[0] == 10 * PARTITIONS and positions(settings.table) == EVERYTHING


def test_a_missing_topic_and_bad_settings_are_named(served: ServedCluster, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="absent"):
        ingest(config(served, tmp_path, "absent", attempts=1))
    for more, match in [
        ({"table_format": "iceberg"}, "delta, parquet"),
        ({"table_format": "parquet", "dead_letters": "elsewhere"}, "dead letters are for Delta"),
        ({"checkpoint": "elsewhere"}, "for Parquet"),
        ({"table": "s3://bucket/table", "dead_letters": "s3://bucket/table/dead"}, "separate directories"),
        ({"table_format": "parquet", "storage_options": {"a": "b"}}, "Spark's settings"),
        ({"dead_letters": str(tmp_path / "table" / "dead")}, "separate directories"),
        ({"max_batch_bytes": 0}, "max_batch_bytes"),
    ]:
        with pytest.raises(InvalidConfigError, match=match):
            ingest(dataclasses.replace(config(served, tmp_path), **more))


def test_dead_letters_written_after_the_log_was_shortened_are_kept(tmp_path: Path) -> None:
    with ServedCluster({("t", 0): bad_records(10)}) as served:
        settings = config(served, tmp_path, "t", allow_data_loss=True)
        assert ingest(settings).summary["dead_letters"] == 10
        served.partitions["t", 0] = bad_records(5)
        assert ingest(settings).summary["dead_letters"] == 0
        served.partitions["t", 0] = bad_records(8)
        assert ingest(settings).summary["dead_letters"] == 3


def test_records_written_after_the_log_was_shortened_are_copied(tmp_path: Path) -> None:
    with ServedCluster({("t", 0): ServedPartition(log(100))}) as served:
        settings = config(served, tmp_path, "t", allow_data_loss=True)
        ingest(settings)
        served.partitions["t", 0] = ServedPartition(log(50))
        assert ingest(settings).summary["rows"] == 0
        served.partitions["t", 0] = ServedPartition(log(80))
        assert ingest(settings).summary["rows"] == 30
        assert ingest(settings).summary["rows"] == 0


def test_a_topic_that_is_created_again_during_a_continuous_run_is_copied_from_its_beginning(tmp_path: Path) -> None:
    stop = threading.Event()
    totals: list[int] = []

    class Recreate:
        def step(self, name: str, facts: Mapping[str, Any]) -> None:
            if name == "committed":
                totals.append(facts["total_rows"])
                served.topic_ids["t"] = "another-id".ljust(22, "0")
                served.partitions["t", 0] = ServedPartition(log(40))
                if facts["total_rows"] == 140:
                    stop.set()

    with ServedCluster({("t", 0): ServedPartition(log(100))}) as served:
        ingest(config(served, tmp_path, "t", continuous=True, interval_s=0.01), Recreate(), stop)
    assert totals == [100, 140]


def test_a_topic_that_is_added_later_starts_at_the_start_of_its_log(served: ServedCluster, tmp_path: Path) -> None:
    settings = config(served, tmp_path)
    assert ingest(settings).summary["rows"] == len(EVERYTHING)
    served.topic_ids["late"] = "id-of-late".ljust(22, "0")
    served.partitions["late", 0] = ServedPartition(log(100), log_start_offset=30)
    settings = dataclasses.replace(settings, topics=("numbers", "late"))
    assert ingest(settings).summary["rows"] == 70


def test_tables_of_the_version_before_continue_after_migration_where_it_is_needed(tmp_path: Path) -> None:
    """Each of the two has 30 rows and a dead letter of offsets 30 and 31; the Parquet table has manifests."""
    lying = bytearray(with_payload(b"\xff" * 40, 2))
    struct.pack_into(">q", lying, 0, 30)
    data = log(30) + bytes(lying) + encode(simple_records(8, 32))
    with ServedCluster({("t", 0): ServedPartition(data)}) as served:
        for name in ("delta", "parquet"):
            for kind in (name, f"{name}_dead_letters"):
                shutil.copytree(GOLDEN / kind, tmp_path / kind)
            settings = IngestConfig((served.bootstrap,), ("t",), str(tmp_path / name))
            if name == "parquet":
                told = rf"pipeline migrate {settings.table} {settings.dead_letter_table}$"
                for table_format in ("delta", "parquet"):
                    with pytest.raises(InvalidConfigError, match=told):
                        ingest(dataclasses.replace(settings, table_format=table_format))
                migrate(Path(settings.table))
                migrate(Path(settings.dead_letter_table))
            assert ingest(settings).summary["rows"] == 8
            assert [offset for _, offset in positions(settings.table)] == [*range(30), *range(32, 40)]
            assert positions(settings.dead_letter_table) == [(0, 30)]
            assert [row["value"] for row in rows_of(settings.dead_letter_table)] == [bytes(lying)]


@pytest.mark.parametrize(("marker", "table_format"), [("_spark_metadata", "delta"), ("_delta_log", "parquet")])
def test_a_table_of_another_kind_is_refused(tmp_path: Path, marker: str, table_format: str) -> None:
    (tmp_path / "table" / marker).mkdir(parents=True)
    with pytest.raises(InvalidConfigError, match="use --format"):
        ingest(IngestConfig(("127.0.0.1:1",), ("t",), str(tmp_path / "table"), table_format))
