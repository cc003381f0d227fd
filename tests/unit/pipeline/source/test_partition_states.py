"""The state of partitions as rows, from brokers over real gRPC."""

from paceline.pipeline.data_source import PacelineDataSource
from paceline_client.process_channels import close_channels
from tests.unit.pipeline.batches import encode, simple_records
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition


def test_partitions_come_with_leader_isr_and_offsets_and_nulls_without_a_leader() -> None:
    log = encode(simple_records(10))
    partitions = {
        ("t", 0): ServedPartition(log, leader=2, log_start_offset=4),
        ("t", 1): ServedPartition(log, leader=None),
    }
    with ServedCluster(partitions, brokers=2) as served:
        source = PacelineDataSource(
            {"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t", "metadata": "partitions"}
        )
        made = source.reader(source.schema())
        [task] = made.partitions()
        [batch] = made.read(task)
        topic_id = served.topic_ids["t"]
        assert batch.to_pylist() == [
            {
                "topic": "t",
                "topicId": topic_id,
                "partition": 0,
                "leader": 2,
                "leaderEpoch": 7,
                "replicas": [1, 2],
                "isr": [1],
                "startOffset": 4,
                "endOffset": 10,
            },
            {
                "topic": "t",
                "topicId": topic_id,
                "partition": 1,
                "leader": None,
                "leaderEpoch": 7,
                "replicas": [1, 2],
                "isr": [1],
                "startOffset": None,
                "endOffset": None,
            },
        ]
    close_channels()


def test_arrow_types_are_exactly_what_spark_asks_for() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    with ServedCluster({("t", 0): ServedPartition(b"")}) as served:
        source = PacelineDataSource(
            {"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t", "metadata": "partitions"}
        )
        [batch] = source.reader(source.schema()).read(None)
        assert batch.schema == to_arrow_schema(source.schema())
    close_channels()
