"""The files of ``make dist`` in empty environments: the client alone, and a cluster that runs from the wheel."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

from paceline import __version__

pytestmark = [pytest.mark.slow, pytest.mark.zookeeper, pytest.mark.cluster, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
NAME = f"paceline-{__version__}"
CLEAN = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
PROGRAM = """
import sys
from importlib.metadata import version
from paceline_client import Admin, Consumer, NewTopic, Producer
bootstrap = sys.argv[1]
with Admin(bootstrap) as admin, Producer(bootstrap) as producer, Consumer(bootstrap) as consumer:
    admin.create_topics([NewTopic("from-the-wheel", partitions=1, replication_factor=3)])
    producer.send("from-the-wheel", b"hello").result(60)
    consumer.subscribe(["from-the-wheel"])
    print(next(iter(consumer)).value.decode(), version("paceline"))
"""


def run(command: Sequence[str | Path], folder: Path, given: str = "") -> str:
    """Run a command in a folder, without this environment's variables, and return its stdout."""
    done = subprocess.run(command, cwd=folder, env=CLEAN, input=given, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a release, with the environment that has its services and pipeline."""
    folder = tmp_path_factory.mktemp("release")
    run([ROOT / "scripts" / "dist.sh", folder / "dist", folder / "environment"], ROOT)
    return folder


@pytest.fixture
def cluster(dist: Path, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Start a cluster from the wheel in ``tmp_path``, which is empty; return the command and a bootstrap address."""
    paceline = dist / "environment" / "bin" / "paceline"
    printed = run([paceline, "dev", "up"], tmp_path)
    match = re.search(r"bootstrap servers ([^,\s]+)", printed)
    assert match is not None, printed
    yield paceline, match[1]
    run([paceline, "dev", "down"], tmp_path)


def test_the_wheels_run_a_cluster_and_a_client_in_empty_environments(
    dist: Path, tmp_path: Path, cluster: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    paceline, bootstrap = cluster
    run([paceline, "topic", "create", "rides", "--partitions", "3", "--replication-factor", "3"], tmp_path)
    run([paceline, "produce", "rides", "--key-separator", ":"], tmp_path, "alice:hello\n")
    assert run([paceline, "consume", "rides", "--from", "start", "--exit-at-end"], tmp_path) == "hello\n"

    alone = tmp_path_factory.mktemp("client")
    run([sys.executable, "-m", "venv", alone], alone)
    run([alone / "bin" / "pip", "install", "--quiet", dist / "dist" / f"{NAME}-py3-none-any.whl"], alone)
    installed = {each["name"] for each in json.loads(run([alone / "bin" / "pip", "list", "--format", "json"], alone))}
    assert "paceline" in installed and not installed & {"kazoo", "pyspark", "click", "pydantic", "cryptography"}
    assert run([alone / "bin" / "python", "-c", PROGRAM, bootstrap], alone) == f"hello {__version__}\n"


def test_the_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    pip, sdist = ROOT / ".venv" / "bin" / "pip", dist / "dist" / f"{NAME}.tar.gz"
    run([pip, "wheel", "-q", "--no-deps", "--no-build-isolation", sdist], tmp_path)
    wheels = [folder / f"{NAME}-py3-none-any.whl" for folder in (tmp_path, dist / "dist")]
    built, released = ({each.filename: each.CRC for each in ZipFile(wheel).infolist()} for wheel in wheels)
    assert built == released and "pyspark_paceline/__init__.py" in built


def test_every_component_has_a_version_and_a_licence(dist: Path) -> None:
    components = json.loads((dist / "dist" / f"{NAME}.cdx.json").read_text())["components"]
    versions = {each["name"].lower(): each["version"] for each in components}
    assert versions["paceline"] == __version__ and {"grpcio", "kazoo", "pyspark", "pyarrow"} < set(versions)
    licences = (dist / "dist" / f"{NAME}-licences.md").read_text().splitlines()[2:]
    assert {row.split("|")[1].strip().lower() for row in licences} == set(versions) - {"pip", "setuptools"}
    assert not [row for row in licences if "UNKNOWN" in row or "GPL" in row]
