"""Paceline side by side with Apache Kafka 3.9.1 (ZooKeeper mode) in the same run, on this machine.

    python -m benchmarks.versus_kafka [--output build/bench/versus_kafka.json]

Both have three brokers, RF 3, min ISR 2, acks=all, six partitions, one producer, one consumer; each is started alone,
measured, and stopped before the other. A ratio above 1 is better for Paceline, for latencies too.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.data import PARTITIONS, SIZES, consume, end_to_end, produce
from benchmarks.kafka import KafkaCluster, KafkaNotAvailableError
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline_client import Admin, NewTopic

KAFKA_RECORDS = {100: 5_000_000, 1024: 1_000_000}


def main() -> None:
    """Measure both and write the ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versus_kafka", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each of our produce measurements")
    parser.add_argument("--output", type=Path, default=Path("build/bench/versus_kafka.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    try:
        kafka = _kafka()
    except KafkaNotAvailableError as error:
        raise SystemExit(f"Kafka cannot be measured here: {error}") from None
    ours = _paceline(arguments.seconds)
    results = []
    for name in sorted(ours):
        better = kafka[name] / ours[name] if name.startswith("latency") else ours[name] / kafka[name]
        results.append(
            {"name": name, "paceline": round(ours[name], 3), "kafka": round(kafka[name], 3), "ratio": round(better, 3)}
        )
        print(
            f"  {name:<16} paceline {ours[name]:>12,.2f}   kafka {kafka[name]:>12,.2f}   ratio {better:.2f}", flush=True
        )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.output}")


def _kafka() -> dict[str, float]:
    found: dict[str, float] = {}
    with KafkaCluster(Path("build/bench/kafka").resolve()) as cluster:
        for size in SIZES:
            topic = f"perf-{size}"
            cluster.create_topic(topic, PARTITIONS)
            cluster.produce(topic, size, KAFKA_RECORDS[size] // 5)
            found[f"produce_{size}"] = cluster.produce(topic, size, KAFKA_RECORDS[size])
            found[f"consume_{size}"] = cluster.consume(topic, KAFKA_RECORDS[size])
        cluster.create_topic("latency", 1)
        found["latency_p50"], found["latency_p99"] = cluster.end_to_end_ms("latency", 3_000, 100)
    return found


def _paceline(seconds: float) -> dict[str, Any]:
    found: dict[str, float] = {}
    directory = Path("build/bench/cluster")
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE, settings={"log.segment.bytes": "1073741824"})
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            for size in SIZES:
                admin.create_topics([NewTopic(f"perf-{size}", PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
            admin.create_topics([NewTopic("latency", 1, 3, configs={"min.insync.replicas": "2"})])
        for size in SIZES:
            found[f"produce_{size}"] = produce(cluster.bootstrap, f"perf-{size}", size, "all", seconds)
            read, elapsed = consume(cluster.bootstrap, f"perf-{size}")
            found[f"consume_{size}"] = read / elapsed
        found["latency_p50"], found["latency_p99"] = end_to_end(cluster.bootstrap, "latency", 3_000, 100)
    finally:
        cluster.stop()
    remove(directory)
    return found


if __name__ == "__main__":
    main()
