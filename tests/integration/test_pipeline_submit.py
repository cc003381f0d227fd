"""Every job, unchanged, with spark-submit on a standalone master and over Spark Connect, against a real cluster.

The tests start a master, a worker and a Connect server on free ports. They need three Spark sessions per job.
"""

import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyspark
import pytest

import paceline.cli.__main__ as command_line
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline_client import Admin, NewTopic, Producer
from paceline_client.process_channels import close_channels
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.zookeeper,
    pytest.mark.slow,
]

SPARK_HOME = Path(pyspark.__file__).parent
RECORDS = 1_000
JOB_TIMEOUT_S = 600
SMALL = ["--conf", "spark.driver.memory=512m", "--conf", "spark.executor.memory=512m"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "PYTHON"))}
    return kept | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


@contextmanager
def service(log: Path, port: int, *command: str) -> Iterator[None]:
    """Run a Spark server while the block runs; the block begins when the server accepts connections."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / command[0]), *command[1:]],
            stdout=out,
            stderr=out,
            env=environment(),
            cwd=log.parent,
            start_new_session=True,
        )
    try:

        def answers() -> bool:
            assert process.poll() is None, log.read_text()[-2_000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        eventually(answers, 240, f"{command[1]} answers", pause_s=0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    settings = {"cluster.events.topic.enable": "true"}
    running = LocalCluster(directory, CONFIG_FILE, brokers=3, controllers=1, settings=settings)
    running.start(timeout_s=300)
    with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
        admin.create_topics([NewTopic("rides", partitions=4, replication_factor=3)])
        for number in range(RECORDS):
            producer.send("rides", b"ride %d" % number, partition=number % 4)
        producer.flush()
        eventually(lambda: "__cluster_events" in admin.list_topics(), 120, "the topic of the events exists")
    yield running
    close_channels()
    running.stop(force=True)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Start a standalone master and a worker with two cores; yield the master's URL and the worker's directory."""
    folder = tmp_path_factory.mktemp("standalone")
    (folder / "work").mkdir()
    port, web, worker, worker_web = (free_port() for _ in range(4))
    address = f"spark://127.0.0.1:{port}"
    at = ("--host", "127.0.0.1", "--port")
    start_master = ("spark-class", "org.apache.spark.deploy.master.Master", *at, str(port), "--webui-port", str(web))
    start_worker = ("spark-class", "org.apache.spark.deploy.worker.Worker", *at, str(worker))
    more = ("--cores", "2", "--memory", "1g", "--webui-port", str(worker_web), "--work-dir", str(folder / "work"))
    with (
        service(folder / "master.log", port, *start_master),
        service(folder / "worker.log", worker, *start_worker, *more, address),
    ):
        yield address, folder / "work"


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Spark Connect server on local[2] and yield its URL."""
    folder = tmp_path_factory.mktemp("connect")
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command = ["spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--master", "local[2]", "--driver-memory", "768m"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with service(folder / "connect.log", port, *command, "spark-internal"):
        yield f"sc://127.0.0.1:{port}"


JOBS: dict[str, list[str]] = {
    "doctor": [],
    "ingest": ["rides", "--to", "{folder}/table"],
    "analyse": [],
}


def arguments(job: str, cluster: LocalCluster, folder: Path) -> list[str]:
    servers = [] if job == "doctor" else ["-b", cluster.bootstrap]
    return ["pipeline", job, *(each.format(folder=folder) for each in JOBS[job]), *servers, "-o", "json"]


def run(command: list[str], folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=JOB_TIMEOUT_S, check=False, cwd=folder
    )


@contextmanager
def used_by_an_application(master: tuple[str, Path]) -> Iterator[str]:
    """Yield the master's URL; fail if its worker ran no executor during the block."""
    address, folder = master
    before = set(folder.iterdir())
    yield address
    assert set(folder.iterdir()) - before, "no executor of the worker ran for this job"


def check(job: str, ended: "subprocess.CompletedProcess[str]", folder: Path) -> None:
    assert ended.returncode == 0, ended.stdout[-1_000:] + ended.stderr[-3_000:]
    summary: dict[str, Any] = json.loads(ended.stdout)
    if job == "ingest":
        assert summary["rows"] == RECORDS
        assert deltalake.DeltaTable(folder / "table").to_pyarrow_table().num_rows == RECORDS
    if job == "analyse":
        assert summary["events"] > 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_by_spark_submit_on_a_standalone_master(
    cluster: LocalCluster, master: tuple[str, Path], tmp_path: Path, job: str
) -> None:
    script = str(command_line.__file__)
    with used_by_an_application(master) as address:
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", address, *SMALL, script]
        command += arguments(job, cluster, tmp_path)
        check(job, run(command, tmp_path, environment()), tmp_path)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a zip of our packages, and an interpreter with their dependencies but without the packages."""
    folder = tmp_path_factory.mktemp("shipped")
    venv.create(folder / "worker", with_pip=False, symlinks=True)
    # Development installs, like ours, are .pth files. Python does not read the .pth files of a directory that a .pth
    # file adds, so this interpreter finds the dependencies but not our packages.
    (dependencies,) = (folder / "worker").glob("lib/python*/site-packages")
    (dependencies / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    python = folder / "worker" / "bin" / "python"
    alone = [str(python), "-c", "import pyspark, grpc; from paceline.pipeline import session"]
    found = subprocess.run(alone, capture_output=True, text=True, check=False, cwd=folder, env=environment())
    assert "No module named 'paceline" in found.stderr
    for package in ("paceline", "paceline_client", "pyspark_paceline"):
        source = Path(str(importlib.import_module(package).__file__)).parent
        shutil.copytree(source, folder / "packages" / package, ignore=shutil.ignore_patterns("__pycache__"))
    return Path(shutil.make_archive(str(folder / "paceline"), "zip", folder / "packages")), python


@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_with_its_packages_in_a_zip(
    cluster: LocalCluster, master: tuple[str, Path], shipped: tuple[Path, Path], tmp_path: Path, job: str
) -> None:
    archive, python = shipped
    script = shutil.copy(str(command_line.__file__), tmp_path / "paceline_job.py")
    only_the_zip = environment() | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    with used_by_an_application(master) as address:
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", address, *SMALL, "--py-files", str(archive)]
        check(job, run([*command, script, *arguments(job, cluster, tmp_path)], tmp_path, only_the_zip), tmp_path)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", JOBS)
def test_a_job_runs_over_spark_connect(cluster: LocalCluster, connect: str, tmp_path: Path, job: str) -> None:
    command = [sys.executable, "-m", "paceline.cli", *arguments(job, cluster, tmp_path), "--remote", connect]
    check(job, run(command, tmp_path, environment()), tmp_path)
