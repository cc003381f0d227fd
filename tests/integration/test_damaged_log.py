"""A bit flips, or a segment vanishes, on the disk of a stopped broker: consumers read all, the replica is rebuilt."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.coordination.errors import JavaNotFoundError
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.identifiers import TopicPartition as StoredPartition
from paceline.runtime.embedded_zookeeper import java_path
from paceline.testing import PATIENT
from paceline_client import Admin, Consumer, NewTopic, Producer, TopicPartition
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


def read(cluster: LocalCluster, partition: TopicPartition, count: int) -> list[bytes]:
    """Return the values of the first ``count`` records of a partition."""
    found: list[bytes] = []
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        deadline = time.monotonic() + LONG_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} records were read"
            for records in consumer.poll(timeout_ms=500).values():
                found += [record.value or b"" for record in records]
    return found


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

        assert read(cluster, TopicPartition(TOPIC, 0), RECORDS) == values
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


def vanish(cluster: LocalCluster, partition: int, which: int, *, with_indexes: bool) -> None:
    """Remove one segment of a partition of broker 1: its ``.log`` file alone, or all files of its base offset."""
    folder = data_of(cluster, 1) / f"{TOPIC}-{partition}"
    segments = sorted(folder.glob("*.log"))
    assert len(segments) > 4
    for path in folder.glob(f"{segments[which].stem}.*" if with_indexes else segments[which].name):
        path.unlink()


@pytest.mark.slow
def test_a_replica_that_lost_a_segment_while_it_was_stopped_leads_only_after_it_was_rebuilt(
    cluster: LocalCluster,
) -> None:
    """Partitions 0 to 2 lose a middle, the first and the last segment after a clean stop, partition 3 after a kill."""
    partitions = 5
    settings = {"min.insync.replicas": "2", "segment.bytes": "3000"}
    values = [b"value %06d" % number for number in range(RECORDS // 2)]
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, assignments=((1, 2, 3),) * partitions, configs=settings)])
        with Producer(cluster.bootstrap, batch_size=1_024) as producer:
            for start in range(0, len(values), 50):
                records = [(None, value) for value in values[start : start + 50]]
                for partition in range(partitions):
                    producer.send_many(TOPIC, records, partition=partition).result(LONG_S)

        def state() -> list[tuple[int | None, set[int]]]:
            (described,) = admin.describe_topics([TOPIC])
            return [(one.leader, set(one.isr)) for one in described.partitions]

        def leads_again() -> None:
            cluster.restart(node)
            until(lambda: all(isr == {1, 2, 3} for _, isr in state()), "broker 1 is back in every ISR")
            for partition in range(partitions):
                admin.elect_leaders("preferred", [(TOPIC, partition)], raise_errors=False)
            until(lambda: all(leader == 1 for leader, _ in state()), "broker 1 leads every partition")
            for partition in range(partitions):
                assert read(cluster, TopicPartition(TOPIC, partition), len(values)) == values, f"partition {partition}"

        node = cluster.broker(1)
        until(lambda: all(isr == {1, 2, 3} for _, isr in state()), "all replicas are in sync")
        cluster.terminate(node)
        vanish(cluster, 0, 2, with_indexes=False)
        vanish(cluster, 1, 0, with_indexes=True)
        vanish(cluster, 2, -1, with_indexes=True)
        leads_again()
        aside = {path.name.split(".")[0] for path in data_of(cluster, 1).glob(f"{TOPIC}-*-damaged")}
        assert aside == {f"{TOPIC}-0", f"{TOPIC}-1"}, "the rest of partition 2 is intact, and no other log was touched"
        cluster.kill(node)
        vanish(cluster, 3, 1, with_indexes=True)
        leads_again()
        aside = {path.name.split(".")[0] for path in data_of(cluster, 1).glob(f"{TOPIC}-*-damaged")}
        assert aside == {f"{TOPIC}-{partition}" for partition in (0, 1, 3)}
