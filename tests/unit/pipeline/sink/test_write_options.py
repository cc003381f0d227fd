"""Each option of the sink has the effect that docs/spark.md promises; guarantees are in test_exactly_once.py."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from paceline.log.record_batch import parse_header
from paceline.model.admin import PartitionDescription
from paceline.model.errors import ErrorCode, PacelineError, TopicAlreadyExistsError
from paceline.pipeline.sink import staging
from paceline.pipeline.sink.columns import check_columns
from paceline.pipeline.sink.options import parse_write_options
from paceline.pipeline.sink.staging import ensure_staging_topic
from paceline.pipeline.sink.writer import write_task
from paceline.v1 import log_service_pb2
from paceline_client.cluster_view import ClusterView
from paceline_client.metadata import TopicDescription
from paceline_client.process_channels import close_channels
from tests.unit.pipeline.batches import decoded
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition
from tests.unit.pipeline.sink.writes import close_producers

PARTITIONS = 3
ROWS = pa.RecordBatch.from_pydict({"value": pa.array([b"%03d" % n * 20 for n in range(300)], pa.binary())})


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    partitions = {("t", number): ServedPartition(b"") for number in range(PARTITIONS)}
    partitions["mine", 0] = ServedPartition(b"")
    with ServedCluster(partitions) as cluster:
        yield cluster
    close_producers()
    close_channels()


def write(served: ServedCluster, rows: pa.RecordBatch = ROWS, **given: str) -> None:
    names = {name.replace("__", "."): value for name, value in given.items()}
    options = parse_write_options({"paceline.bootstrap.servers": served.bootstrap, "topic": "t"} | names)
    columns = check_columns(from_arrow_schema(rows.schema), options)
    write_task(options, columns, iter([rows]), "q")


def counts(served: ServedCluster, topic: str = "t") -> list[int]:
    return [len(decoded(part.data)) for (name, _), part in sorted(served.partitions.items()) if name == topic]


@pytest.mark.parametrize(
    ("partitioner", "expected"), [("sticky", [300, 0, 0]), ("default", [300, 0, 0]), ("roundrobin", [100, 100, 100])]
)
def test_the_partitioner_places_rows_without_a_key(
    served: ServedCluster, partitioner: str, expected: list[int]
) -> None:
    write(served, paceline__partitioner=partitioner)
    assert sorted(counts(served), reverse=True) == expected


@pytest.mark.parametrize(
    ("acks", "expected"),
    [("1", log_service_pb2.ACKS_LEADER), ("all", log_service_pb2.ACKS_ALL), ("-1", log_service_pb2.ACKS_ALL)],
)
def test_acks_reach_the_broker(served: ServedCluster, acks: str, expected: int) -> None:
    write(served, paceline__acks=acks)
    assert {request.acks for request in served.produces} == {expected}


def test_the_batch_size_bounds_a_record_batch(served: ServedCluster) -> None:
    write(served, paceline__batch__size="1000")
    sizes = [len(part.batch) for request in served.produces for part in request.partitions]
    assert len(sizes) > 15 and max(sizes) <= 1_100
    assert sum(counts(served)) == 300


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_batch_size_above_the_limit_of_the_topic_is_lowered(served: ServedCluster, codec: str) -> None:
    for number in range(PARTITIONS):
        served.partitions["t", number].max_message_bytes = 1_000
    write(served, paceline__batch__size="100000", paceline__compression__type=codec)
    assert sum(counts(served)) == 300


def test_linger_is_accepted_and_delays_nothing(served: ServedCluster) -> None:
    """Were it kept, this test would not end."""
    write(served, paceline__linger__ms="86400000")
    assert sum(counts(served)) == 300


def test_the_request_timeout_is_the_time_that_a_broker_has(served: ServedCluster) -> None:
    write(served, paceline__request__timeout__ms="1234")
    assert served.produces and all(request.timeout_ms <= 1_234 for request in served.produces)


def test_the_delivery_timeout_ends_a_task_without_progress(served: ServedCluster) -> None:
    for number in range(PARTITIONS):
        served.partitions["t", number].produce_errors = [ErrorCode.NOT_ENOUGH_REPLICAS] * 100_000
    with pytest.raises(PacelineError):
        write(served, paceline__delivery__timeout__ms="300")


def test_the_client_id_is_what_brokers_see(served: ServedCluster) -> None:
    write(served, paceline__client__id="nightly-copy")
    assert all(each.startswith("nightly-copy ") for each in served.user_agents) and served.user_agents


@pytest.mark.parametrize(("given", "kept"), [("true", 1), ("false", 0)])
def test_headers_can_be_left_out(served: ServedCluster, given: str, kept: int) -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    write(served, pa.RecordBatch.from_pydict({"value": [b"v"], "headers": headers}), includeHeaders=given)
    (record,) = [each for part in served.partitions.values() for each in decoded(part.data)]
    assert len(record.headers) == kept


def test_exactly_once_rows_wait_in_the_named_staging_topic(served: ServedCluster) -> None:
    write(served, deliveryGuarantee="exactly-once", stagingTopic="mine")
    assert counts(served) == [0, 0, 0] and counts(served, "mine") == [300]


class AnyAdmin:
    """Takes the arguments of the client's Admin and connects to no cluster."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_the_staging_topic_is_created_with_its_partitions_and_retention(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Any] = []

    class Admin(AnyAdmin):
        def describe_cluster(self) -> Any:
            return SimpleNamespace(brokers=[1, 2, 3, 4])

        def create_topics(self, topics: list[Any]) -> None:
            created.extend(topics)
            served.partitions |= {(topics[0].name, n): ServedPartition(b"") for n in range(topics[0].partitions)}
            served.topic_ids[topics[0].name] = "id".ljust(22, "0")

    monkeypatch.setattr(staging, "Admin", Admin)
    options = parse_write_options(
        {"paceline.bootstrap.servers": served.bootstrap, "stagingPartitions": "5", "stagingRetentionMs": "7200000"}
    )
    assert ensure_staging_topic(options.view(), options) == 5
    (topic,) = created
    assert (topic.partitions, topic.replication_factor, topic.configs["retention.ms"]) == (5, 3, "7200000")
    assert topic.configs["max.message.bytes"] == str(4 << 20)


def test_a_task_waits_until_brokers_know_the_staging_topic_that_another_task_has_created(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Admin(AnyAdmin):
        def describe_cluster(self) -> Any:
            return SimpleNamespace(brokers=[1])

        def create_topics(self, topics: list[Any]) -> None:
            raise TopicAlreadyExistsError(topics[0].name)

    class SlowView(ClusterView):
        descriptions = 0

        def describe_topics(self, names: Sequence[str] = ()) -> dict[str, TopicDescription]:
            self.descriptions += 1
            return (
                {}
                if self.descriptions < 4
                else {
                    names[0]: TopicDescription(
                        names[0], "id", (PartitionDescription(0, 1, 1), PartitionDescription(1, 1, 1))
                    )
                }
            )

    monkeypatch.setattr(staging, "Admin", Admin)
    options = parse_write_options({"paceline.bootstrap.servers": served.bootstrap})
    assert ensure_staging_topic(SlowView((), client_id="test"), options) == 2


def test_the_compression_type_is_that_of_the_record_batches(served: ServedCluster) -> None:
    write(served, paceline__compression__type="zstd")
    assert {parse_header(part.batch).attributes & 7 for request in served.produces for part in request.partitions} == {
        4
    }
