"""Compaction on a real cluster removes old values from every replica's disk and keeps the newest at their offsets."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.runtime.embedded_zookeeper import java_path
from paceline.testing import PATIENT
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

LONG_S = 180.0
TOPIC = "latest-prices"
KEYS, ROUNDS = 20, 40


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    settings = {
        **PATIENT,
        "log.cleaner.backoff.ms": "200",
        "log.segment.delete.delay.ms": "100",
        "replica.high.watermark.checkpoint.interval.ms": "200",
    }
    running = LocalCluster(
        tmp_path, CONFIG_FILE, brokers=2, controllers=1, settings=settings, ports=free_plan(1, 2), heap_mib=64
    )
    running.start()
    yield running
    running.stop()


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def log_bytes(cluster: LocalCluster, broker_id: int) -> bytes:
    """Return the topic's segments on a broker's disk in order, without segments that the broker deletes meanwhile."""
    found = sorted((cluster.directory / f"broker-{broker_id}" / "data" / f"{TOPIC}-0").glob("*.log"))
    return b"".join(read_unless_deleted(path) for path in found)


def read_unless_deleted(path: Path) -> bytes:
    """Return the content of a file, empty if compaction has replaced the file since it was listed."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def is_compacted(cluster: LocalCluster, broker_id: int) -> bool:
    kept = log_bytes(cluster, broker_id)
    return b"value 0 of" not in kept and b"value %d of" % (ROUNDS - 2) not in kept


def read_all(cluster: LocalCluster, end_offset: int) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return every record that a consumer reads from the beginning, by offset."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])

        def read_to_the_end() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                found.update({record.offset: (record.key, record.value) for record in records})
            return end_offset - 1 in found

        until(read_to_the_end, lambda: f"offsets {sorted(found)[-5:]} of {end_offset}")
    return found


def test_old_values_are_removed_and_the_newest_stay_at_their_offsets(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, batch_size=400) as producer:
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": "4000",
            "min.cleanable.dirty.ratio": "0.01",
            "min.insync.replicas": "2",
        }
        admin.create_topics([NewTopic(TOPIC, assignments=((1, 2),), configs=configs)])
        sent: dict[int, tuple[bytes | None, bytes | None]] = {}
        for number in range(ROUNDS):
            pairs: list[tuple[bytes | None, bytes]] = [
                (b"key %d" % key, b"value %d of %d" % (number, key)) for key in range(KEYS)
            ]
            sent.update({len(sent) + i: pair for i, pair in enumerate(pairs)})
            producer.send_many(TOPIC, pairs).result(LONG_S)
        # The active segment is never compacted; these records move all rounds but the last into earlier segments.
        for number in range(20):
            sent[len(sent)] = (b"filler", b"%0400d" % number)
            producer.send(TOPIC, b"%0400d" % number, key=b"filler").result(LONG_S)
        for broker_id in (1, 2):
            until(partial(is_compacted, cluster, broker_id), f"broker {broker_id} keeps old values".__str__)
        kept = read_all(cluster, len(sent))
        last = {key: offset for offset, (key, _) in sent.items()}
        assert {key: offset for offset, (key, _) in kept.items()} == last
        assert all(sent[offset] == pair for offset, pair in kept.items())
        assert len(kept) < len(sent) / 10

        # A killed broker loads its compacted log and continues with the next offset.
        cluster.kill(cluster.broker(1))
        cluster.restart(cluster.broker(1))
        assert producer.send(TOPIC, b"next", key=b"filler").result(LONG_S).offset == len(sent)
        again = read_all(cluster, len(sent) + 1)
        assert {key: offset for offset, (key, _) in again.items()} == {**last, b"filler": len(sent)}
