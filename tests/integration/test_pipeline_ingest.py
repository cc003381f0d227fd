"""The ingest job in a real Spark session: complete tables, also after a killed driver or worker."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.pipeline.jobs import doctor
from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.task import IngestTasks, TaskReport
from paceline.pipeline.jobs.lake.parquet_table import read_table
from tests.support.spark import spark  # noqa: F401
from tests.unit.pipeline.batches import encode
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

pytestmark = pytest.mark.spark

PARTITIONS = 4
PER_PARTITION = 2_000
FORMATS = ["parquet", "delta"]


def is_bad(offset: int) -> bool:
    return offset % 100 == 7


def records(first: int, count: int) -> list[Expected]:
    """Return records with text values, of which one in a hundred is not UTF-8."""
    return [
        Expected(b"k", b"\xff" if is_bad(n) else b"value %d" % n, n, 1_700_000_000_000 + n, 0, ())
        for n in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedCluster]:
    log = b"".join(encode(records(first, 100)) for first in range(0, PER_PARTITION, 100))
    with ServedCluster({("texts", p): ServedPartition(log, leader=1 + p % 2) for p in range(PARTITIONS)}, 2) as cluster:
        yield cluster


def positions(table: str, table_format: str) -> list[tuple[int, int]]:
    """Return partition and offset of every committed row, without Spark and without the job's code for Delta."""
    if table_format == "delta":
        import deltalake

        found = deltalake.DeltaTable(table).to_pyarrow_table()
    else:
        found = read_table(table).to_table()
    return sorted(zip(found.column("partition").to_pylist(), found.column("offset").to_pylist(), strict=True))


GOOD = [(p, n) for p in range(PARTITIONS) for n in range(PER_PARTITION) if not is_bad(n)]
BAD = [(p, n) for p in range(PARTITIONS) for n in range(PER_PARTITION) if is_bad(n)]


def config(served: ServedCluster, table: Path, table_format: str, **more: Any) -> IngestConfig:
    return IngestConfig((served.bootstrap,), ("texts",), str(table), table_format, "text", **more)


@pytest.mark.parametrize("table_format", FORMATS)
def test_spark_copies_every_record_once(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
    table_format: str,
) -> None:
    settings = config(served, tmp_path / "table", table_format, max_batch_bytes=200_000)
    result = job.run(spark, settings)
    assert result.summary["rows"] == len(GOOD) and result.summary["reasons"] == {"invalid-utf8": len(BAD)}
    assert positions(settings.table, table_format) == GOOD
    assert positions(settings.dead_letter_table, table_format) == BAD


def test_spark_reads_the_parquet_files_of_a_table(spark: Any, served: ServedCluster, tmp_path: Path) -> None:  # noqa: F811
    settings = config(served, tmp_path / "table", "parquet")
    job.run(spark, settings)
    frame = spark.read.parquet(f"{settings.table}/data")
    assert frame.count() == frame.select("partition", "offset").distinct().count() == len(GOOD)
    assert frame.where("topic = 'texts' AND date = '2023-11-14'").count() == len(GOOD)


class WorkerKilledOnce(IngestTasks):
    """Ingest tasks that kill a worker process once, after a task has written its files."""

    def run(self, number: int) -> TaskReport:
        report = super().run(number)
        marker = Path(self.config.table + ".killed")
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return report


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_killed_worker_costs_a_repeated_batch_and_no_row(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
    table_format: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "IngestTasks", WorkerKilledOnce)
    settings = config(served, tmp_path / "table", table_format)
    assert job.run(spark, settings).summary["rows"] == len(GOOD)
    assert Path(settings.table + ".killed").exists()
    assert positions(settings.table, table_format) == GOOD
    assert positions(settings.dead_letter_table, table_format) == BAD


@pytest.mark.parametrize("step", ["planned", "written", "dead-letters-committed", "committed"])
def test_a_killed_driver_neither_loses_nor_duplicates_rows(served: ServedCluster, tmp_path: Path, step: str) -> None:
    table_format = "delta" if step in ("written", "dead-letters-committed") else "parquet"
    table = str(tmp_path / "table")
    command = [sys.executable, "-m", "tests.support.ingest_driver", served.bootstrap, "texts", table, table_format]
    killed = subprocess.run([*command, step], capture_output=True, timeout=240, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    again = subprocess.run([*command, ""], capture_output=True, timeout=240, check=False)
    assert again.returncode == 0, again.stderr.decode()
    assert positions(table, table_format) == GOOD
    assert positions(table + "_dead_letters", table_format) == BAD


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
