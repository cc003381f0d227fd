"""The Go library against a cluster of processes whose leader is killed."""

import json
import shutil
import subprocess
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from paceline.dev.local_cluster import LocalCluster
from paceline.rpc.security.client_tls import FILE_VARIABLES
from tests.support.stub_client import StubClient
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "clients" / "go"
BUILD_TIMEOUT_S = 500.0

pytestmark = [
    pytest.mark.go,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("go") is None, reason="the Go toolchain is not installed"),
]


@pytest.fixture(scope="module")
def failover(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the sample that writes records and reads them back, and return its path."""
    program = tmp_path_factory.mktemp("go") / "failover"
    _go("build", "-o", str(program), "./samples/failover")
    return program


def _go(*arguments: str) -> str:
    done = subprocess.run(["go", *arguments], cwd=MODULE, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    assert done.returncode == 0, f"go {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _run(program: Path, *arguments: str, timeout_s: float = 400.0) -> dict[str, Any]:
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=timeout_s)
    return _summary(done.returncode, done.stdout, done.stderr)


def _summary(code: int | None, output: str, errors: str) -> dict[str, Any]:
    assert code == 0, f"exit code {code}\n{errors}\n{output}"
    summary = json.loads(output)
    assert isinstance(summary, dict)
    return summary


@pytest.mark.slow
def test_the_module_is_formatted_vetted_and_passes_its_own_tests() -> None:
    unformatted = subprocess.run(["gofmt", "-l", "samples"], cwd=MODULE, capture_output=True, text=True, timeout=180.0)
    assert (unformatted.returncode, unformatted.stdout) == (0, "")
    _go("vet", "./...")
    _go("test", "-count=1", "./...")


def test_records_go_through_a_secure_cluster(failover: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = LocalCluster(tmp_path / "run", ROOT / "config" / "dev.properties", secure=True)
    secure.start()
    try:
        assert secure.client_tls is not None
        for name, path in zip(FILE_VARIABLES, astuple(secure.client_tls), strict=True):
            monkeypatch.setenv(name, str(path))
        summary = _run(failover, "-bootstrap", secure.bootstrap, "-count", "3000", "-rate", "0")
        assert summary["read"] == summary["acknowledged"] == 3000
    finally:
        secure.stop(force=True)


def test_the_committed_stubs_are_what_the_protos_give() -> None:
    done = subprocess.run(
        ["scripts/gen_go.sh", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.parametrize("index", [0, 1])
def test_any_controller_is_a_bootstrap_server(failover: Path, cluster: LocalCluster, index: int) -> None:
    address = cluster.controller_addresses[index]
    topic = f"from-go-by-controller-{index}"
    summary = _run(failover, "-bootstrap", address, "-topic", topic, "-count", "30", "-rate", "0")

    assert summary["acknowledged"] == summary["read"] == 30


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.slow
def test_the_library_loses_no_record_while_a_leader_is_killed(failover: Path, cluster: LocalCluster) -> None:
    arguments = [
        str(failover),
        "-bootstrap",
        cluster.bootstrap,
        "-count",
        "30000",
        "-rate",
        "5000",
        "-topic",
        "go-library",
    ]
    running = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    victim = None
    try:
        with StubClient(cluster.bootstrap.split(",")) as client:
            eventually(lambda: client.end_offset("go-library", 0) > 1_000, 120.0, "records are being written")
            victim = cluster.broker(client.describe_topic("go-library").partitions[0].leader)
        cluster.kill(victim)
        output, errors = running.communicate(timeout=300)
    finally:
        running.kill()
        if victim is not None:
            cluster.restart(victim)
    found = json.loads(output)
    assert running.returncode == 0, (found, errors)
    assert (found["acknowledged"], found["lost"], found["doubled"], found["reordered"]) == (30_000, 0, 0, 0)
