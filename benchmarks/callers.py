"""Measure many small clients on Paceline and Apache Kafka 3.9.1 (ZooKeeper mode) in one run, on this machine.

    python -m benchmarks.callers [--seconds 8] [--only callers_50] [--without-kafka] [--output build/bench/callers.json]

Both have three brokers, RF 3, min ISR 2; each is started alone, warmed up, measured and stopped. The clients of
Paceline are a Go program on generated stubs (clients/go/callers), those of Kafka are Java producers and consumers
(benchmarks/KafkaCallers.java).

| Row | Load |
|---|---|
| `callers_N` | N connections; each sends a record of 100 bytes with acks=all and waits for its acknowledgement |
| `stream_N` | the same with one `ProduceStream` per caller; compared with Kafka's `callers_N` |
| `tail_50` | 1,000 records a second, all read by 50 consumers: records read a second, milliseconds from send to read |
| `spread_1000` | records to 1,000 partitions at random, linger 5 ms, at most 5,000 unacknowledged: records a second |
| `idle_2000` | `callers_50` beside 2,000 connections that have made one call |
| `wait_50` | `callers_10` beside 50 consumers that wait for 256 KiB or 500 ms; Paceline only |

``paceline`` and ``kafka`` are requests (records) a second, and ``ratio`` is ``paceline`` divided by ``kafka``. The
processor time of the three brokers, user and system, is given per request; it is more reliable than the rate when the
machine has other work.
"""

import argparse
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu import CpuMeter
from benchmarks.kafka import JARS, ROOT, KafkaCluster, KafkaNotAvailableError
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline_client import Admin, NewTopic

SIZE_BYTES = 100
WARM_UP_S = 4
SMALL, WIDE = "small", "wide"
PARTITIONS = {SMALL: 6, WIDE: 1_000}
_PROGRAM_TIMEOUT_S = 240.0
_JIT_WARM_UP_S = 30


@dataclass(frozen=True)
class Row:
    """A load, and the row of Kafka with which it is compared: by default the same row, "" for no comparison."""

    name: str
    mode: str
    count: int
    topic: str = SMALL
    kafka: str | None = None

    @property
    def counterpart(self) -> str:
        """Return the name of Kafka's row."""
        return self.name if self.kafka is None else self.kafka


ROWS = [
    Row("callers_10", "callers", 10),
    Row("callers_50", "callers", 50),
    Row("callers_200", "callers", 200),
    Row("stream_10", "stream", 10, kafka="callers_10"),
    Row("stream_50", "stream", 50, kafka="callers_50"),
    Row("stream_200", "stream", 200, kafka="callers_200"),
    Row("tail_50", "tail", 50),
    Row("spread_1000", "spread", 1, WIDE),
    Row("idle_2000", "idle", 2_000),
    Row("wait_50", "wait", 50, kafka=""),
]


@dataclass(frozen=True)
class Figures:
    """Figures that a load program reported, and the brokers' processor time per request."""

    rate: float
    p50_ms: float
    p99_ms: float
    errors: int
    cpu_us: float
    delivered: int = 0
    """Records that consumers have received, in the loads with `-subscribers`."""


def main() -> None:
    """Measure both systems and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.callers", description=__doc__)
    parser.add_argument("--seconds", type=int, default=8, help="length of each measurement")
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS], help="measure this row; repeat")
    parser.add_argument("--without-kafka", action="store_true", help="leave Kafka out; no ratios then")
    parser.add_argument("--output", type=Path, default=Path("build/bench/callers.json"))
    arguments = parser.parse_args()
    rows = [row for row in ROWS if not arguments.only or row.name in arguments.only]
    about = stamp()
    print(headline(about), flush=True)
    program = go_program()
    began = time.monotonic()
    try:
        kafka = {} if arguments.without_kafka else _kafka(rows, arguments.seconds)
    except KafkaNotAvailableError as error:
        raise SystemExit(f"Kafka cannot be measured here: {error}") from None
    ours = _paceline(rows, arguments.seconds, program)
    results = [_result(row, ours[row.name], kafka.get(row.counterpart)) for row in rows]
    report = {
        **about,
        "seconds": round(time.monotonic() - began),
        "load": [round(value, 1) for value in os.getloadavg()],
        "results": results,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _print_table(results)
    print(f"written to {arguments.output} after {report['seconds']} s")


def _result(row: Row, ours: Figures, kafka: Figures | None) -> dict[str, Any]:
    result: dict[str, Any] = {"name": row.name, "paceline": round(ours.rate, 1)}
    if kafka is not None:
        result |= {"kafka": round(kafka.rate, 1), "ratio": round(ours.rate / kafka.rate, 3)}
    for system, figures in (("paceline", ours), ("kafka", kafka)):
        if figures is not None:
            result |= {
                f"{system}_p50_ms": round(figures.p50_ms, 2),
                f"{system}_p99_ms": round(figures.p99_ms, 2),
                f"{system}_cpu_us": round(figures.cpu_us, 1),
                f"{system}_errors": figures.errors,
            }
    return result


def _print_table(results: Iterable[dict[str, Any]]) -> None:
    print(f"  {'':<13}{'ratio':>6}   Paceline: rate, p50, p99, CPU{'':<14}Kafka: rate, p50, p99, CPU")
    for row in results:
        sides = [
            f"{row[system]:>9,.0f}/s {row[f'{system}_p50_ms']:>7.2f} {row[f'{system}_p99_ms']:>7.2f} ms"
            f" {row[f'{system}_cpu_us']:>7.0f} us"
            for system in ("paceline", "kafka")
            if system in row
        ]
        print(f"  {row['name']:<13}{row.get('ratio', ''):>6}   {'   '.join(sides)}")


def go_program() -> Path:
    """Build clients/go/callers and return its path."""
    if shutil.which("go") is None:
        raise SystemExit("the clients of Paceline are a Go program, and there is no go here")
    target = ROOT / "build" / "bench" / "callers"
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "build", "-o", str(target), "./callers"], cwd=ROOT / "clients" / "go", check=True)
    return target


def _kafka(rows: Iterable[Row], seconds: int) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    wanted = {row.counterpart: row for row in rows if row.counterpart}
    by_name = {row.name: row for row in ROWS}
    with KafkaCluster((ROOT / "build" / "bench" / "kafka-callers").resolve()) as cluster:
        for topic in {by_name[name].topic for name in wanted} | {SMALL}:
            cluster.create_topic(topic, PARTITIONS[topic])

        def run(row: Row, seconds: int = seconds) -> Figures:
            command = [
                "java", "-Xmx2g", "-Xss512k", "-cp", f"{JARS}/*", str(ROOT / "benchmarks" / "KafkaCallers.java"),
                cluster.bootstrap, row.topic, str(PARTITIONS[row.topic]), row.mode, str(row.count),
                str((WARM_UP_S + 2) * 1000), str(seconds * 1000), str(SIZE_BYTES),
            ]  # fmt: skip
            return measured(command, seconds, lambda: cluster.broker_pids)

        run(by_name["callers_200"], _JIT_WARM_UP_S)  # Java compiles its hot paths
        for name in wanted:
            found[name] = _told("kafka", name, run(by_name[name]))
    return found


def _paceline(rows: Iterable[Row], seconds: int, program: Path) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    directory = Path("build/bench/callers-cluster")
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE)
    try:
        cluster.start()
        pids = [
            node.process.pid
            for name, node in cluster.nodes.items()
            if name.startswith("broker") and node.process is not None
        ]
        with Admin(cluster.bootstrap) as admin:
            for topic in {row.topic for row in rows}:
                admin.create_topics([NewTopic(topic, PARTITIONS[topic], 3, configs={"min.insync.replicas": "2"})])
        for row in rows:
            command = [
                str(program), "-bootstrap", cluster.bootstrap.split(",")[0], "-topic", row.topic, "-mode", row.mode,
                "-count", str(row.count), "-warm-up", f"{WARM_UP_S}s", "-length", f"{seconds}s",
                "-size", str(SIZE_BYTES),
            ]  # fmt: skip
            found[row.name] = _told("paceline", row.name, measured(command, seconds, lambda: pids))
    finally:
        cluster.stop()
    remove(directory)
    return found


def _told(system: str, name: str, figures: Figures) -> Figures:
    print(
        f"  {system}: {name} {figures.rate:,.0f}/s p50 {figures.p50_ms:.2f} ms p99 {figures.p99_ms:.2f} ms"
        f" {figures.cpu_us:.0f} us errors {figures.errors}",
        flush=True,
    )
    return figures


def measured(command: list[str], seconds: int, broker_pids: Callable[[], list[int]]) -> Figures:
    """Run a load program and return its figures, with the processor time of the brokers during the measurement."""
    meter: CpuMeter | None = None
    used_s = 0.0
    result: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        deadline_s = time.monotonic() + _PROGRAM_TIMEOUT_S
        try:
            for line in process.stdout:
                if line.startswith("MEASURE"):
                    meter = CpuMeter(broker_pids())
                elif line.startswith("END") and meter is not None:
                    used_s = meter.seconds()
                elif line.startswith("RESULT"):
                    result = json.loads(line.removeprefix("RESULT"))
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"the load program takes longer than {_PROGRAM_TIMEOUT_S} s: {command}")
        finally:
            process.kill()
    if not result.get("count"):
        raise RuntimeError(f"no request succeeded: {command} {result}")
    rate = float(result["rate"])
    cpu_us = used_s / seconds / rate * 1e6
    return Figures(rate, result["p50_ms"], result["p99_ms"], result["errors"], cpu_us, result.get("delivered", 0))


if __name__ == "__main__":
    main()
