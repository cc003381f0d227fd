"""Go and Java programs and a Spark job in the clients' network lose no record when the leader's container is killed."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from paceline_client import AccessRule, Admin
from tests.containers.compose import BROKERS, ROOT, ComposeCluster, run
from tests.containers.workload import (
    HEALED_WITHIN_S,
    PARTITIONS,
    await_full_isr,
    await_other_leader,
    await_progress,
    leader_of,
    make_topic,
)
from tests.support.stub_client import StubClient
from tests.support.waiting import eventually

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800), pytest.mark.slow]

RECORDS = 20_000
SECRETS = "/run/paceline"
BOOTSTRAP = "broker-1:9092,broker-2:9092,broker-3:9092"
LAKE = "/srv/paceline/lake"


@dataclass(frozen=True)
class Program:
    """The sample "failover" of a language: image, command, mounts and environment of its container."""

    image: str
    command: tuple[str, ...]
    mounts: dict[Path, str]
    environment: dict[str, str] = field(default_factory=dict)


def _go(folder: Path) -> Program:
    if shutil.which("go") is None:
        pytest.skip("the Go toolchain is not installed")
    program = folder / "failover"
    build = ["go", "build", "-o", str(program), "./samples/failover"]
    done = subprocess.run(
        ["env", "CGO_ENABLED=0", *build], cwd=ROOT / "clients" / "go", capture_output=True, text=True, timeout=900.0
    )
    assert done.returncode == 0, done.stderr
    command = ("/failover", "-bootstrap", BOOTSTRAP, "-count", str(RECORDS), "-rate", "1000", "-topic")
    variables = {
        "PACELINE_SSL_CA_FILE": f"{SECRETS}/ca.crt",
        "PACELINE_SSL_CERTIFICATE_FILE": f"{SECRETS}/client.crt",
        "PACELINE_SSL_KEY_FILE": f"{SECRETS}/client.key",
    }
    return Program("paceline:dev", command, {program: "/failover"}, variables)


def _java(_: Path) -> Program:
    if shutil.which("mvn") is None or shutil.which("javac") is None:
        pytest.skip("Maven or a JDK is not installed")
    run(["scripts/clients/java.sh", "driver"], timeout_s=900.0)
    target = ROOT / "clients" / "java" / "samples" / "target"
    command = (
        *("java", "-Xmx128m", "-cp", "/samples/lib/*:/samples/paceline-samples-0.1.0.jar"),
        *("io.paceline.samples.Failover", "--bootstrap", BOOTSTRAP),
        *("--ca", f"{SECRETS}/ca.crt", "--cert", f"{SECRETS}/client.crt", "--key", f"{SECRETS}/client.key"),
        *("--count", str(RECORDS), "--rate", "1000", "--topic"),
    )
    return Program("paceline-zookeeper:dev", command, {target: "/samples"})


@pytest.mark.parametrize("build", [_go, _java], ids=["go", "java"])
def test_a_client_loses_nothing_when_the_leaders_container_is_killed(
    build: Callable[[Path], Program], cluster: ComposeCluster, client: StubClient, tmp_path: Path
) -> None:
    program, topic = build(tmp_path), f"{build.__name__.strip('_')}-in-containers"
    with Admin(cluster.bootstrap, tls=cluster.tls) as admin:
        admin.create_acls([AccessRule("User:load", right, "Topic", topic) for right in ("Create", "Write", "Read")])
    name = f"{cluster.project}-{topic}"
    command = [
        *["docker", "run", "--rm", "--name", name, "--network", f"{cluster.project}_front", "--entrypoint", ""],
        *["--user", "10001:10001", "--label", f"com.docker.compose.project={cluster.project}"],
        *["-v", f"{cluster.project}_load-secrets:{SECRETS}:ro"],
        *(part for here, there in program.mounts.items() for part in ("-v", f"{here}:{there}:ro")),
        *(part for key, value in program.environment.items() for part in ("-e", f"{key}={value}")),
        *[program.image, *program.command, topic],
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            old = _while_running(running, lambda: _leader(client, topic), f"{topic} has a leader")
            _while_running(running, lambda: client.end_offset(topic, 0) > 1_000, "records of the program are there")
            cluster.kill(BROKERS[old])
            output, messages = running.communicate(timeout=400.0)
        finally:
            running.kill()
            subprocess.run(["docker", "rm", "-f", "-v", name], capture_output=True, timeout=120.0)
    assert running.returncode == 0, f"{output}\n{messages}"
    result = json.loads(output)
    assert (result["acknowledged"], result["read"]) == (RECORDS, RECORDS)
    assert (result["lost"], result["doubled"], result["reordered"], result["failed"]) == (0, 0, 0, 0)
    cluster.start(BROKERS[old])
    await_full_isr(client, topic)


def _while_running(program: subprocess.Popen[str], condition: Callable[[], int], what: str) -> int:
    """Wait for a non-zero result of the condition and return it; fail with the program's output if it exits first."""

    def look() -> int:
        if program.poll() is not None:
            raise AssertionError(f"the program has ended with {program.returncode}: {program.communicate()}")
        return condition()

    return eventually(look, 240.0, what, pause_s=1.0)


def _leader(client: StubClient, topic: str) -> int:
    return leader_of(client, topic, 0) if topic in {found.name for found in client.describe_topics()} else 0


_COUNT = """
import json, sys
import deltalake
table = deltalake.DeltaTable(sys.argv[1]).to_pyarrow_table(columns=["partition", "offset", "value"])
found = {}
for partition, offset, value in zip(*(table[name].to_pylist() for name in ("partition", "offset", "value"))):
    found.setdefault(partition, []).append([offset, value.decode()])
print(json.dumps(found))
"""


def test_a_spark_job_copies_every_record_once_when_the_leaders_container_is_killed(
    cluster: ComposeCluster, client: StubClient
) -> None:
    run(["scripts/images.sh", "pipeline"], timeout_s=1700.0)
    topic = "spark-in-containers"
    make_topic(client, topic)
    table = f"{LAKE}/{topic}"
    with _spark(cluster):
        with cluster.load(topic, PARTITIONS) as load:
            await_progress(load, 200)
            ingest = ["paceline", "pipeline", "ingest", "--master", "spark://spark-master:7077", topic, "--to", table]
            with _driver(cluster, *ingest, "--continuous", "--interval", "1") as job:
                _while_running(job, lambda: _commits(cluster, table) >= 2, "the job has committed")
                old = leader_of(client, topic, 0)
                cluster.kill(BROKERS[old])
                await_other_leader(client, topic, old)
                await_progress(load, 200)
                before = _commits(cluster, table)
                _while_running(job, lambda: _commits(cluster, table) > before, "the job commits after the failover")
            load.stop()
        with _driver(cluster, *ingest) as rest:
            _, messages = rest.communicate(timeout=400.0)
            assert rest.returncode == 0, messages
        with _driver(cluster, "python", "-c", _COUNT, table) as count:
            output, messages = count.communicate(timeout=240.0)
            assert count.returncode == 0, messages
    copied = json.loads(output.splitlines()[-1])
    for partition, acknowledged in enumerate(load.acknowledged):
        rows = sorted((offset, value.encode()) for offset, value in copied[str(partition)])
        assert [offset for offset, _ in rows] == list(range(len(rows))), "an offset is missing or duplicated"
        assert acknowledged.items() <= dict(rows).items()
        assert len({value for _, value in rows}) == len(rows)
    cluster.start(BROKERS[old])
    await_full_isr(client, topic, HEALED_WITHIN_S)


@contextmanager
def _spark(cluster: ComposeCluster) -> Iterator[None]:
    """Run a Spark master and a worker next to the cluster while the block runs."""
    services = ("spark-master", "spark-worker-1")
    cluster.compose("--profile", "pipeline", "up", "-d", "--no-build", "--no-deps", *services, timeout_s=300.0)
    try:
        yield
    except BaseException:
        print(*(cluster.log(service, 40) for service in services), sep="\n")
        executors = ["docker", "exec", cluster.container("spark-worker-1"), "sh", "-c"]
        print(run([*executors, "tail -n 60 /tmp/spark/*/*/stderr 2>&1 || true"]))
        raise
    finally:
        cluster.compose("--profile", "pipeline", "rm", "-f", "-s", "-v", *services, timeout_s=300.0)


@contextmanager
def _driver(cluster: ComposeCluster, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a container of the pipeline image with the volume of the tables; remove it after the block."""
    name = f"{cluster.project}-driver"
    started = [
        *["docker", "run", "--rm", "--name", name, "--network", f"{cluster.project}_front", "--tmpfs", "/tmp:exec"],
        *["--label", f"com.docker.compose.project={cluster.project}"],
        *["-v", f"{cluster.project}_spark-secrets:{SECRETS}:ro", "-v", f"{cluster.project}_lake:{LAKE}"],
        *["-e", f"SPARK_CONF_DIR={SECRETS}", "-e", f"PACELINE_BOOTSTRAP_SERVERS={BOOTSTRAP}"],
        *["-e", f"PACELINE_SSL_CA_FILE={SECRETS}/ca.crt", "-e", f"PACELINE_SSL_CERTIFICATE_FILE={SECRETS}/client.crt"],
        *["-e", f"PACELINE_SSL_KEY_FILE={SECRETS}/client.key", "paceline-pipeline:dev", *command],
    ]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        except BaseException:
            logged = subprocess.run(
                ["docker", "logs", "--tail", "40", name], capture_output=True, text=True, timeout=60.0
            )
            print(logged.stdout, logged.stderr)
            raise
        finally:
            subprocess.run(["docker", "rm", "-f", "-v", name], capture_output=True, timeout=120.0)
            running.kill()


def _commits(cluster: ComposeCluster, table: str) -> int:
    """Return the number of versions of the table, 0 before the driver's container runs."""
    look = f"ls {table}/_delta_log 2>/dev/null | grep -c json"
    command = ["docker", "exec", f"{cluster.project}-driver", "sh", "-c", look]
    found = subprocess.run(command, capture_output=True, text=True, timeout=180.0)
    return int(found.stdout) if found.returncode == 0 else 0
