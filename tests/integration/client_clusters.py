"""Fake clusters with the topics of the tests of producers and consumers, and their records."""

import time
from collections.abc import Iterator

import pytest

from paceline.log.compression import Codec
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.identifiers import TopicPartition
from paceline_client import Consumer, ConsumerRecord
from tests.integration.fake_cluster import FakeCluster

ONE = TopicPartition("one", 0)


@pytest.fixture(name="cluster")
def consumer_cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster().start()
    fake.topic("t", partitions=4)
    fake.topic("one")
    yield fake
    fake.stop()


@pytest.fixture(name="cluster")
def producer_cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster().start()
    fake.topic("t", partitions=2)
    fake.topic("one")
    yield fake
    fake.stop()


def write(cluster: FakeCluster, *values: bytes, tp: TopicPartition = ONE, codec: Codec = Codec.NONE) -> None:
    """Append one batch to the partition's log, as another producer would."""
    batch = encode_batch([NewRecord(1_000 + index, None, value) for index, value in enumerate(values)], codec=codec)
    with cluster.lock:
        cluster.logs[tp].append(batch)
        cluster.lock.notify_all()


def read(consumer: Consumer, count: int, timeout_s: float = 60.0) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} records came"
        for records in consumer.poll(timeout_ms=200).values():
            found.extend(records)
    return found
