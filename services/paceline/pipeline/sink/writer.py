"""The writers that Spark calls: `write` in the tasks, `commit` and `abort` on the driver, each in a separate process.

With at-least-once delivery, tasks append to the target partitions and the commit does nothing. With exactly-once
delivery, tasks append to a staging topic, and the commit publishes the batches of those task attempts that Spark has
accepted. See docs/decisions/0013-exactly-once-sink.md.

Spark calls `abort` for failed tasks, for a query that is stopped in the middle of a batch, and after a failed
`commit`, which may already have appended the batch to the partitions. So `abort` undoes nothing.
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from paceline.pipeline.errors import UnsupportedOperationError
from paceline.pipeline.sink.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.pipeline.sink.staging import Staged
    from paceline_client import RecordFuture

QUERY_ID = "sql.streaming.queryId"


@dataclass
class TaskWritten(WriterCommitMessage):  # type: ignore[misc]
    """Commit message that a task sends to the driver."""

    records: int
    query_id: str = ""
    """Identifies the decisions of the query, or of the application with ``txnAppId``."""
    owner: str = ""
    """Spark's id of the streaming query that runs the task, also in ``foreachBatch``; empty for other jobs."""
    staged: "Staged | None" = None
    """None when the task appended the rows to their partitions."""
    servers: tuple[str, ...] = field(default_factory=tuple)
    """Broker addresses from the task's metadata, in addition to the bootstrap servers."""


class PacelineWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes the rows of a batch query."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        # Without the option, an id is used again only by a repeated commit of this writer. As in Delta, an application
        # may write one version to several topics.
        app_id, self._version = options.txn or (None, 0)
        self._write_id = str(uuid.uuid4()) if app_id is None else f"txn/{app_id}/{options.topic or ''}"

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Append or stage the rows of one task."""
        return write_task(self._options, self._columns, iterator, self._write_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the staged batches."""
        publish(self._options, messages, self._version)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: staged batches that are in no decision are never published."""


class PacelineStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the micro-batches of a streaming query."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Append or stage the rows of one task."""
        query_id = streaming_query()
        if self._options.exactly_once and not query_id:
            raise UnsupportedOperationError(
                "the task has no query id from Spark; deliveryGuarantee=exactly-once needs the id"
            )
        return write_task(self._options, self._columns, iterator, query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the staged batches; repeated calls for a micro-batch publish each record once."""
        publish(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: staged batches that are in no decision are never published."""


def streaming_query() -> str:
    """Return Spark's id of the streaming query that runs this task, empty for other jobs."""
    context = TaskContext.get()
    return (context.getLocalProperty(QUERY_ID) if context is not None else None) or ""


def write_task(
    options: WriteOptions, columns: tuple[str, ...], rows: "Iterator[pa.RecordBatch]", query_id: str
) -> TaskWritten:
    """Append or stage the rows of one task and wait until they are replicated."""
    from paceline.model.errors import MessageTooLargeError
    from paceline.model.identifiers import TopicPartition
    from paceline.pipeline.sink.row_batches import RowBatches, as_binary
    from paceline.pipeline.sink.staging import (
        Staged,
        StagedBatch,
        ensure_staging_topic,
        producer_of_this_process,
        size_limit,
        stage_large,
        staging_partition,
    )

    cluster = options.view()
    staged: dict[TopicPartition, list[StagedBatch]] = {}
    staging_count = ensure_staging_topic(cluster, options) if options.exactly_once else 0
    sent: deque[tuple[TopicPartition, int, bytes | bytearray, RecordFuture]] = deque()

    def count_partitions(topic: str) -> int | None:
        found = cluster.describe_topics([topic]).get(topic)
        return None if found is None else len(found.partitions)

    with producer_of_this_process(options, cluster) as producer:

        def on_batch(target: TopicPartition, batch: bytes | bytearray, count: int) -> None:
            where = target
            if staging_count:
                where = TopicPartition(options.staging_topic, staging_partition(str(target), staging_count))
            sent.append((target, count, batch, producer.send_batch(*where, batch)))
            while sent[0][3].done() and len(sent) > 1:
                take_result()

        def take_result() -> None:
            target, count, batch, future = sent.popleft()
            try:
                place = future.result()
            except MessageTooLargeError:
                if not staging_count:
                    raise
                place = stage_large(producer, options, target, batch, future.batch.topic_partition)
            if staging_count:
                assert place.offset is not None
                staged.setdefault(target, []).append(StagedBatch(place.partition, place.offset, count))

        batches = RowBatches(options, count_partitions, on_batch, partial(size_limit, options))
        for each in rows:
            batches.add(as_binary(each, ("key", "value")), columns)
        batches.finish()
        while sent:
            take_result()
    found = Staged(staged) if options.exactly_once else None
    return TaskWritten(batches.records, query_id, streaming_query(), found, cluster.fallback_servers())


def publish(
    options: WriteOptions,
    messages: Sequence[Any],
    batch_id: int,
    at_step: Callable[[str], None] = lambda _: None,
) -> None:
    """Publish the batches that the winning tasks staged; ``at_step`` is called before each step with its name.

    Raises:
        PacelineError: the publish is incomplete; another call for the batch continues it.
    """
    written = [each for each in messages if isinstance(each, TaskWritten) and each.staged is not None]
    # Without rows, too: an earlier call for the batch may have decided on rows that are not published yet.
    if not written:
        return
    from paceline.model.identifiers import TopicPartition
    from paceline.pipeline.sink.publisher import Publisher
    from paceline.pipeline.sink.staging import Staged, StagedBatch

    merged: dict[TopicPartition, list[StagedBatch]] = {}
    for each in written:
        assert each.staged is not None
        for tp, batches in each.staged.batches.items():
            merged.setdefault(tp, []).extend(batches)
    cluster = options.view(written[0].servers)
    Publisher(cluster, options, at_step).publish(written[0].query_id, batch_id, Staged(merged), written[0].owner)
