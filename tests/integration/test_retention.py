"""New size and age limits of a topic take effect without a restart: older segments are deleted from the disk."""

import time
from collections.abc import Callable, Iterator
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
TOPIC = "short-lived"
RECORDS = 200
SEGMENT_BYTES, KEPT_BYTES = 2_000, 5_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    settings = {**PATIENT, "log.retention.check.interval.ms": "200", "log.segment.delete.delay.ms": "100"}
    running = LocalCluster(
        tmp_path, CONFIG_FILE, brokers=2, controllers=1, settings=settings, ports=free_plan(1, 2), heap_mib=64
    )
    running.start()
    yield running
    running.stop()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def bytes_of(cluster: LocalCluster, broker_id: int) -> int:
    """Return the size of the topic's segments on a broker's disk, including segments marked for deletion."""
    found = (cluster.directory / f"broker-{broker_id}" / "data" / f"{TOPIC}-0").glob("*.log*")
    return sum(path.stat().st_size for path in found)


def starts(admin: Admin) -> set[int | None]:
    """Return the log start offsets of all replicas, as far as the leader knows them."""
    (view,) = admin.describe_replicas(TOPIC)
    return {view.log_start_offset, *(replica.log_start_offset for replica in view.replicas)}


def test_segments_beyond_size_and_age_are_deleted_and_offsets_continue(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap, batch_size=200) as producer:
        configs = {"min.insync.replicas": "2", "segment.bytes": str(SEGMENT_BYTES)}
        admin.create_topics([NewTopic(TOPIC, assignments=((1, 2),), configs=configs)])
        values = [b"value %050d" % number for number in range(RECORDS)]
        producer.send_many(TOPIC, [(None, value) for value in values]).result(LONG_S)
        assert starts(admin) == {0} and bytes_of(cluster, 1) > KEPT_BYTES + SEGMENT_BYTES

        admin.alter_configs({TOPIC: {"retention.bytes": str(KEPT_BYTES)}})
        for broker_id in (1, 2):
            until(
                lambda broker_id=broker_id: bytes_of(cluster, broker_id) < KEPT_BYTES + SEGMENT_BYTES,  # type: ignore[misc]
                f"broker {broker_id} keeps {bytes_of(cluster, broker_id)} bytes",
            )
            assert bytes_of(cluster, broker_id) >= KEPT_BYTES
        until(lambda: len(starts(admin)) == 1, f"logs start at {starts(admin)}")
        start = starts(admin).pop() or 0
        assert 0 < start < RECORDS
        with Consumer(cluster.bootstrap) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            found: list[bytes] = []

            def all_read() -> bool:
                for records in consumer.poll(timeout_ms=200).values():
                    found.extend(record.value or b"" for record in records)
                return len(found) >= RECORDS - start

            until(all_read, f"not {RECORDS - start} records were read")
        assert found == values[start:]

        admin.alter_configs({TOPIC: {"retention.bytes": None, "retention.ms": "1"}})
        until(lambda: starts(admin) == {RECORDS}, f"logs start at {starts(admin)}")
        cluster.kill(cluster.broker(1))
        cluster.restart(cluster.broker(1))
        admin.alter_configs({TOPIC: {"retention.ms": "-1"}})
        assert producer.send(TOPIC, b"next").result(LONG_S).offset == RECORDS
