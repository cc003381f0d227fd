"""The Go sample on generated stubs, and the Go library, against a cluster of processes whose leader is killed."""

import json
import shutil
import subprocess
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from paceline.dev.local_cluster import LocalCluster
from paceline.dev.ports import free_plan
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
def roundtrip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the Go sample and return its path."""
    program = tmp_path_factory.mktemp("go") / "roundtrip"
    _go("build", "-o", str(program), "./samples/roundtrip")
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


def test_records_go_through_a_secure_cluster(roundtrip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secure = LocalCluster(tmp_path / "run", ROOT / "config" / "dev.properties", secure=True)
    secure.start()
    try:
        assert secure.client_tls is not None
        for name, path in zip(FILE_VARIABLES, astuple(secure.client_tls), strict=True):
            monkeypatch.setenv(name, str(path))
        summary = _run(roundtrip, "-bootstrap", secure.bootstrap)
        assert summary["mismatches"] == [] and summary["read"] == summary["acknowledged"] > 0
    finally:
        secure.stop(force=True)


def test_the_committed_stubs_are_what_the_protos_give() -> None:
    done = subprocess.run(
        ["scripts/gen_go.sh", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_every_acknowledged_record_comes_back(roundtrip: Path, cluster: LocalCluster) -> None:
    summary = _run(roundtrip, "-bootstrap", cluster.bootstrap, "-topic", "from-go", "-records", "500")

    assert summary["mismatches"] == []
    assert summary["acknowledged"] == summary["read"] == 1500
    assert summary["brokers"] == 3
    assert sorted(partition["partition"] for partition in summary["partitions"]) == [0, 1, 2]


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.parametrize("index", [0, 1])
def test_any_controller_is_a_bootstrap_server(roundtrip: Path, cluster: LocalCluster, index: int) -> None:
    address = cluster.controller_addresses[index]
    summary = _run(roundtrip, "-bootstrap", address, "-topic", f"from-go-by-controller-{index}", "-records", "10")

    assert summary["acknowledged"] == summary["read"] == 30


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.slow
def test_a_killed_leader_costs_retries_and_no_record(roundtrip: Path, cluster: LocalCluster) -> None:
    topic = "from-go-with-failover"
    program = subprocess.Popen(
        [
            *[str(roundtrip), "-bootstrap", cluster.bootstrap, "-topic", topic],
            *["-records", "4000", "-batch", "10", "-pause", "20ms", "-timeout", "400s"],
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with StubClient(cluster.bootstrap.split(",")) as client:
            eventually(lambda: _exists(client, topic), 180.0, f"{topic} exists")
            eventually(lambda: len(client.read_all(topic, 0)) >= 100, 180.0, "a hundred records were written")
            victim = cluster.broker(client.describe_topic(topic).partitions[0].leader)
            cluster.kill(victim)
            output, errors = program.communicate(timeout=450.0)
    finally:
        program.kill()
        program.wait(timeout=60.0)
    cluster.restart(victim)

    summary = _summary(program.returncode, output, errors)
    assert summary["mismatches"] == []
    assert summary["acknowledged"] == 12_000
    assert summary["retries"] > 0


def _exists(client: StubClient, topic: str) -> bool:
    """Return whether the program has created the topic; DescribeTopics with its name would fail earlier."""
    listed = client.describe_topics()
    return any(description.name == topic and len(description.partitions) == 3 for description in listed)


def test_an_unreachable_address_is_a_failure_at_the_deadline(roundtrip: Path) -> None:
    (port,) = free_plan(0, 0).all()
    done = subprocess.run(
        [str(roundtrip), "-bootstrap", f"127.0.0.1:{port}", "-timeout", "1s"],
        capture_output=True,
        text=True,
        timeout=120.0,
    )
    assert done.returncode == 1
    assert "describing the cluster" in done.stderr


def test_a_bad_flag_is_a_usage_error(roundtrip: Path) -> None:
    done = subprocess.run([str(roundtrip), "-records", "0"], capture_output=True, text=True, timeout=120.0)
    assert done.returncode == 2


@pytest.mark.cluster
@pytest.mark.zookeeper
@pytest.mark.slow
def test_the_library_loses_no_record_while_a_leader_is_killed(tmp_path: Path, cluster: LocalCluster) -> None:
    program = tmp_path / "failover"
    _go("build", "-o", str(program), "./samples/failover")
    arguments = [
        str(program),
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
