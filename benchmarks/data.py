"""Produce, fetch and acks=all latency through three real brokers, at 100 B and 1 KB, RF 3.

    python -m benchmarks.data [--seconds 8] [--runs 3] [--output build/bench/data.json]

Everything runs on this machine: ZooKeeper, two controllers, three brokers, one producer with linger_ms=20 (0 for the
latency) and the client's other defaults: batches of 512 KiB, requests of 2 MiB, no compression. A figure is the median
of the runs. For comparison each row has the figure of the prototype that set the aim, the same work with acks=LEADER in
the same run, whose ratio shows the cost of replication, and the CPU time per record of all these processes, which
other work on the machine changes least. docs/decisions/0008 explains the figures.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.cpu import meter_of
from benchmarks.stamp import headline, stamp
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, remove
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition

PARTITIONS = 6
SIZES = (100, 1024)
PROTOTYPE = {"produce_100": 850_000, "produce_1024": 105_000}
"""Records per second of the prototype: three processes, RF 3, acks=all, one producer, two cores."""


def main() -> None:
    """Run all measurements, print them and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each throughput measurement")
    parser.add_argument("--runs", type=int, default=3, help="how often each figure is measured")
    parser.add_argument("--output", type=Path, default=Path("build/bench/data.json"))
    arguments = parser.parse_args()
    about = stamp()
    print(headline(about), flush=True)
    directory = Path("build/bench/cluster")
    remove(directory)
    cluster = LocalCluster(directory, CONFIG_FILE, settings={"log.segment.bytes": "1073741824"})
    results: list[dict[str, Any]] = []
    try:
        cluster.start()
        runs = [_measure(cluster, f"run{number}", arguments.seconds) for number in range(arguments.runs)]
        results += [_median(rows) for rows in zip(*runs, strict=True)]
    finally:
        cluster.stop()
    remove(directory)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
    for row in results:
        print("  " + "  ".join(f"{key}={value}" for key, value in row.items()))
    print(f"written to {arguments.output}")


def _measure(cluster: LocalCluster, run: str, seconds: float) -> list[dict[str, Any]]:
    rows = []
    for size in SIZES:
        rows += _throughput(cluster, f"{run}-{size}", size, seconds)
        rows += _latency(cluster, f"{run}-{size}-latency", size)
    return rows


def _median(rows: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return the median of each figure, and the runs of the first figure to show their spread."""
    found = {
        key: value if isinstance(value, str) else round(statistics.median(row[key] for row in rows), 3)
        for key, value in rows[0].items()
    }
    first = next(key for key in rows[0] if key != "name")
    return {**found, "runs": [row[first] for row in rows]} if len(rows) > 1 else found


def _throughput(cluster: LocalCluster, name: str, size: int, seconds: float) -> list[dict[str, Any]]:
    bootstrap = cluster.bootstrap
    rates = {}
    for acks in ("leader", "all"):
        topic = f"{name}-{acks}"
        with Admin(bootstrap) as admin:
            admin.create_topics([NewTopic(topic, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
        meter = meter_of(cluster)
        rates[acks] = produce(bootstrap, topic, size, acks, seconds)
        produce_cpu_seconds = meter.seconds()
    meter = meter_of(cluster)
    consumed, consume_seconds = consume(bootstrap, topic)
    consume_cpu_us = meter.seconds() / consumed * 1e6
    all_rate = rates["all"]
    row: dict[str, Any] = {
        "name": f"produce_{size}",
        "records_per_s": round(all_rate),
        "mb_per_s": round(all_rate * size / 1e6, 1),
        "leader_only_records_per_s": round(rates["leader"]),
        "ratio_to_leader_only": round(all_rate / rates["leader"], 3),
        "cpu_us_per_record": round(produce_cpu_seconds / consumed * 1e6, 3),
    }
    if aim := PROTOTYPE.get(f"produce_{size}"):
        row["prototype_records_per_s"] = aim
        row["ratio_to_prototype"] = round(all_rate / aim, 3)
    rate = consumed / consume_seconds
    return [
        row,
        {
            "name": f"consume_{size}",
            "records_per_s": round(rate),
            "mb_per_s": round(rate * size / 1e6, 1),
            "ratio_to_produce": round(rate / all_rate, 3),
            "cpu_us_per_record": round(consume_cpu_us, 3),
        },
    ]


def produce(bootstrap: str, topic: str, size: int, acks: str, seconds: float, linger_ms: int = 20) -> float:
    """Write at full speed for the given seconds; return acknowledged records per second."""
    value = bytes(range(256)) * (size // 256 + 1)
    record = (None, value[:size])
    with Producer(bootstrap, acks=acks, linger_ms=linger_ms) as producer:
        producer.send_many(topic, repeat(record, 50_000)).result()
        gc.collect()
        began = time.monotonic()
        producer.send_many(topic, _until(record, began + seconds)).wait(0.001)
        producer.flush(timeout_s=120.0)
        elapsed = time.monotonic() - began
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        written = sum(consumer.end_offsets(partitions).values())
    return (written - 50_000) / elapsed


def _until(record: tuple[None, bytes], deadline: float) -> Iterator[tuple[None, bytes]]:
    while time.monotonic() < deadline:
        yield from repeat(record, 2_000)


def consume(bootstrap: str, topic: str) -> tuple[int, float]:
    """Read a topic from its beginning; return the number of records and the seconds it took."""
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        total = sum(consumer.end_offsets(partitions).values())
        began = time.monotonic()
        read = 0
        while read < total:
            if time.monotonic() - began > 120.0:
                raise TimeoutError(f"read {read} of {total} records within 120 s")
            read += sum(len(records) for records in consumer.poll(timeout_ms=1_000).values())
        return read, time.monotonic() - began


def consume_raw(bootstrap: str, topic: str) -> tuple[int, float]:
    """Read a topic with `poll_batches` and access every record; return the number of records and the seconds."""
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        total = sum(consumer.end_offsets(partitions).values())
        began = time.monotonic()
        read = size = 0
        while read < total:
            if time.monotonic() - began > 120.0:
                raise TimeoutError(f"read {read} of {total} records within 120 s")
            for batches in consumer.poll_batches(timeout_ms=1_000):
                for record in batches.records():
                    read += 1
                    size += len(record.value or b"")
        assert size > 0
        return read, time.monotonic() - began


def end_to_end(bootstrap: str, topic: str, count: int, warm_up: int, size: int) -> dict[str, float]:
    """Return p50 and p99 in milliseconds from send (acks=all) to the acknowledgement, and to the consumer.

    One record at a time, like Kafka's EndToEndLatency: send, wait for the acknowledgement, poll until it arrives.
    """
    value = bytes(size)
    samples: dict[str, list[float]] = {"latency": [], "ack": []}
    with Producer(bootstrap, linger_ms=0) as producer, Consumer(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_end()
        # The log end is looked up in the background; the consumer would miss a record sent before that.
        consumer.position(TopicPartition(topic, 0))
        for number in range(warm_up + count):
            began = time.perf_counter()
            producer.send(topic, value, partition=0).result(30.0)
            acknowledged = time.perf_counter()
            while not consumer.poll(timeout_ms=10_000):
                if time.perf_counter() - began > 30.0:
                    raise TimeoutError("a record did not reach the consumer within 30 s")
            if number >= warm_up:
                samples["ack"].append((acknowledged - began) * 1000)
                samples["latency"].append((time.perf_counter() - began) * 1000)
    found = {}
    for name, values in samples.items():
        values.sort()
        found[f"{name}_p50"], found[f"{name}_p99"] = values[len(values) // 2], values[int(len(values) * 0.99)]
    return found


def _latency(cluster: LocalCluster, topic: str, size: int, count: int = 2_000) -> list[dict[str, Any]]:
    bootstrap = cluster.bootstrap
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 3, configs={"min.insync.replicas": "2"})])
    value = bytes(size)
    rows, cpu_us = {}, {}
    for acks in ("leader", "all"):
        samples = []
        meter = meter_of(cluster)
        with Producer(bootstrap, acks=acks, linger_ms=0) as producer:
            for number in range(count + 200):
                began = time.perf_counter()
                producer.send(topic, value).result(30.0)
                if number >= 200:
                    samples.append((time.perf_counter() - began) * 1000)
        cpu_us[acks] = meter.seconds() / (count + 200) * 1e6
        samples.sort()
        rows[acks] = (samples[len(samples) // 2], samples[int(len(samples) * 0.99)])
    return [
        {
            "name": f"latency_{size}_{name}",
            "acks_all_ms": round(rows["all"][index], 3),
            "acks_leader_ms": round(rows["leader"][index], 3),
            "ratio": round(rows["all"][index] / rows["leader"][index], 2),
            "cpu_us_per_record": round(cpu_us["all"]),
        }
        for index, name in ((0, "p50"), (1, "p99"))
    ]


if __name__ == "__main__":
    main()
