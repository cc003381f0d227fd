"""The batch reader: plans on the driver (`planning`), reads in the tasks (`range_fetcher`, `decode`).

Constructors open no connections, because Spark builds and pickles these objects in separate processes. Modules that
need gRPC or numpy are imported where they are used, because every Python process in which Spark looks up data sources
imports this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from paceline.pipeline.source.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.pipeline.source.offset_ranges import OffsetRange
    from paceline.pipeline.source.pushdown import PushedFilters


@dataclass
class OffsetRangesPartition(InputPartition):  # type: ignore[misc]
    """The offset ranges of one task."""

    def __init__(self, ranges: "list[OffsetRange]", servers: tuple[str, ...] = ()) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.servers = servers
        """Broker addresses from the metadata that the planner read, in addition to the bootstrap servers."""


class PacelineReader(DataSourceReader):  # type: ignore[misc]
    """A batch read: planned once on the driver, then read range by range in the tasks."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed: PushedFilters | None = None

    def partitions(self) -> list[InputPartition]:
        """Return one input partition per task; Spark needs a list, even if it is empty."""
        from paceline.pipeline.source.planning import plan_tasks

        cluster = self._options.view()
        tasks = plan_tasks(self._options, cluster, self._pushed)
        return [OffsetRangesPartition(ranges, cluster.fallback_servers()) for ranges in tasks]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield the task's records as Arrow record batches.

        Yield nothing for the input partition that Spark creates for an empty plan.
        """
        return read_ranges(self._options, partition)


def read_ranges(options: ReadOptions, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """Yield the records of a task; the next responses are fetched while the previous response is decoded.

    For an empty plan Spark creates an input partition itself; that partition has no records.
    """
    if not isinstance(partition, OffsetRangesPartition):
        return
    from paceline.pipeline.decode.records import decode_index
    from paceline.pipeline.source.range_fetcher import prefetched
    from paceline.rpc.memory import keep_freed_memory

    keep_freed_memory()
    answers = prefetched(options.view(partition.servers), partition.ranges, options)
    try:
        for index in answers:
            yield from decode_index(index, options.columns)
    finally:
        answers.close()  # type: ignore[attr-defined]


class PushdownReader(PacelineReader):
    """The batch reader with filter pushdown; needs ``spark.sql.python.filterPushdown.enabled``."""

    def pushFilters(self, filters: list[Filter]) -> Any:  # noqa: N802
        """Turn filters into seek positions where possible; return the other filters, which Spark applies."""
        from paceline.pipeline.source.pushdown import PushedFilters

        self._pushed = PushedFilters()
        return self._pushed.push(filters)
