"""Programs of other languages inside the clients' network while the leader's container is killed."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.containers.compose import BROKERS, ROOT, ComposeCluster
from tests.containers.workload import await_full_isr, in_every_run, leader_of
from tests.support.stub_client import StubClient
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800), in_every_run]

RECORDS = 20_000


@pytest.mark.go
@pytest.mark.skipif(shutil.which("go") is None, reason="the Go toolchain is not installed")
def test_the_go_client_loses_nothing_when_the_leaders_container_is_killed(
    cluster: ComposeCluster, client: StubClient, tmp_path: Path
) -> None:
    topic = "go-in-containers"
    program = tmp_path / "failover"
    build = ["go", "build", "-o", str(program), "./samples/failover"]
    done = subprocess.run(
        ["env", "CGO_ENABLED=0", *build], cwd=ROOT / "clients" / "go", capture_output=True, text=True, timeout=900.0
    )
    assert done.returncode == 0, done.stderr
    command = [
        *["docker", "run", "--rm", "--name", f"{cluster.project}-go", "--network", f"{cluster.project}_front"],
        *["--label", f"com.docker.compose.project={cluster.project}"],
        *["-v", f"{cluster.project}_load-secrets:/run/paceline:ro", "-v", f"{program}:/failover:ro"],
        *["-e", "PACELINE_SSL_CA_FILE=/run/paceline/ca.crt"],
        *["-e", "PACELINE_SSL_CERTIFICATE_FILE=/run/paceline/client.crt"],
        *["-e", "PACELINE_SSL_KEY_FILE=/run/paceline/client.key"],
        *["paceline:dev", "/failover", "-bootstrap", "broker-1:9092,broker-2:9092,broker-3:9092"],
        *["-topic", topic, "-count", str(RECORDS), "-rate", "1000"],
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            old = eventually(lambda: _leader(client, topic), 120.0, f"{topic} has a leader")
            eventually(lambda: client.end_offset(topic, 0) > 1_000, 120.0, "records of the Go program are there")
            cluster.kill(BROKERS[old])
            output, messages = running.communicate(timeout=400.0)
        finally:
            running.kill()
            subprocess.run(["docker", "rm", "-f", f"{cluster.project}-go"], capture_output=True, timeout=120.0)
    assert running.returncode == 0, f"{output}\n{messages}"
    result = json.loads(output)
    assert (result["acknowledged"], result["read"]) == (RECORDS, RECORDS)
    assert (result["lost"], result["doubled"], result["reordered"], result["failed"]) == (0, 0, 0, 0)
    cluster.start(BROKERS[old])
    await_full_isr(client, topic)


def _leader(client: StubClient, topic: str) -> int:
    return leader_of(client, topic, 0) if topic in {found.name for found in client.describe_topics()} else 0
