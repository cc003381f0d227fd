"""The ingest into a Delta table in S3, as moto serves it: ``pytest tests/integration/test_pipeline_ingest_s3.py``.

moto needs an older python-dateutil than requirements.lock has, so it is installed from requirements-s3.lock into an
environment of its own, under build, which downloads 30 MB. PACELINE_MOTO_SERVER is the path of another ``moto_server``.
"""

import hashlib
import logging
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import deltalake
import pytest
from click.testing import CliRunner

from paceline.cli.commands import cli
from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.delta_table import CommitConflictError
from tests.support.inline_spark import InlineSpark
from tests.support.waiting import eventually
from tests.unit.pipeline.batches import encode, simple_records
from tests.unit.pipeline.jobs.ingest.test_ingest import bad
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

ROOT = Path(__file__).resolve().parents[2]
SECRET = "do-not-print-this-secret"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def moto_server() -> str:
    """Return the path of ``moto_server``, after installing it the first time."""
    if path := os.environ.get("PACELINE_MOTO_SERVER"):
        return path
    lock = ROOT / "requirements-s3.lock"
    folder = ROOT / "build" / f"s3-venv-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not (folder / "complete").exists():
        pip = [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
        subprocess.run([*pip, "-r", str(lock)], check=True, timeout=420)
        (folder / "complete").touch()
    return str(folder / "bin" / "moto_server")


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """Run an S3 server with a bucket ``lake`` and yield the options of delta-rs."""
    command = moto_server()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen([command, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL) as server:

        def has_bucket() -> bool:
            try:
                urllib.request.urlopen(urllib.request.Request(f"{address}/lake", method="PUT"), timeout=30).close()
            except urllib.error.URLError:
                return False
            return True

        try:
            eventually(has_bucket, 120, "the S3 server has the bucket")
            yield {
                "AWS_ENDPOINT_URL": address,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": SECRET,
            }
        finally:
            server.terminate()


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    log = b"".join(encode(simple_records(10, at)) for at in range(0, 100, 10)) + bad(100)
    with ServedCluster({("numbers", p): ServedPartition(log) for p in range(2)}) as cluster:
        yield cluster


ROWS = [(p, n) for p in range(2) for n in range(100)]


def positions(table: str, store: dict[str, str]) -> list[tuple[int, int]]:
    found = deltalake.DeltaTable(table, storage_options=store).to_pyarrow_table()
    return sorted(zip(found.column("partition").to_pylist(), found.column("offset").to_pylist(), strict=True))


class Told:
    """Keeps the progress of a job as text."""

    def __init__(self) -> None:
        self.text = ""

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        self.text += f"{name} {dict(facts)}\n"


def test_a_table_in_s3_has_every_record_once_and_no_output_names_the_credentials(
    served: ServedCluster, store: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    told = Told()
    settings = IngestConfig(
        (served.bootstrap,), ("numbers",), "s3://lake/once", storage_options=store, max_batch_bytes=3_000
    )
    first = job.run(InlineSpark(), settings, told)
    assert first.summary["rows"] == len(ROWS) and first.summary["batches"] > 1
    assert job.run(InlineSpark(), settings, told).summary["rows"] == 0
    assert positions("s3://lake/once", store) == ROWS
    assert positions("s3://lake/once_dead_letters", store) == [(0, 100), (1, 100)]
    assert "committed" in told.text
    assert SECRET not in f"{told.text} {first.summary} {settings!r} {caplog.text}"


def test_of_two_drivers_the_second_adds_no_row(served: ServedCluster, store: dict[str, str]) -> None:
    settings = IngestConfig((served.bootstrap,), ("numbers",), "s3://lake/two", storage_options=store)

    class OvertakenBy:
        def step(self, name: str, facts: Mapping[str, Any]) -> None:
            if name == "written":
                assert job.run(InlineSpark(), settings).summary["rows"] == len(ROWS)

    with pytest.raises(CommitConflictError, match="belongs to another driver, process"):
        job.run(InlineSpark(), settings, OvertakenBy())
    assert positions("s3://lake/two", store) == ROWS


def test_a_table_in_s3_is_compacted_with_the_options_of_a_file(
    served: ServedCluster, store: dict[str, str], tmp_path: Path
) -> None:
    table = "s3://lake/compacted"
    settings = IngestConfig((served.bootstrap,), ("numbers",), table, storage_options=store, max_batch_bytes=3_000)
    job.run(InlineSpark(), settings)
    options = tmp_path / "options.json"
    options.write_text(str(store).replace("'", '"'), encoding="utf-8")
    done = CliRunner().invoke(
        cli, ["pipeline", "compact", table, "--keep-hours", "0", "--storage-options", str(options)]
    )
    assert done.exit_code == 0, done.output
    assert len(deltalake.DeltaTable(table, storage_options=store).file_uris()) == 1
    assert job.run(InlineSpark(), settings).summary["rows"] == 0
    assert positions(table, store) == ROWS
