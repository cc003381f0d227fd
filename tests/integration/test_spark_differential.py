"""Our data source and Spark's Kafka source return the same rows and progress for the same records and options.

The first run downloads Kafka 3.9.1 and the jars of Spark's Kafka source with Maven, and PySpark 4.2.0 with pip, into
build/: 600 MB.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kafka import KafkaCluster, KafkaNotAvailableError
from benchmarks.spark_kafka import environment_of_child, fetch_environment
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline_client import Admin, NewTopic, Producer
from tests.support.kafka_writer import write

ANSWERS_TIMEOUT_S = 1_500
"""Time for one source to run every case; on an idle machine it takes about a minute."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.zookeeper,
    pytest.mark.slow,
    # The first test waits until both sources have run every case.
    pytest.mark.timeout(2 * ANSWERS_TIMEOUT_S + 600),
]

READER = Path(__file__).resolve().parents[1] / "support" / "spark_reader.py"
PARTITIONS = {"alpha": 3, "beta": 2}
PER_PARTITION = 400
START_MS = 1_700_000_000_000
EMPTY = {"alpha": [2], "beta": []}
"""Partitions without records."""


def offsets(topic: str, **by_partition: int) -> str:
    return json.dumps({topic: {number.removeprefix("p"): at for number, at in by_partition.items()}})


SAME = {
    "everything": {"subscribe": "alpha"},
    "two topics": {"subscribe": "beta,alpha"},
    "pattern": {"subscribePattern": "al.*"},
    "assign": {"assign": '{"alpha": [1], "beta": [0]}'},
    "headers": {"subscribe": "alpha", "includeHeaders": "true"},
    "start at offsets": {"subscribe": "alpha", "startingOffsets": offsets("alpha", p0=100, p1=-2, p2=0)},
    "time": {"subscribe": "beta", "startingTimestamp": str(START_MS + 250)},
    "time by partition": {
        "subscribe": "beta",
        "startingOffsetsByTimestamp": offsets("beta", p0=START_MS + 10, p1=START_MS + 390),
    },
    "more tasks": {"subscribe": "alpha", "minPartitions": "7"},
    "small tasks": {"subscribe": "alpha", "maxRecordsPerPartition": "90"},
}
"""Options of both batch reads and streams; a stream starts at the earliest offsets unless its options differ."""

BATCH = {
    "end at offsets": {"subscribe": "alpha", "endingOffsets": offsets("alpha", p0=-1, p1=10, p2=0)},
    "from and to": {
        "subscribe": "alpha",
        "startingOffsets": offsets("alpha", p0=5, p1=395, p2=-2),
        "endingOffsets": offsets("alpha", p0=6, p1=400, p2=-1),
    },
    "time to time": {
        "subscribe": "beta",
        "startingTimestamp": str(START_MS + 100),
        "endingTimestamp": str(START_MS + 200),
    },
}

STREAM = {
    "limited": {"subscribe": "alpha", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "250"},
    "limited, uneven": {
        "subscribe": "alpha,beta",
        "startingOffsets": json.dumps({"alpha": {"0": 399, "1": 0, "2": -2}, "beta": {"0": 17, "1": 350}}),
        "maxOffsetsPerTrigger": "100",
    },
    "with a minimum": {"subscribe": "beta", "startingOffsets": "earliest", "minOffsetsPerTrigger": "1000000"},
}

WRONG = {
    "no topic": {},
    "two ways": {"subscribe": "alpha", "assign": '{"alpha": [0]}'},
    "latest start": {"subscribe": "alpha", "startingOffsets": "latest"},
    "earliest end": {"subscribe": "alpha", "endingOffsets": "earliest"},
    "missing partition": {"subscribe": "alpha", "startingOffsets": offsets("alpha", p0=1)},
    "strange json": {"subscribe": "alpha", "startingOffsets": '{"alpha": 3}'},
    "unknown topic": {"subscribe": "nowhere"},
    "group": {"subscribe": "alpha", "kafka.auto.offset.reset": "latest"},
    "lost records": {"subscribe": "alpha", "startingOffsets": offsets("alpha", p0=500, p1=0, p2=0)},
    "no time that late": {"subscribe": "beta", "startingTimestamp": str(START_MS + 10_000)},
}


def cases() -> list[dict[str, Any]]:
    found = [{"name": f"batch: {name}", "options": each, "stream": False} for name, each in (SAME | BATCH).items()]
    from_start = {"startingOffsets": "earliest"}
    found += [{"name": f"stream: {n}", "options": from_start | each, "stream": True} for n, each in SAME.items()]
    found += [{"name": f"stream: {name}", "options": each, "stream": True} for name, each in STREAM.items()]
    return found + [{"name": f"wrong: {name}", "options": each, "stream": False} for name, each in WRONG.items()]


def records(topic: str) -> Iterator[tuple[int, bytes | None, bytes | None, int, list[tuple[str, bytes]]]]:
    """Yield partition, key, value, timestamp and headers of each record, including null, empty and long values."""
    for partition in range(PARTITIONS[topic]):
        if partition in EMPTY[topic]:
            continue
        for number in range(PER_PARTITION):
            key = None if number % 7 == 0 else b"key-%d" % number
            value = (
                None
                if number % 11 == 0 and key is not None
                else b""
                if number % 13 == 0
                else b"%d/%d " % (partition, number) * 9
            )
            headers = [("trace", b"%d" % number), ("empty", b"")] if number % 5 == 0 else []
            yield partition, key, value, START_MS + number, headers


def answers(command: list[str], environment: dict[str, str] | None) -> dict[str, Any]:
    done = subprocess.run(
        command,
        input=json.dumps(cases()),
        capture_output=True,
        text=True,
        env=environment,
        timeout=ANSWERS_TIMEOUT_S,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3_000:]
    return {line["name"]: line for line in lines}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    try:
        python, jars = fetch_environment()
        with KafkaCluster(tmp_path_factory.mktemp("kafka"), brokers=1, heap_mib=512) as cluster:
            _fill_kafka(cluster)
            names = ",".join(map(str, jars))
            return answers([str(python), str(READER), "kafka", cluster.bootstrap, names], environment_of_child())
    except KafkaNotAvailableError as error:
        pytest.skip(str(error))


def _fill_kafka(cluster: KafkaCluster) -> None:
    for topic, count in PARTITIONS.items():
        cluster.tool(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", cluster.bootstrap, "--create",
            "--topic", topic, "--partitions", str(count), "--replication-factor", "1",
            "--config", "retention.ms=-1",
        )  # fmt: skip
    write(cluster.bootstrap, {topic: list(records(topic)) for topic in PARTITIONS})


@pytest.fixture(scope="module")
def paceline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), CONFIG_FILE, brokers=1, controllers=1)
    try:
        cluster.start(timeout_s=240)
        with Admin(cluster.bootstrap) as admin:
            settings = {"retention.ms": "-1", "min.insync.replicas": "1"}
            admin.create_topics([NewTopic(name, count, 1, configs=settings) for name, count in PARTITIONS.items()])
        with Producer(cluster.bootstrap) as producer:
            sent = [
                producer.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
                for topic in PARTITIONS
                for partition, key, value, timestamp_ms, headers in records(topic)
            ]
            producer.flush()
        for each in sent:
            each.result(60)
        yield answers([sys.executable, str(READER), "paceline", cluster.bootstrap, ""], None)
    finally:
        cluster.stop(force=True)


@pytest.mark.parametrize("name", [case["name"] for case in cases() if not case["name"].startswith("wrong")])
def test_rows_and_progress_are_the_same(name: str, kafka: dict[str, Any], paceline: dict[str, Any]) -> None:
    theirs, ours = kafka[name], paceline[name]
    assert "rows" in theirs, theirs
    assert ours.get("rows") == theirs["rows"], ours.get("message", "")
    assert ours.get("progress") == theirs.get("progress")


@pytest.mark.parametrize("name", [case["name"] for case in cases() if case["name"].startswith("wrong")])
def test_wrong_options_fail_on_both_sides(name: str, kafka: dict[str, Any], paceline: dict[str, Any]) -> None:
    assert "error" in kafka[name], kafka[name]
    assert "error" in paceline[name], paceline[name]
