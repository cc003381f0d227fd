"""A bit flips on the disk of a stopped broker: no consumer receives the batch, and the replica is rebuilt."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.identifiers import TopicPartition as StoredPartition
from paceline.runtime.embedded_zookeeper import java_path
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.integration.conftest import PATIENT
from tests.support.replica_files import compare_replicas

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

LONG_S = 180.0
TOPIC = "kept"
RECORDS = 2_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    try:
        java_path()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    running = LocalCluster(tmp_path, CONFIG_FILE, controllers=1, settings=PATIENT, ports=free_plan(1, 3), heap_mib=64)
    running.start()
    yield running
    running.stop()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def data_of(cluster: LocalCluster, broker_id: int) -> Path:
    """Return the log directory of a broker."""
    return cluster.directory / f"broker-{broker_id}" / "data"


def test_every_record_is_read_and_the_damaged_replica_is_rebuilt(cluster: LocalCluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, assignments=((1, 2, 3),), configs={"min.insync.replicas": "2"})])
        values = [b"value %06d" % number for number in range(RECORDS)]
        with Producer(cluster.bootstrap, batch_size=1_024) as producer:
            for start in range(0, RECORDS, 100):
                producer.send_many(TOPIC, [(None, value) for value in values[start : start + 100]]).result(LONG_S)

        def state() -> tuple[int | None, set[int]]:
            (described,) = admin.describe_topics([TOPIC])
            return described.partitions[0].leader, set(described.partitions[0].isr)

        until(lambda: state() == (1, {1, 2, 3}), "all replicas are in sync")
        node = cluster.broker(1)
        cluster.terminate(node)
        folder = data_of(cluster, 1)
        (segment,) = (folder / f"{TOPIC}-0").glob("*.log")
        data = bytearray(segment.read_bytes())
        data[data.index(values[RECORDS // 2])] ^= 0x20
        segment.write_bytes(data)
        cluster.restart(node)
        until(lambda: state()[1] == {1, 2, 3}, "the broker is back in the ISR, the damage is not found yet")
        admin.elect_leaders("preferred", [(TOPIC, 0)], raise_errors=False)
        until(lambda: state()[0] == 1, "the damaged replica leads")

        found: list[bytes] = []
        with Consumer(cluster.bootstrap) as consumer:
            partition = TopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            deadline = time.monotonic() + LONG_S
            while len(found) < RECORDS:
                assert time.monotonic() < deadline, f"{len(found)} records were read"
                for records in consumer.poll(timeout_ms=500).values():
                    found += [record.value or b"" for record in records]
        assert found == values
        until(lambda: any(folder.glob(f"{TOPIC}-0.*-damaged")), "the damaged log is set aside")
        until(lambda: state()[1] == {1, 2, 3}, "the replica has caught up")
    (kept,) = folder.glob(f"{TOPIC}-0.*-damaged")
    assert data == bytearray((kept / segment.name).read_bytes()), "the damaged log is kept unchanged"
    for broker_id in (1, 2, 3):
        cluster.terminate(cluster.broker(broker_id))
    count, problems = compare_replicas(
        [data_of(cluster, broker_id) for broker_id in (1, 2, 3)], StoredPartition(TOPIC, 0), RECORDS
    )
    assert count >= 20 and problems == []
