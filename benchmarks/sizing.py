"""Measure the largest load of one broker process, and of four broker processes on one machine.

    python -m benchmarks.sizing [--seconds 8] [--output build/bench/sizing.json]

One broker with topics of one replica: calls with one record, streams with one record per message, batches, idle
connections, partitions. Then four brokers with three replicas and the machine as their rack. The load programs run on
the same machine, so the table also gives the cores that the brokers used: the limit of a broker is one core.
"""

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.callers import SIZE_BYTES, WARM_UP_S, go_program, measured
from benchmarks.cpu import CpuMeter
from benchmarks.data import PARTITIONS, produce
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline_client import Admin, NewTopic

TOPIC = "sizing"
PARTITION_STEPS = (1_000, 5_000, 10_000)
TOPIC_PARTITIONS = 1_000
"""Number of partitions of each idle topic."""
IDLE_CONNECTIONS = 4_000


def main() -> None:
    """Measure both clusters and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing", description=__doc__)
    parser.add_argument("--seconds", type=int, default=8, help="length of each measurement")
    parser.add_argument("--output", type=Path, default=Path("build/bench/sizing.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    program = go_program()
    results: list[dict[str, Any]] = []
    with _cluster(brokers=1) as cluster:
        results += _shown(_loads(cluster, program, arguments.seconds), brokers=1, replicas=1)
        results += _shown(_partitions(cluster, program, arguments.seconds), brokers=1, replicas=1)
    with _cluster(brokers=4) as cluster:
        results += _shown(_loads(cluster, program, arguments.seconds), brokers=4, replicas=3)
    report = {**about, "load": [round(value, 1) for value in os.getloadavg()], "results": results}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.output}")


@contextmanager
def _cluster(brokers: int) -> Iterator[LocalCluster]:
    directory = Path("build/bench/sizing-cluster")
    remove(directory)
    settings = {"broker.rack": "this-machine", "log.segment.bytes": "1073741824", "max.connections": "8192"}
    cluster = LocalCluster(directory, CONFIG_FILE, brokers=brokers, controllers=1, settings=settings)
    try:
        cluster.start()
        replicas = min(brokers, 3)
        with Admin(cluster.bootstrap) as admin:
            configs = {"min.insync.replicas": str(min(replicas, 2))}
            topics = [TOPIC, *(f"{TOPIC}-batches-{size}" for size in (100, 1024))]
            admin.create_topics([NewTopic(topic, PARTITIONS, replicas, configs=configs) for topic in topics])
        yield cluster
    finally:
        cluster.stop()
        remove(directory)


def _broker_pids(cluster: LocalCluster) -> list[int]:
    return [
        node.process.pid
        for name, node in cluster.nodes.items()
        if name.startswith("broker") and node.process is not None
    ]


def _loads(cluster: LocalCluster, program: Path, seconds: int) -> Iterator[dict[str, Any]]:
    for mode, count in (("callers", 50), ("stream", 50), ("idle", IDLE_CONNECTIONS)):
        yield _calls(cluster, program, mode, count, seconds)
    pids = _broker_pids(cluster)
    for size in (100, 1024):
        meter, began = CpuMeter(pids), time.monotonic()
        rate = produce(cluster.bootstrap, f"{TOPIC}-batches-{size}", size, "all", seconds)
        cores = meter.seconds() / (time.monotonic() - began)
        yield {
            "name": f"batches_{size}",
            "records_per_s": round(rate),
            "mb_per_s": round(rate * size / 1e6, 1),
            "broker_cores": round(cores, 2),
        }


def _calls(cluster: LocalCluster, program: Path, mode: str, count: int, seconds: int) -> dict[str, Any]:
    command = [
        str(program), "-bootstrap", cluster.bootstrap.split(",")[0], "-topic", TOPIC, "-mode", mode,
        "-count", str(count), "-warm-up", f"{WARM_UP_S}s", "-length", f"{seconds}s", "-size", str(SIZE_BYTES),
    ]  # fmt: skip
    pids = _broker_pids(cluster)
    figures = measured(command, seconds, lambda: pids)
    return {
        "name": f"{mode}_{count}",
        "records_per_s": round(figures.rate),
        "p50_ms": round(figures.p50_ms, 2),
        "p99_ms": round(figures.p99_ms, 2),
        "cpu_us": round(figures.cpu_us),
        "broker_cores": round(figures.rate * figures.cpu_us / 1e6, 2),
        "errors": figures.errors,
    }


def _partitions(cluster: LocalCluster, program: Path, seconds: int) -> Iterator[dict[str, Any]]:
    """Add partitions step by step; measure creation, idle cores, memory and `callers_50` after each step."""
    made = 0
    pids = _broker_pids(cluster)
    with Admin(cluster.bootstrap) as admin:
        for step in PARTITION_STEPS:
            began = time.monotonic()
            while made < step:
                admin.create_topics(
                    [NewTopic(f"{TOPIC}-{made}", TOPIC_PARTITIONS, 1, configs={"min.insync.replicas": "1"})]
                )
                made += TOPIC_PARTITIONS
            created_s = time.monotonic() - began
            meter, began = CpuMeter(pids), time.monotonic()
            time.sleep(seconds)
            idle_cores = meter.seconds() / (time.monotonic() - began)
            calls = _calls(cluster, program, "callers", 50, seconds)
            yield {
                **calls,
                "name": f"partitions_{step}",
                "created_s": round(created_s, 1),
                "idle_cores": round(idle_cores, 3),
                "memory_mib": round(sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20),
            }


def _shown(rows: Iterable[dict[str, Any]], **about: int) -> Iterator[dict[str, Any]]:
    """Yield the rows with the prefix ``about``, and print each row when it is measured."""
    for row in rows:
        whole = {**about, **row}
        print("  " + "  ".join(f"{key}={value}" for key, value in whole.items()), flush=True)
        yield whole


if __name__ == "__main__":
    main()
