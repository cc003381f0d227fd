"""An ingest against served logs: what reaches the table, what reaches the dead letters, and nothing twice.

Spark is not needed for any of this; `tests/integration/test_pipeline_ingest.py` runs the same job in Spark.
"""

import dataclasses
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from paceline.model.errors import ErrorCode, InvalidConfigError, UnknownTopicOrPartitionError
from paceline.pipeline.errors import DataLossError
from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.batches import LogEnds, PlannedRange, plan_batch
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.rows import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from paceline.pipeline.jobs.lake.parquet_table import read_table
from paceline.pipeline.jobs.lake.table import CommitConflictError, Source
from paceline.pipeline.jobs.run import JobResult
from tests.soak import kill_matrix
from tests.support.inline_spark import InlineSpark
from tests.unit.pipeline.batches import encode, simple_records, with_payload
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

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


def positions(settings: IngestConfig) -> list[tuple[int, int]]:
    if settings.table_format == "delta":
        import deltalake

        table = deltalake.DeltaTable(settings.table).to_pyarrow_table()
    else:
        table = read_table(settings.table).to_table()
    return sorted(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))


def dead_letters(settings: IngestConfig) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(settings.dead_letter_table).to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


EVERYTHING = [(p, offset) for p in range(PARTITIONS) for offset in range(PER_PARTITION)]


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_every_record_arrives_once_over_several_batches_and_runs(
    served: ServedCluster, tmp_path: Path, table_format: str
) -> None:
    settings = config(served, tmp_path, table_format=table_format, max_batch_bytes=200_000)
    first = ingest(settings)
    assert first.exit_code == 0 and first.summary["batches"] > 1 and first.summary["rows"] == len(EVERYTHING)
    assert positions(settings) == EVERYTHING
    assert ingest(settings).summary["rows"] == 0
    assert positions(settings) == EVERYTHING


def test_batches_smaller_than_a_record_batch_keep_their_size(tmp_path: Path) -> None:
    record_batch = log(200, per_batch=200)
    with ServedCluster({("t", 0): ServedPartition(record_batch)}) as served:
        settings = config(served, tmp_path, "t", max_batch_bytes=len(record_batch) // 2)
        summary = ingest(settings).summary
    assert summary["rows"] == 200 and summary["stored_bytes"] == pytest.approx(len(record_batch), abs=10)
    # The first batch assumes a size of the records; the others hold half of the record batch.
    assert summary["batches"] <= 4


def test_the_kill_matrix_reads_every_row_of_a_table_and_its_dead_letters_in_order(tmp_path: Path) -> None:
    values = [kill_matrix.value_of("ingest", number) for number in range(20)]
    records = [Expected(None, value, at, 1_700_000_000_000, 0, ()) for at, value in enumerate(values)]
    with ServedCluster({("t", 0): ServedPartition(encode(records))}) as served:
        settings = config(served, tmp_path, "t", value_format="text")
        summary = ingest(settings).summary
    assert (summary["rows"], summary["dead_letters"]) == (19, 1)
    assert kill_matrix.table_rows(Path(settings.table)) == {0: values}


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
        rows = sorted(read_table(settings.table).to_table().to_pylist(), key=lambda row: row["offset"])
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
    good = encode([Expected(b"k", b"good", 0, 1_000, 0, ())])
    # Length 8, no attributes, deltas 0, key null, value "bad", no headers.
    bad = bytearray(with_payload(b"\x12\x00\x00\x00\x01\x06bad\x00", 1))
    struct.pack_into(">qq", bad, 27, timestamp_ms, timestamp_ms)
    struct.pack_into(">I", bad, 17, google_crc32c.value(bytes(bad[21:])))
    struct.pack_into(">q", bad, 0, 1)
    with ServedCluster({("t", 0): ServedPartition(good + bytes(bad))}) as served:
        settings = config(served, tmp_path, "t")
        summary = ingest(settings).summary
    assert summary["reasons"] == {"timestamp-out-of-range": 1} and positions(settings) == [(0, 0)]
    (letter,) = dead_letters(settings)
    assert letter["offset"] == 1 and letter["value"] == b"bad"


def test_a_batch_that_cannot_be_decoded_is_one_dead_letter_with_its_bytes(tmp_path: Path) -> None:
    good = encode(simple_records(10))
    lying = bytearray(with_payload(b"\xff" * 40, 2))
    struct.pack_into(">q", lying, 0, 10)
    after = encode(simple_records(10, 12))
    with ServedCluster({("t", 0): ServedPartition(good + bytes(lying) + after)}) as served:
        settings = config(served, tmp_path, "t")
        summary = ingest(settings).summary
    assert summary["rows"] == 20 and summary["reasons"] == {"undecodable-batch": 1}
    assert [offset for _, offset in positions(settings)] == [*range(10), *range(12, 22)]
    (letter,) = dead_letters(settings)
    assert (letter["offset"], letter["last_offset"], letter["value"]) == (10, 11, bytes(lying))


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_dead_letters_of_a_recreated_topic_are_kept(tmp_path: Path, table_format: str) -> None:
    def bad(count: int) -> ServedPartition:
        return ServedPartition(encode([Expected(None, b"\xff", at, 1_000, 0, ()) for at in range(count)]))

    with ServedCluster({("t", 0): bad(10)}) as served:
        settings = config(served, tmp_path, "t", value_format="text", table_format=table_format)
        assert ingest(settings).summary["dead_letters"] == 10
        served.topic_ids["t"] = "another-id".ljust(22, "0")
        served.partitions["t", 0] = bad(4)
        assert ingest(settings).summary["dead_letters"] == 4


HOSTILE = [
    b'{"id": 1}', None, b"", b"\xff\xfe", b'{"id": 9223372036854775808}', b'{"id": 9223372036854775807}',
    b'{"id": -9223372036854775808}', b'{"id": 1, "id": 2}', b"{}", b'{"id": "1"}', b'{"id": NaN}', b"[" * 100_000,
    b'{"id": 2, "name": "' + b"x" * (1 << 20) + b'"}', b'{"id": 3', b"\x00", b'{"id": 1, "name": "\\ud800"}',
]  # fmt: skip
GOOD = [0, 5, 6, 12]


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_hostile_values_reach_the_dead_letters_and_the_job_ends_well(tmp_path: Path, table_format: str) -> None:
    headers = (("big", bytes(1 << 20)), ("", b"\xff"))
    records = [Expected(b"\xff", value, n, 1_000 + n, 0, headers) for n, value in enumerate(HOSTILE)]
    with ServedCluster({("t", 0): ServedPartition(encode(records))}) as served:
        settings = config(
            served, tmp_path, "t", value_format="json", columns="id:long, name:string?", table_format=table_format
        )
        result = ingest(settings)
    assert result.exit_code == 0 and result.summary["rows"] == len(GOOD)
    assert [offset for _, offset in positions(settings)] == GOOD
    if table_format == "parquet":
        letters = dead_letters(settings)
        assert [letter["offset"] for letter in letters] == [n for n in range(len(HOSTILE)) if n not in GOOD]
        assert all(letter["value"] == HOSTILE[letter["offset"]] for letter in letters)
        assert all(letter["reason"] and letter["error"] and letter["topic"] == "t" for letter in letters)
        assert all(len(letter["headers"]) == 2 for letter in letters)


class DiesAfter:
    """Stands for a driver that is killed after a step."""

    def __init__(self, step: str) -> None:
        self._step = step

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        if name == self._step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
@pytest.mark.parametrize("step", ["planned", "written", "dead-letters-committed", "committed"])
def test_a_driver_that_dies_after_any_step_leaves_nothing_out_and_nothing_twice(
    tmp_path: Path, step: str, table_format: str
) -> None:
    records = [Expected(None, b"good" if n % 3 else b"\xff", n, 1_000, 0, ()) for n in range(30)]
    with ServedCluster({("t", 0): ServedPartition(encode(records))}) as served:
        settings = config(served, tmp_path, "t", value_format="text", table_format=table_format, orphan_age_s=0)
        with pytest.raises(KeyboardInterrupt):
            ingest(settings, DiesAfter(step))
        result = ingest(settings)
    assert result.exit_code == 0
    assert [offset for _, offset in positions(settings)] == [n for n in range(30) if n % 3]
    dead = dataclasses.replace(settings, table=settings.dead_letter_table)
    assert [offset for _, offset in positions(dead)] == [n for n in range(30) if n % 3 == 0]
    # Age 0: whatever the dead driver left has been collected.
    named = len(list((tmp_path / "table" / "data").rglob("*.parquet")))
    assert named == 1


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_second_driver_names_the_driver_of_the_table_and_ends(
    served: ServedCluster, tmp_path: Path, table_format: str
) -> None:
    settings = config(served, tmp_path, table_format=table_format)

    class OvertakenBy:
        def step(self, name: str, facts: Mapping[str, Any]) -> None:
            if name == "written":
                assert ingest(settings).summary["rows"] == len(EVERYTHING)

    with pytest.raises(CommitConflictError, match="belongs to another driver, process"):
        ingest(settings, OvertakenBy())
    assert positions(settings) == EVERYTHING


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
    assert positions(settings) == [(p, n) for p, n in EVERYTHING if p != 1 or not 100 <= n < 500]


def test_a_new_partition_may_start_at_its_end(served: ServedCluster, tmp_path: Path) -> None:
    settings = config(served, tmp_path, start_at_latest=True)
    for partition in range(PARTITIONS):
        served.partitions["numbers", partition].high_watermark = 400
    ingest(settings)
    for partition in range(PARTITIONS):
        served.partitions["numbers", partition].high_watermark = PER_PARTITION
    ingest(settings)
    assert positions(settings) == [(p, n) for p, n in EVERYTHING if n >= 400]


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
    assert seen[0] == 10 * PARTITIONS and positions(settings) == EVERYTHING


def test_a_missing_topic_and_bad_settings_are_named(served: ServedCluster, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="absent"):
        ingest(config(served, tmp_path, "absent", attempts=1))
    for more, match in [
        ({"value_format": "json"}, "columns"),
        ({"value_format": "protobuf"}, "descriptor"),
        ({"columns": "id:long"}, "raw"),
        ({"table_format": "iceberg"}, "parquet, delta"),
        ({"dead_letters": str(tmp_path / "table" / "dead")}, "separate directories"),
        ({"max_batch_bytes": 0}, "max_batch_bytes"),
    ]:
        with pytest.raises(InvalidConfigError, match=match):
            ingest(config(served, tmp_path, **more))


def test_a_batch_takes_the_same_part_of_every_source_and_at_least_one_record() -> None:
    big, small = Source("t", "id", 0), Source("t", "id", 1)
    planned = plan_batch({big: LogEnds(0, 1_000_000), small: LogEnds(0, 3)}, {small: 2}, 100, False, False)
    assert planned == [PlannedRange(big, 0, 100), PlannedRange(small, 2, 3)]


def test_the_progress_of_a_shortened_log_is_stored_so_that_its_next_records_are_copied() -> None:
    source = Source("t", "A" * 22, 0)
    planned = plan_batch({source: LogEnds(0, 50)}, {source: 100}, 100, False, True)
    assert planned == [PlannedRange(source, 50, 50)]


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_dead_letters_written_after_the_log_was_shortened_are_kept(tmp_path: Path, table_format: str) -> None:
    def bad(count: int) -> ServedPartition:
        return ServedPartition(encode([Expected(None, b"\xff", at, 1_000, 0, ()) for at in range(count)]))

    with ServedCluster({("t", 0): bad(10)}) as served:
        settings = config(served, tmp_path, "t", value_format="text", table_format=table_format, allow_data_loss=True)
        assert ingest(settings).summary["dead_letters"] == 10
        served.partitions["t", 0] = bad(5)
        assert ingest(settings).summary["dead_letters"] == 0
        served.partitions["t", 0] = bad(8)
        assert ingest(settings).summary["dead_letters"] == 3


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_records_written_after_the_log_was_shortened_are_copied(tmp_path: Path, table_format: str) -> None:
    with ServedCluster({("t", 0): ServedPartition(log(100))}) as served:
        settings = config(served, tmp_path, "t", allow_data_loss=True, table_format=table_format)
        ingest(settings)
        served.partitions["t", 0] = ServedPartition(log(50))
        assert ingest(settings).summary["rows"] == 0
        served.partitions["t", 0] = ServedPartition(log(80))
        assert ingest(settings).summary["rows"] == 30
        assert ingest(settings).summary["rows"] == 0
