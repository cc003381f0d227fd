"""``option("metadata", "partitions")``: the partitions of the subscribed topics as rows instead of their records."""

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from paceline.model.identifiers import TopicPartition
from paceline.pipeline.source.options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("topicId", StringType()),
        StructField("partition", IntegerType()),
        StructField("leader", IntegerType()),
        StructField("leaderEpoch", IntegerType()),
        StructField("replicas", ArrayType(IntegerType())),
        StructField("isr", ArrayType(IntegerType())),
        StructField("startOffset", LongType()),
        StructField("endOffset", LongType()),
    ]
)
"""``leader`` and the offsets are null while a partition has no leader; ``endOffset`` is exclusive."""


class PartitionStatesReader(DataSourceReader):  # type: ignore[misc]
    """Reads the state of the partitions in one task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return a single input partition, because a few calls read the whole state."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield one row per partition, sorted."""
        import pyarrow as pa

        from paceline.pipeline.source.planning import resolve_partitions
        from paceline_client.cluster_view import EARLIEST, LATEST

        cluster = self._options.view()
        topics, partitions = resolve_partitions(self._options, cluster)
        led = [tp for tp in partitions if cluster.leader_address(tp) is not None]
        starts: dict[TopicPartition, int | None] = {}
        ends: dict[TopicPartition, int | None] = {}
        cluster.ask_offsets(led, EARLIEST, starts)
        cluster.ask_offsets(led, LATEST, ends)
        states = [topics[tp.topic].partitions[tp.partition] for tp in partitions]
        ints = pa.list_(pa.field("element", pa.int32()))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([tp.topic for tp in partitions], pa.string()),
                pa.array([topics[tp.topic].topic_id for tp in partitions], pa.string()),
                pa.array([tp.partition for tp in partitions], pa.int32()),
                pa.array([state.leader for state in states], pa.int32()),
                pa.array([state.leader_epoch for state in states], pa.int32()),
                pa.array([list(state.replicas) for state in states], ints),
                pa.array([list(state.isr) for state in states], ints),
                pa.array([starts.get(tp) for tp in partitions], pa.int64()),
                pa.array([ends.get(tp) for tp in partitions], pa.int64()),
            ],
            names=[field.name for field in SCHEMA.fields],
        )
