"""Start and measure Apache Kafka 3.9.1 in ZooKeeper mode, on loopback, with jars from Maven; for comparisons only."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.dev.ports import free_plan

ROOT = Path(__file__).resolve().parents[1]
JARS = ROOT / "build" / "kafka-jars"
POM = ROOT / "tests" / "golden" / "kafka-tools" / "pom.xml"
_LATENCY_PROGRAM = ROOT / "benchmarks" / "KafkaLatency.java"
_TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
_MAVEN_TIMEOUT_S = 600.0
_TOOL_TIMEOUT_S = 300.0
"""Time limit of a run of Kafka's tools, after which `subprocess.run` kills the tool."""


class KafkaNotAvailableError(Exception):
    """Kafka's jars or Java are not available on this machine."""


def fetch_jars() -> Path:
    """Return the folder with Kafka's jars, after downloading them with Maven the first time.

    Raises:
        KafkaNotAvailableError: no Java, no Maven, or Maven failed.
    """
    if shutil.which("java") is None:
        raise KafkaNotAvailableError("no java")
    if not list(JARS.glob("kafka_2.13-*.jar")):
        if shutil.which("mvn") is None:
            raise KafkaNotAvailableError("no build/kafka-jars and no mvn to fetch them")
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={JARS}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_MAVEN_TIMEOUT_S,
        )
        if done.returncode:
            raise KafkaNotAvailableError(f"mvn failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return JARS


@dataclass
class KafkaCluster:
    """A ZooKeeper server and three brokers, as a context manager."""

    directory: Path
    brokers: int = 3
    heap_mib: int = 1_500
    session_timeout_ms: int = 6_000
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of every broker, which override the defaults below."""
    _processes: list["subprocess.Popen[bytes]"] = field(default_factory=list, init=False)
    bootstrap: str = field(default="", init=False)
    zookeeper: str = field(default="", init=False)
    broker_pids: list[int] = field(default_factory=list, init=False)
    """Process ids of the brokers, in the order of their ids."""

    def __enter__(self) -> Self:
        fetch_jars()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        plan = free_plan(0, self.brokers)
        ports = [node.listeners["CLIENT"] for node in plan.brokers]
        self.zookeeper = f"127.0.0.1:{plan.zookeeper}"
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        try:
            self._start(plan.zookeeper, ports)
            self._await_brokers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill every process and remove the data."""
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()
        self.broker_pids.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill_broker(self, number: int) -> None:
        """Send SIGKILL to a broker, by its id, and wait until the process has ended."""
        pid = self.broker_pids[number - 1]
        (process,) = [process for process in self._processes if process.pid == pid]
        os.killpg(pid, signal.SIGKILL)
        process.wait()
        self._processes.remove(process)

    def start_broker(self, number: int) -> None:
        """Start a broker; it returns before the broker serves."""
        properties = self.directory / f"server-{number}.properties"
        pid = self._java(f"broker-{number}", self.heap_mib, "kafka.Kafka", str(properties))
        self.broker_pids[number - 1] = pid

    def create_topic(self, name: str, partitions: int, min_insync_replicas: int = 2, replicas: int = 3) -> None:
        """Create a topic, with a time limit that is long enough for thousands of partitions."""
        patient = self.directory / "admin.properties"
        milliseconds = int(_TOOL_TIMEOUT_S * 1_000)
        patient.write_text(f"default.api.timeout.ms={milliseconds}\nrequest.timeout.ms={milliseconds}\n")
        self.tool(
            _TOPIC_COMMAND, "--bootstrap-server", self.bootstrap, "--command-config", str(patient), "--create",
            "--topic", name,
            "--partitions", str(partitions), "--replication-factor", str(replicas),
            "--config", f"min.insync.replicas={min_insync_replicas}",
        )  # fmt: skip

    def produce(self, topic: str, size: int | Path, records: int, acks: str = "all", linger_ms: int = 5) -> float:
        """Return records per second of Kafka's own performance producer; ``size`` may be a file of lines as values."""
        values = ["--record-size", str(size)] if isinstance(size, int) else ["--payload-file", str(size)]
        out = self.tool(
            "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
            *values, "--throughput", "-1", "--producer-props",
            f"bootstrap.servers={self.bootstrap}", f"acks={acks}", f"linger.ms={linger_ms}", "batch.size=262144",
            "compression.type=none",
        )  # fmt: skip
        return float(re.findall(r"([\d.]+) records/sec", out)[-1])

    def consume(self, topic: str, records: int) -> float:
        """Return records per second of Kafka's own performance consumer while it fetches."""
        out = self.tool(
            "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--bootstrap-server", self.bootstrap,
            "--messages", str(records), "--timeout", "60000",
        )  # fmt: skip
        row = [cell.strip() for cell in out.strip().splitlines()[-1].split(",")]
        return float(row[-1])

    def end_to_end_ms(self, topic: str, records: int, warm_up: int, size: int) -> dict[str, float]:
        """Return p50 and p99 in milliseconds from send (acks=all) to the acknowledgement, and to the consumer.

        Kafka's EndToEndLatency does the same, but cuts each sample off to whole milliseconds.
        """
        out = self.tool(str(_LATENCY_PROGRAM), self.bootstrap, topic, str(records), str(warm_up), str(size))
        found = re.findall(r"^(ack|latency) p50 ([\d.]+) p99 ([\d.]+)", out, re.MULTILINE)
        if len(found) != 2:
            raise RuntimeError(out[-500:])
        ranks = {f"{name}_p50": float(p50) for name, p50, _ in found}
        return ranks | {f"{name}_p99": float(p99) for name, _, p99 in found}

    def tool(self, main: str, *arguments: str) -> str:
        """Run one of Kafka's command-line tools, or a Java source file, and return what it printed."""
        done = subprocess.run(
            ["java", "-Xmx1g", "-cp", f"{JARS}/*", main, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TOOL_TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(f"{main}: {done.stdout[-800:]}{done.stderr[-800:]}")
        return done.stdout

    def _start(self, zookeeper: int, ports: list[int]) -> None:
        config = self.directory / "zoo.cfg"
        config.write_text(
            f"tickTime=500\ndataDir={self.directory}/zookeeper\nclientPort={zookeeper}\nmaxClientCnxns=0\n"
            "admin.enableServer=false\n",
            encoding="utf-8",
        )
        self._java("zookeeper", 256, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config))
        for number, port in enumerate(ports, 1):
            properties = self.directory / f"server-{number}.properties"
            properties.write_text(
                f"broker.id={number}\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={self.directory}/data-{number}\n"
                f"zookeeper.connect=127.0.0.1:{zookeeper}\n"
                f"zookeeper.session.timeout.ms={self.session_timeout_ms}\nnum.network.threads=2\n"
                "num.io.threads=4\noffsets.topic.replication.factor=3\nauto.leader.rebalance.enable=false\n"
                + "".join(f"{key}={value}\n" for key, value in self.settings.items()),
                encoding="utf-8",
            )
            self.broker_pids.append(0)
            self.start_broker(number)

    def _java(self, name: str, heap_mib: int, *arguments: str) -> int:
        """Start a Java program and return its process id."""
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    ["java", f"-Xmx{heap_mib}m", f"-Xms{heap_mib}m", "-XX:+UseG1GC", "-cp", f"{JARS}/*", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        return self._processes[-1].pid

    def _await_brokers(self, timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.tool(_TOPIC_COMMAND, "--bootstrap-server", self.bootstrap, "--list")
                return
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)
