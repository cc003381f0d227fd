"""Measure the cost of TLS: produce, fetch, latency and new connections, with plaintext in alternating rounds.

    python -m benchmarks.security [--seconds 4] [--rounds 5] [--output build/bench/security.json]

Two clusters of three brokers run on this machine, one in plaintext, one with mutual TLS on every listener. Only one of
them has load at a time, in an order that alternates between rounds. A figure is the median over the rounds of TLS
divided by plaintext in the same round, which other work on the machine changes least; the rounds are listed, too.
"""

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

from benchmarks.cpu import meter_of
from benchmarks.data import PARTITIONS, consume_raw, end_to_end, produce
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline.rpc.channels import open_channel
from paceline.rpc.security.client_tls import FILE_VARIABLES, client_credentials
from paceline.v1.metadata_service_pb2 import DescribeClusterRequest
from paceline.v1.metadata_service_pb2_grpc import MetadataServiceStub
from paceline_client import Admin, NewTopic

_RECORD_BYTES = 1_024
_CONNECTIONS = 50
_CALLS = 500
_LATENCIES = 300
_READS = 3


def main() -> None:
    """Run all rounds, print the ratios and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.security", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each throughput measurement")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both")
    parser.add_argument("--output", type=Path, default=Path("build/bench/security.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    clusters = {
        name: LocalCluster(Path("build/bench") / f"security-{name}", CONFIG_FILE, secure=name == "tls")
        for name in ("plaintext", "tls")
    }
    rounds: list[dict[str, dict[str, float]]] = []
    try:
        for cluster in clusters.values():
            remove(cluster.directory)
            cluster.start()
        for number in range(arguments.rounds):
            order = sorted(clusters, reverse=bool(number % 2))
            rounds.append({name: _measure(clusters[name], f"round{number}", arguments.seconds) for name in order})
            print(f"round {number + 1}: {json.dumps(rounds[-1])}", flush=True)
    finally:
        for cluster in clusters.values():
            cluster.stop()
            remove(cluster.directory)
    results = [_compared(figure, rounds) for figure in rounds[0]["tls"]]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
    for row in results:
        print("  " + "  ".join(f"{key}={value}" for key, value in row.items()))
    print(f"written to {arguments.output}")


def _compared(figure: str, rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    ratios = [one["tls"][figure] / one["plaintext"][figure] for one in rounds]
    return {
        "name": figure,
        "tls_to_plaintext": round(statistics.median(ratios), 3),
        "plaintext": round(statistics.median(one["plaintext"][figure] for one in rounds), 3),
        "tls": round(statistics.median(one["tls"][figure] for one in rounds), 3),
        "rounds": [round(ratio, 3) for ratio in ratios],
    }


def _measure(cluster: LocalCluster, topic: str, seconds: float) -> dict[str, float]:
    with _environment(cluster):
        with Admin(cluster.bootstrap) as admin:
            for name in (topic, f"{topic}-latency"):
                admin.create_topics([NewTopic(name, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
        meter = meter_of(cluster)
        written = produce(cluster.bootstrap, topic, _RECORD_BYTES, "all", seconds)
        produce_cpu = meter.seconds()
        meter = meter_of(cluster)
        # One read of so few records would mostly measure its connections.
        reads = [consume_raw(cluster.bootstrap, topic) for _ in range(_READS)]
        read, fetch_cpu = reads[0][0], meter.seconds() / _READS
        read_seconds = statistics.median(seconds for _, seconds in reads)
        latency = end_to_end(cluster.bootstrap, f"{topic}-latency", _LATENCIES, 50, 100)
        return {
            "produce_records_per_s": written,
            "produce_cpu_us_per_record": produce_cpu / read * 1e6,
            "fetch_records_per_s": read / read_seconds,
            "fetch_cpu_us_per_record": fetch_cpu / read * 1e6,
            "ack_ms_p50": latency["ack_p50"],
            "ack_ms_p99": latency["ack_p99"],
            "end_to_end_ms_p50": latency["latency_p50"],
            "small_call_ms": _small_call_ms(cluster),
            "new_connection_ms": _new_connection_ms(cluster),
        }


def _new_connection_ms(cluster: LocalCluster) -> float:
    """Return the median time of the first call on a new connection."""
    return statistics.median(_calls_ms(cluster, 1) for _ in range(_CONNECTIONS))


def _small_call_ms(cluster: LocalCluster) -> float:
    return _calls_ms(cluster, _CALLS)


def _calls_ms(cluster: LocalCluster, count: int) -> float:
    """Return the mean time of calls one after the other, including the connection."""
    began = time.perf_counter()
    address, tls = cluster.broker(1).client_address, client_credentials(cluster.client_tls, {})
    with open_channel(address, own_connection=True, tls=tls) as channel:
        stub = MetadataServiceStub(channel)
        for _ in range(count):
            stub.DescribeCluster(DescribeClusterRequest(), timeout=10)
        return (time.perf_counter() - began) * 1000 / count


@contextlib.contextmanager
def _environment(cluster: LocalCluster) -> Iterator[None]:
    """Set the variables that name the cluster's certificate files."""
    files = astuple(cluster.client_tls) if cluster.client_tls is not None else ()
    for name, path in zip(FILE_VARIABLES, files, strict=False):
        os.environ[name] = str(path)
    try:
        yield
    finally:
        for name in FILE_VARIABLES:
            os.environ.pop(name, None)


if __name__ == "__main__":
    main()
