"""Compare the data source and the ingest job with Spark's own Kafka source, in the same run on this machine.

    python -m benchmarks.pipeline [--records 4000000] [--rounds 3] [--seconds 20] [--many 10000] [--sizes 50-149]
        [--only batch_noop micro_batch] [--output build/bench/pipeline.json]

Kafka 3.9.1 and Paceline have three brokers, six partitions, three replicas and the same number of records of 100 bytes,
or with values of random sizes in the range of ``--sizes``.
Spark with local[2] reads each alone: PySpark 4.2.0 with spark-sql-kafka-0-10_2.13 4.2.0, the newest version, and
PySpark 4.3 with Paceline's source. Figures are medians of warm rounds.

batch_noop: rows per second of a batch read to the noop sink.
parquet_writer: rows per second to Parquet files with Spark's writer.
ingest_delta: rows per second into a Delta table, Paceline's ingest job and, after Spark's Kafka source, foreachBatch
with delta-rs.
micro_batch: milliseconds of a micro-batch to the noop sink while 1,000 records a second are written to six partitions;
``above_empty_ms`` is the part above a micro-batch of a Python source that does nothing, in the same session.
micro_batch_10000_partitions: the same with --many partitions of one replica (the number in the name).
``spark_kafka_at_least``: no micro-batch of Spark's Kafka source ended in the time
limit, which is used as its time.
plan_100k_partitions: seconds of the job ``plan`` for 100,000 partitions. Spark has no counterpart.

A ratio above 1 is better for Paceline, for times too.
"""

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kafka import KafkaCluster, KafkaNotAvailableError
from benchmarks.spark_kafka import environment_of_child, fetch_environment
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline.planning.goals import DEFAULT_THRESHOLD, PartitionLoad, load_goals
from paceline.planning.planner import make_plan
from paceline_client import Admin, NewTopic, Producer

SESSION = Path(__file__).with_name("pipeline_session.py")
FOLDER = Path("build/bench").resolve()
PARTITIONS = 6
RECORD_BYTES = 100
RATE = 1_000
SESSION_TIMEOUT_S = 1_800.0
ROWS = {
    "batch_noop": "batch_noop",
    "parquet_writer": "parquet",
    "ingest_delta": "delta",
    "micro_batch": "micro_batch_ms",
}
"""Rows of a session, and their names in its output."""
AIMS = {"batch_noop": 2.3, "parquet_writer": 2.0, "ingest_delta": 3.0, "micro_batch": 3.5}
AIM_MANY_RATIO = 300.0
AIM_ABOVE_EMPTY_MS = 15.0
AIM_PLAN_S = 10.0

Figures = dict[str, Any]


def main() -> None:
    """Measure both and write the ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each stream")
    parser.add_argument("--many", type=int, default=10_000, help="partitions of the wide topic; 0 leaves it out")
    parser.add_argument("--plan", type=int, default=100_000, help="partitions of the plan; 0 leaves it out")
    parser.add_argument("--sizes", default="100-100", metavar="LOW-HIGH", help="bytes of a value (100-100)")
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS), help="rows to measure")
    parser.add_argument("--heap", default="1g", help="of Spark's driver")
    parser.add_argument("--output", type=Path, default=Path("build/bench/pipeline.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    try:
        kafka = _kafka(arguments)
    except KafkaNotAvailableError as error:
        raise SystemExit(f"Spark's Kafka source cannot be measured here: {error}") from None
    ours = _paceline(arguments)
    results = _compare(ours, kafka, arguments)
    if arguments.plan:
        results.append(_plan(arguments.plan))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = about | {"records": arguments.records, "sizes": arguments.sizes, "results": results}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    for each in results:
        print(json.dumps(each), flush=True)


def _kafka(arguments: argparse.Namespace) -> Figures:
    python, jars = fetch_environment()
    with KafkaCluster(FOLDER / "kafka", heap_mib=768) as cluster:
        cluster.create_topic("perf", PARTITIONS)
        cluster.create_topic("live", PARTITIONS)
        values = FOLDER / "kafka" / "values"
        values.write_bytes(b"\n".join(_values(arguments.sizes)))
        print(f"kafka: {cluster.produce('perf', values, arguments.records):,.0f} records/s written", flush=True)

        def write(topic: str) -> None:
            cluster.tool(
                "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records",
                str(int(arguments.seconds * RATE)), "--record-size", str(RECORD_BYTES), "--throughput", str(RATE),
                "--producer-props", f"bootstrap.servers={cluster.bootstrap}", "acks=all",
                "partitioner.class=org.apache.kafka.clients.producer.RoundRobinPartitioner",
            )  # fmt: skip

        side = _Side("kafka", [str(python)], cluster.bootstrap, ["--jars", ",".join(str(jar) for jar in jars)])
        found = _session(arguments, side, arguments.only, "live", write)
        if arguments.many:
            cluster.create_topic("wide", arguments.many, min_insync_replicas=1, replicas=1)
            wide = _session(arguments, side, ["micro_batch"], "wide", write)
            found["micro_batch_many_ms"] = wide["micro_batch_ms"]
            found["many_not_ended"] = wide.get("micro_batch_not_ended", False)
        return found


def _values(sizes: str) -> list[bytes]:
    low, high = map(int, sizes.split("-"))
    rng = random.Random(7)
    return [b"x" * rng.randint(low, high) for _ in range(1_000)]


def _paceline(arguments: argparse.Namespace) -> Figures:
    directory = FOLDER / "paceline"
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE)
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            settings = {"min.insync.replicas": "2"}
            admin.create_topics([NewTopic(name, PARTITIONS, 3, configs=settings) for name in ("perf", "live")])
        chunk = [(None, value) for value in _values(arguments.sizes)]
        began = time.monotonic()
        with Producer(cluster.bootstrap) as producer:
            for number in range(arguments.records // len(chunk)):
                producer.send_many("perf", chunk, partition=number % PARTITIONS)
            producer.flush()
        print(f"paceline: {arguments.records / (time.monotonic() - began):,.0f} records/s written", flush=True)

        def write(topic: str) -> None:
            partitions = arguments.many if topic == "wide" else PARTITIONS
            _write_at_rate(cluster.bootstrap, topic, partitions, arguments.seconds)

        side = _Side("paceline", [sys.executable], cluster.bootstrap, [])
        found = _session(arguments, side, arguments.only, "live", write)
        if arguments.many:
            with Admin(cluster.bootstrap, default_timeout_ms=300_000) as admin:
                admin.create_topics([NewTopic("wide", arguments.many, 1, configs={"min.insync.replicas": "1"})])
            found["micro_batch_many_ms"] = _session(arguments, side, ["micro_batch"], "wide", write)["micro_batch_ms"]
        return found
    finally:
        cluster.stop(force=True)
        remove(directory)


def _write_at_rate(bootstrap: str, topic: str, partitions: int, seconds: float) -> None:
    """Write `RATE` records a second, a hundred at a time."""
    burst, value = 100, b"x" * RECORD_BYTES
    with Producer(bootstrap) as producer:
        began = time.monotonic()
        for number in range(int(seconds * RATE / burst)):
            for record in range(burst):
                producer.send(topic, value, partition=(number * burst + record) % partitions)
            time.sleep(max(0.0, began + (number + 1) * burst / RATE - time.monotonic()))
        producer.flush()


@dataclass(frozen=True)
class _Side:
    """A compared side, Paceline or Kafka."""

    name: str
    python: list[str]
    bootstrap: str
    more_arguments: list[str]


def _session(
    arguments: argparse.Namespace, side: _Side, rows: list[str], live_topic: str, write: Callable[[str], None]
) -> Figures:
    """Run a Spark session and return its figures; ``write`` writes to ``live_topic`` when the session is ready."""
    if not rows:
        return {}
    command = [*side.python, str(SESSION), side.name, side.bootstrap, "perf", str(FOLDER / f"{side.name}-output")]
    batches = [ROWS[row] for row in rows if row != "micro_batch"]
    command += ["--rounds", str(arguments.rounds), "--heap", arguments.heap, *side.more_arguments]
    command += ["--batches", *batches, *(["--micro-batches", live_topic] if "micro_batch" in rows else [])]
    environment = environment_of_child() if side.name == "kafka" else None
    with (FOLDER / f"{side.name}-session.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    assert process.stdout is not None
    assert process.stdin is not None
    timer = threading.Timer(SESSION_TIMEOUT_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if line.strip() == "ready":
                write(live_topic)
                process.stdin.write("\n")
                process.stdin.flush()
            elif line.startswith("{"):
                found: Figures = json.loads(line)
                print(f"{side.name}: {live_topic}: {line.strip()}", flush=True)
                with suppress(subprocess.TimeoutExpired):
                    # A running micro-batch of ten thousand tasks would delay the end of the session.
                    process.wait(30)
                return found
        raise SystemExit(f"the session ended with {process.wait()}, see {log.name}: {' '.join(command)}")
    finally:
        timer.cancel()
        process.kill()


def _compare(ours: Figures, kafka: Figures, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    for name in arguments.only:
        mine, theirs = ours[ROWS[name]], kafka[ROWS[name]]
        if name == "micro_batch":
            above_ms = round(mine - ours["empty_batch_ms"], 1)
            result = _result(name, mine, theirs, theirs / mine, "ms")
            steps = {name: ours[name] for name in ("micro_batch_steps_ms", "empty_batch_steps_ms")}
            results.append(result | {"above_empty_ms": above_ms, "aim_above_empty_ms": AIM_ABOVE_EMPTY_MS} | steps)
        else:
            results.append(_result(name, mine, theirs, mine / theirs, "rows/s"))
    if arguments.many:
        mine, theirs = ours["micro_batch_many_ms"], kafka["micro_batch_many_ms"]
        result = _result(f"micro_batch_{arguments.many}_partitions", mine, theirs, theirs / mine, "ms")
        results.append(result | {"spark_kafka_at_least": kafka["many_not_ended"], "aim": AIM_MANY_RATIO})
    return results


def _result(name: str, mine: float, theirs: float, ratio: float, unit: str) -> dict[str, Any]:
    result = {"name": name, "paceline": round(mine, 1), "spark_kafka": round(theirs, 1), "ratio": round(ratio, 2)}
    return result | {"unit": unit} | ({"aim": AIMS[name]} if name in AIMS else {})


def _plan(partitions: int) -> dict[str, Any]:
    """Plan once as the job does, for 200 brokers in ten racks with skewed loads and three replicas."""
    brokers, racks = 200, 10
    rng = np.random.default_rng(5)
    first = (rng.integers(0, brokers, partitions) * rng.integers(1, 3, partitions) % brokers).tolist()
    sizes = (rng.lognormal(0, 1, partitions) * 1e8).tolist()
    placement = {("t", n): tuple((first[n] + step) % brokers for step in (0, 7, 31)) for n in range(partitions)}
    loads = {("t", n): PartitionLoad(size, size / 1e4, size / 5e3) for n, size in enumerate(sizes)}
    began = time.monotonic()
    goals = load_goals(placement, loads, DEFAULT_THRESHOLD)
    plan = make_plan(placement, {broker: str(broker % racks) for broker in range(brokers)}, goals)
    took_s = time.monotonic() - began
    number = f"{partitions // 1_000}k" if partitions % 1_000 == 0 else str(partitions)
    result = {"name": f"plan_{number}_partitions", "paceline": round(took_s, 2), "spark_kafka": None, "ratio": None}
    return result | {"unit": "s", "aim_s": AIM_PLAN_S, "crowded": plan.crowded}


if __name__ == "__main__":
    main()
