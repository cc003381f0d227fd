"""The data source against a real cluster with three replicas, also when a leader is killed."""

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.pipeline.data_source import PacelineDataSource
from paceline.v1 import log_service_pb2, log_service_pb2_grpc
from paceline_client.process_channels import close_channels
from tests.support.spark import spark  # noqa: F401
from tests.support.stub_client import ResultError, StubClient
from tests.unit.pipeline.batches import encode, to_records
from tests.unit.pipeline.golden import Expected

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.zookeeper]

PARTITIONS = 4
CODECS = (0, 1, 2, 3, 4)
PER_BATCH = 40
PER_PARTITION = PER_BATCH * len(CODECS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(
        tmp_path_factory.mktemp("cluster"),
        CONFIG_FILE,
        brokers=3,
        controllers=1,
        # Followers delayed by a busy machine stay in the ISR. Otherwise the ISR of a killed leader may have no other
        # member, and the partition has no leader until the killed broker returns.
        settings={"replica.lag.time.max.ms": "60000"},
    )
    running.start(timeout_s=240)
    yield running
    close_channels()
    running.stop(force=True)


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[StubClient]:
    with StubClient(cluster.bootstrap.split(",")) as stub_client:
        yield stub_client


def records_of(partition: int) -> list[Expected]:
    """Return the records of a partition, with nulls, headers, and values that name partition and offset."""
    return [
        Expected(
            None if offset % 7 == 0 else b"key-%d" % offset,
            None if offset % 11 == 0 else b"%d/%d " % (partition, offset) * 10,
            offset,
            1_700_000_000_000 + offset,
            0,
            (("trace", b"%d" % offset), ("none", None)) if offset % 5 == 0 else (),
        )
        for offset in range(PER_PARTITION)
    ]


def fill(client: StubClient, topic: str, replication_factor: int = 3) -> None:
    """Create the topic and write one batch per codec to each partition, with sequence numbers against duplicates."""
    client.create_topic(topic, PARTITIONS, replication_factor, retention_ms="-1")  # the timestamps are of 2023
    producer_id, epoch = client.init_producer_id()
    for partition in range(PARTITIONS):
        records = records_of(partition)
        for number, codec in enumerate(CODECS):
            made = records[number * PER_BATCH : (number + 1) * PER_BATCH]
            first = [Expected(r.key, r.value, r.offset - made[0].offset, r.timestamp_ms, 0, r.headers) for r in made]
            producer = (producer_id, epoch, made[0].offset)
            produce_batch(client, topic, partition, encode(first, codec, leader_epoch=-1, producer=producer))


def produce_batch(client: StubClient, topic: str, partition: int, batch: bytes) -> None:
    request = log_service_pb2.ProduceRequest(acks=log_service_pb2.ACKS_ALL, timeout_ms=10_000)
    request.partitions.add(topic=topic, partition=partition, batch=batch)

    def attempt(log: log_service_pb2_grpc.LogServiceStub) -> None:
        (result,) = log.Produce(request, timeout=60).partitions
        if result.HasField("error"):
            raise ResultError(result.error)

    client._until(180, f"writing to {topic}-{partition}", lambda: client._at_leader(topic, partition, attempt))


def options(cluster: LocalCluster, topic: str, **more: str) -> dict[str, str]:
    return {"paceline.bootstrap.servers": cluster.bootstrap, "subscribe": topic, "includeHeaders": "true"} | more


def collected(frame: Any) -> list[tuple[int, int, bytes | None]]:
    rows = frame.select("partition", "offset", "value").orderBy("partition", "offset").collect()
    return [(row.partition, row.offset, None if row.value is None else bytes(row.value)) for row in rows]


EVERYTHING = [(partition, each.offset, each.value) for partition in range(PARTITIONS) for each in records_of(partition)]


@pytest.mark.slow
def test_spark_reads_what_was_written_in_every_codec(
    spark: Any,  # noqa: F811
    cluster: LocalCluster,
    client: StubClient,
) -> None:
    fill(client, "orders")
    frame = spark.read.format("paceline").options(**options(cluster, "orders")).load()
    assert collected(frame) == EVERYTHING
    assert frame.where("size(headers) = 2").count() == PARTITIONS * PER_PARTITION // 5


def test_offsets_times_and_filters_are_those_of_the_brokers(
    spark: Any,  # noqa: F811
    cluster: LocalCluster,
    client: StubClient,
) -> None:
    fill(client, "times")
    reader = spark.read.format("paceline").options(**options(cluster, "times"))
    since, until = 1_700_000_000_000 + 90, 1_700_000_000_000 + 130
    timed = reader.option("startingTimestamp", str(since)).option("endingTimestamp", str(until)).load()
    assert timed.selectExpr("min(offset)", "max(offset)", "count(*)").first() == (90, 129, 40 * PARTITIONS)
    pushed = spark.read.format("paceline").options(**options(cluster, "times", pushdown="true")).load()
    assert pushed.where("partition = 2 AND offset >= 150").count() == PER_PARTITION - 150


def test_a_leader_that_dies_between_planning_and_reading_is_replaced(cluster: LocalCluster, client: StubClient) -> None:
    fill(client, "survivor")
    source = PacelineDataSource(options(cluster, "survivor", **{"paceline.fetch.max.bytes": "4096"}))
    reader = source.reader(source.schema())
    planned = reader.partitions()
    victim = cluster.broker(client.describe_topic("survivor").partitions[0].leader)
    cluster.kill(victim)
    try:
        found = to_records(batch for task in planned for batch in reader.read(task))
        expected = [each for partition in range(PARTITIONS) for each in records_of(partition)]
        assert sorted(found, key=repr) == sorted(expected, key=repr)
        again = source.reader(source.schema())
        assert sum(batch.num_rows for task in again.partitions() for batch in again.read(task)) == len(expected)
    finally:
        cluster.restart(victim)
