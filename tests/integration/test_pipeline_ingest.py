"""The ingest job in a real Spark session: complete tables, also after a killed driver or worker."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest

from paceline.pipeline.errors import DataLossError
from paceline.pipeline.jobs import doctor
from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.task import IngestTasks, TaskReport
from tests.soak import kill_matrix
from tests.support.slow import slow_but_every
from tests.support.spark import spark  # noqa: F401
from tests.unit.pipeline.batches import encode, simple_records
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.jobs.ingest.test_ingest import bad
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

pytestmark = pytest.mark.spark

PARTITIONS = 4
PER_PARTITION = 2_000


def is_bad(offset: int) -> bool:
    return offset % 100 == 7


def batches() -> bytes:
    """Return batches of 100 records; the timestamp of a bad record, which makes it a dead letter, has its own batch."""
    log = b""
    for first in range(0, PER_PARTITION, 100):
        log += encode(records(first, first + 7)) + bad(first + 7) + encode(records(first + 8, first + 100))
    return log


def records(first: int, end: int) -> list[Expected]:
    return [Expected(b"k", b"value %d" % n, n, 1_700_000_000_000 + n, 0, ()) for n in range(first, end)]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedCluster]:
    log = batches()
    with ServedCluster({("texts", p): ServedPartition(log, leader=1 + p % 2) for p in range(PARTITIONS)}, 2) as cluster:
        yield cluster


def positions(table: str) -> list[tuple[int, int]]:
    """Return partition and offset of every committed row, without Spark and without the job's code."""
    found = deltalake.DeltaTable(table).to_pyarrow_table()
    return sorted(zip(found.column("partition").to_pylist(), found.column("offset").to_pylist(), strict=True))


GOOD = [(p, n) for p in range(PARTITIONS) for n in range(PER_PARTITION) if not is_bad(n)]
BAD = [(p, n) for p in range(PARTITIONS) for n in range(PER_PARTITION) if is_bad(n)]


def config(served: ServedCluster, table: Path, **more: Any) -> IngestConfig:
    return IngestConfig((served.bootstrap,), ("texts",), str(table), **more)


def test_spark_copies_every_record_once(spark: Any, served: ServedCluster, tmp_path: Path) -> None:  # noqa: F811
    settings = config(served, tmp_path / "table", max_batch_bytes=100_000)
    result = job.run(spark, settings)
    assert result.summary["rows"] == len(GOOD) and result.summary["reasons"] == {"timestamp-out-of-range": len(BAD)}
    assert positions(settings.table) == GOOD
    assert positions(settings.dead_letter_table) == BAD


class WorkerKilledOnce(IngestTasks):
    """Ingest tasks that kill a worker process once, after a task has written its files."""

    def run(self, number: int) -> TaskReport:
        report = super().run(number)
        marker = Path(self.config.table + ".killed")
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return report


def test_a_killed_worker_costs_a_repeated_batch_and_no_row(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "IngestTasks", WorkerKilledOnce)
    settings = config(served, tmp_path / "table")
    assert job.run(spark, settings).summary["rows"] == len(GOOD)
    assert Path(settings.table + ".killed").exists()
    assert positions(settings.table) == GOOD
    assert positions(settings.dead_letter_table) == BAD


@pytest.mark.parametrize("step", slow_but_every(2, ["written", "dead-letters-committed"]))
def test_a_killed_driver_neither_loses_nor_duplicates_rows(served: ServedCluster, tmp_path: Path, step: str) -> None:
    table = str(tmp_path / "table")
    command = [sys.executable, "-m", "tests.support.ingest_driver", served.bootstrap, "texts", table, "delta"]
    killed = subprocess.run([*command, step], capture_output=True, timeout=240, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    again = subprocess.run([*command, ""], capture_output=True, timeout=240, check=False)
    assert again.returncode == 0, again.stderr.decode()
    assert positions(table) == GOOD
    assert positions(table + "_dead_letters") == BAD


def test_the_command_of_the_readme_copies_a_topic(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`\.venv/bin/paceline (pipeline ingest .*?)`", readme)
    with ServedCluster({("rides", 0): ServedPartition(encode(simple_records(10)))}) as cluster:
        environment = {**os.environ, "PACELINE_BOOTSTRAP_SERVERS": cluster.bootstrap}
        done = subprocess.run(
            [sys.executable, "-m", "paceline.cli", *command.split(), "--conf", "spark.driver.memory=512m"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert positions(str(tmp_path / "build" / "lake" / "rides")) == [(0, n) for n in range(10)]


@pytest.fixture
def simple() -> Iterator[ServedCluster]:
    """Two partitions with records of two days, none of them bad."""
    days = [b"".join(encode(records(first, first + 50)) for first in range(0, 200, 50)), encode(simple_records(100))]
    with ServedCluster({("texts", p): ServedPartition(log) for p, log in enumerate(days)}) as cluster:
        yield cluster


def test_parquet_goes_through_sparks_file_sink_in_batches_and_continues(
    spark: Any,  # noqa: F811
    simple: ServedCluster,
    tmp_path: Path,
) -> None:
    settings = config(simple, tmp_path / "table", table_format="parquet", max_batch_bytes=3_000)
    simple.partitions["texts", 0].high_watermark = 100
    first = job.run(spark, settings)
    assert first.summary["rows"] == 200 and first.summary["batches"] > 1
    simple.partitions["texts", 0].high_watermark = 200
    assert job.run(spark, settings).summary["rows"] == 100
    assert job.run(spark, settings).summary["rows"] == 0
    frame = spark.read.parquet(settings.table)
    rows = sorted(frame.select("partition", "offset", "value", "date", "topic").collect())
    assert [(row.partition, row.offset) for row in rows] == [
        *((0, n) for n in range(200)),
        *((1, n) for n in range(100)),
    ]
    assert {(row.topic, str(row.date)) for row in rows} == {("texts", "2023-11-14"), ("texts", "1970-01-01")}
    assert bytes(rows[5].value) == b"value 5"
    (file, *_) = (tmp_path / "table" / "topic=texts" / "date=2023-11-14").glob("*.parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


def test_parquet_has_the_chosen_folders_and_checkpoint_and_stops_when_told(
    spark: Any,  # noqa: F811
    simple: ServedCluster,
    tmp_path: Path,
) -> None:
    stop = threading.Event()

    class StopAtTheEnd:
        def step(self, name: str, facts: Mapping[str, Any]) -> None:
            if facts["total_rows"] == 300:
                stop.set()

    settings = config(
        simple,
        tmp_path / "table",
        table_format="parquet",
        partition_by=("partition",),
        checkpoint=str(tmp_path / "checkpoint"),
        continuous=True,
        interval_s=0.1,
    )
    job.run(spark, settings, StopAtTheEnd(), stop)
    assert (tmp_path / "checkpoint" / "offsets" / "0").exists()
    folders = {path.name for path in (tmp_path / "table").iterdir() if path.is_dir()}
    assert folders == {"partition=0", "partition=1", "_spark_metadata"}
    assert spark.read.parquet(settings.table).count() == 300
    assert kill_matrix.parquet_rows(tmp_path / "table") == {
        0: [b"value %d" % n for n in range(200)],
        1: [record.value for record in simple_records(100)],
    }


@pytest.mark.slow
def test_records_deleted_before_a_parquet_copy_fail_it_with_the_option_that_skips_them(
    spark: Any,  # noqa: F811
    simple: ServedCluster,
    tmp_path: Path,
) -> None:
    settings = config(simple, tmp_path / "table", table_format="parquet")
    simple.partitions["texts", 0].high_watermark = 50
    job.run(spark, settings)
    simple.partitions["texts", 0].high_watermark = 200
    simple.partitions["texts", 0].log_start_offset = 100
    with pytest.raises(DataLossError, match=r"offsets 50 to 99.*--allow-data-loss"):
        job.run(spark, settings)
    assert job.run(spark, dataclasses.replace(settings, allow_data_loss=True)).summary["rows"] == 100


def test_the_doctor_finds_what_tasks_need_and_names_what_is_missing(
    spark: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert doctor.run(spark).exit_code == 0
    monkeypatch.setattr(doctor, "check_imports", _MissingModule())
    result = doctor.run(spark)
    assert result.exit_code == 3 and "no_such_module" in result.summary["problems"][0]


class _MissingModule:
    def __call__(self, batches: Any) -> Any:
        from unittest import mock

        with mock.patch.object(doctor, "MODULES", ("no_such_module",)):
            yield from doctor.check_imports(batches)  # the original: monkeypatch changed only the driver
