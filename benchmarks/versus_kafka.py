"""Compare Paceline with Apache Kafka 3.9.1 (ZooKeeper mode) in the same run, on this machine.

    python -m benchmarks.versus_kafka [--seconds 8] [--only latency] [--output build/bench/versus_kafka.json]

Both have three brokers, RF 3, min ISR 2, six partitions (one for the latency), one producer with acks=all and
linger.ms=5 and without compression, one consumer with its defaults. Each is started alone, warmed up, measured, and
stopped before the other. Kafka is measured by its own tools: ProducerPerformance (batch.size=262144, otherwise
defaults) and ConsumerPerformance (records a second while it fetches); and by KafkaLatency.java, which measures like
EndToEndLatency, but with samples finer than a millisecond. Paceline is measured by `Producer.send_many` (batches of
512 KiB), by `Consumer.poll_batches` with access to every record, as in Kafka's tool, and with one record at a time from
`send` to its acknowledgement (`ack_*`) and to `poll` (`latency_*`), linger.ms=0 for both. `consume_*_poll` has no
counterpart among Kafka's tools: `Consumer.poll` makes a ConsumerRecord of every record, and is compared with the same
figure of Kafka.

A ratio above 1 is better for Paceline, for latencies (milliseconds) too. On a quiet machine a run takes about three
minutes. Kafka's jars come through Maven once, into build/kafka-jars.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.data import PARTITIONS, SIZES, consume, consume_raw, end_to_end, produce
from benchmarks.kafka import KafkaCluster, KafkaNotAvailableError
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline_client import Admin, NewTopic

KAFKA_RECORDS = {100: 4_000_000, 1024: 800_000}
LATENCY_RECORDS = 2_000
WARM_UP_RECORDS = 2_000
LINGER_MS = 5
AIMS = {
    "produce_100": 2.0,
    "produce_1024": 1.5,
    "consume_100": 1.0,
    "consume_1024": 1.15,
    "consume_1024_poll": 1.0,
    "latency_p50": 0.667,
}
"""Aims of the design; the latency may be 1.5 times Kafka's."""


def main() -> None:
    """Measure both and write the ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versus_kafka", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each of our produce measurements")
    parser.add_argument("--only", choices=["latency"], help="leave the throughput out; takes a minute")
    parser.add_argument("--output", type=Path, default=Path("build/bench/versus_kafka.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    sizes: tuple[int, ...] = () if arguments.only else SIZES
    began = time.monotonic()
    try:
        kafka = _kafka(sizes)
    except KafkaNotAvailableError as error:
        raise SystemExit(f"Kafka cannot be measured here: {error}") from None
    ours = _paceline(sizes, arguments.seconds)
    results = [_row(name, ours[name], kafka[_counterpart(name)]) for name in ours]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = {**about, "seconds": round(time.monotonic() - began), "results": results}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _print_table(results)
    print(f"written to {arguments.output} after {report['seconds']} s")


def _counterpart(name: str) -> str:
    """Return Kafka's figure to compare with."""
    return name.removesuffix("_poll")


def _row(name: str, paceline: float, kafka: float) -> dict[str, Any]:
    is_time = name.startswith(("latency", "ack"))
    ratio = kafka / paceline if is_time else paceline / kafka
    row: dict[str, Any] = {
        "name": name,
        "unit": "ms" if is_time else "records/s",
        "paceline": round(paceline, 3),
        "kafka": round(kafka, 3),
        "ratio": round(ratio, 3),
    }
    if name in AIMS:
        row["aim"] = AIMS[name]
    return row


def _print_table(results: list[dict[str, Any]]) -> None:
    print(f"  {'':<18}{'unit':<11}{'Paceline':>12}{'Kafka 3.9.1':>13}{'ratio':>8}{'aim':>7}")
    for row in results:
        digits = 2 if row["unit"] == "ms" else 0
        verdict = "" if "aim" not in row else "  reached" if row["ratio"] >= row["aim"] else "  short"
        print(
            f"  {row['name']:<18}{row['unit']:<11}{row['paceline']:>12,.{digits}f}{row['kafka']:>13,.{digits}f}"
            f"{row['ratio']:>8.2f}{row.get('aim', ''):>7}{verdict}"
        )


def _progress(who: str, found: dict[str, float], measure: Callable[[], dict[str, float]]) -> None:
    """Measure, store the result and print it at once, because the whole run takes minutes."""
    for name, value in measure().items():
        found[name] = value
        print(f"  {who}: {name} {value:,.2f}", flush=True)


def _kafka(sizes: tuple[int, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    with KafkaCluster(Path("build/bench/kafka").resolve()) as cluster:
        for size in sizes:
            topic, records = f"perf-{size}", KAFKA_RECORDS[size]
            cluster.create_topic(topic, PARTITIONS)
            cluster.produce(topic, size, records // 5, linger_ms=LINGER_MS)

            def rates(topic: str = topic, size: int = size, records: int = records) -> dict[str, float]:
                made = cluster.produce(topic, size, records, linger_ms=LINGER_MS)
                return {f"produce_{size}": made, f"consume_{size}": cluster.consume(topic, records)}

            _progress("kafka", found, rates)
        cluster.create_topic("latency", 1)

        def latency() -> dict[str, float]:
            return cluster.end_to_end_ms("latency", LATENCY_RECORDS, WARM_UP_RECORDS, 100)

        _progress("kafka", found, latency)
    return found


def _paceline(sizes: tuple[int, ...], seconds: float) -> dict[str, float]:
    found: dict[str, float] = {}
    directory = Path("build/bench/cluster")
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE, settings={"log.segment.bytes": "1073741824"})
    try:
        cluster.start()
        bootstrap = cluster.bootstrap
        with Admin(bootstrap) as admin:
            for name, partitions in (("perf-100", PARTITIONS), ("perf-1024", PARTITIONS), ("latency", 1)):
                admin.create_topics([NewTopic(name, partitions, 3, configs={"min.insync.replicas": "2"})])
        for size in sizes:
            _progress("paceline", found, lambda size=size: _rates(bootstrap, size, seconds))  # type: ignore[misc]
        _progress("paceline", found, lambda: end_to_end(bootstrap, "latency", LATENCY_RECORDS, WARM_UP_RECORDS, 100))
    finally:
        cluster.stop()
    remove(directory)
    return found


def _rates(bootstrap: str, size: int, seconds: float) -> dict[str, float]:
    topic = f"perf-{size}"
    rates = {f"produce_{size}": produce(bootstrap, topic, size, "all", seconds, LINGER_MS)}
    for name, read in (("", consume_raw), ("_poll", consume)):
        count, elapsed = read(bootstrap, topic)
        rates[f"consume_{size}{name}"] = count / elapsed
    return rates


if __name__ == "__main__":
    main()
