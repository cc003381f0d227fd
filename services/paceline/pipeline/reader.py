"""The Spark data source ``paceline``: ``spark.read.format("paceline")``. Start here.

`PacelineDataSource` checks the options; its reader plans on the driver (`planning`) and reads in the tasks
(`range_fetcher`, `decode`). Constructors connect to nothing: Spark builds and pickles these objects in processes
of their own (spec/pipeline.md section 2 trap 7). What needs gRPC or numpy is imported where it is used, because
every Python process of Spark that merely looks for data sources imports this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from paceline.pipeline.errors import InvalidOptionError, UnsupportedOperationError
from paceline.pipeline.options import ReadOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.pipeline.offset_ranges import OffsetRange
    from paceline.pipeline.pushdown import PushedFilters

FORMAT = "paceline"

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_SPARK_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def spark_schema(columns: tuple[str, ...]) -> StructType:
    """Return the Spark schema of these columns, all nullable: Spark compares Arrow fields strictly (trap 5)."""
    return StructType([StructField(name, _SPARK_TYPES[name]) for name in columns])


@dataclass
class OffsetRangesPartition(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    def __init__(self, ranges: "list[OffsetRange]", servers: tuple[str, ...] = ()) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.servers = servers
        """Brokers that planning heard of, beside the bootstrap servers."""


class PacelineDataSource(DataSource):  # type: ignore[misc]
    """Batch reads of topics; streaming reads and writes are refused with a clear error."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns chosen by the options; every option is checked here, before a job starts."""
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> "PacelineReader":
        """Return the reader; one with filter push-down only if asked for, as Spark refuses it otherwise (trap 4)."""
        options = parse_options(self.options)
        own = spark_schema(options.columns)
        if schema != own:
            raise InvalidOptionError(
                f"the schema is fixed ({own.simpleString()}) and cannot be set; choose columns with the option columns"
            )
        return PushdownReader(options) if options.pushdown else PacelineReader(options)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802
        """Refuse: there is no streaming read yet."""
        raise UnsupportedOperationError(
            "readStream is not supported by the paceline source yet; read in batches with spark.read, "
            "startingOffsets and endingOffsets"
        )

    def simpleStreamReader(self, schema: StructType) -> NoReturn:  # noqa: N802
        """Refuse: reading through the driver is never a good idea (trap 20)."""
        self.streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse: there is no sink yet."""
        raise UnsupportedOperationError("writing to paceline is not supported yet; use the Python client")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        """Refuse: there is no sink yet."""
        self.writer(schema, overwrite)


class PacelineReader(DataSourceReader):  # type: ignore[misc]
    """A batch read: planned once on the driver, then read range by range in the tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed: PushedFilters | None = None

    def partitions(self) -> list[InputPartition]:
        """Return one input partition per task, a list even when there is nothing to read (trap 10)."""
        from paceline.pipeline.cluster import Cluster
        from paceline.pipeline.planning import plan_tasks

        cluster = Cluster(self._options)
        tasks = plan_tasks(self._options, cluster, self._pushed)
        return [OffsetRangesPartition(ranges, cluster.some_servers()) for ranges in tasks]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the task's records as Arrow record batches; nothing for the partition Spark makes of an empty plan."""
        return self._read(partition) if isinstance(partition, OffsetRangesPartition) else iter(())

    def _read(self, partition: OffsetRangesPartition) -> "Iterator[pa.RecordBatch]":
        from paceline.pipeline.cluster import Cluster
        from paceline.pipeline.decode import decode_index
        from paceline.pipeline.range_fetcher import RangeFetcher, prefetched

        cluster = Cluster(self._options, partition.servers)
        fetcher = RangeFetcher(cluster, partition.ranges, self._options)
        answers = prefetched(fetcher)
        try:
            for index in answers:
                yield from decode_index(index, self._options.columns)
        finally:
            answers.close()  # type: ignore[attr-defined]


class PushdownReader(PacelineReader):
    """The reader that takes filters; needs ``spark.sql.python.filterPushdown.enabled``."""

    def pushFilters(self, filters: list[Filter]) -> Any:  # noqa: N802
        """Turn what can be turned into seek positions; return the filters left to Spark."""
        from paceline.pipeline.pushdown import PushedFilters

        self._pushed = PushedFilters()
        return self._pushed.push(filters)
