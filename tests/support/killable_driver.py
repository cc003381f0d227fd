"""The Spark driver of the kill matrix: an ingest or a streaming copy that waits for permission before each step.

``python -m tests.support.killable_driver ingest|parquet|copy BOOTSTRAP SOURCE TARGET RECORDS``, where TARGET is the
directory of a table, or TOPIC@CHECKPOINT. The driver, its commits and its tasks send ``STEP PID`` to the port of
127.0.0.1 in PACELINE_STEPS_PORT and wait for the answer. `tests.soak.kill_matrix` answers after it has killed a
process, or at once.
"""

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.task import IngestTasks, TaskReport
from paceline.pipeline.jobs.sessions import open_session
from paceline.pipeline.sink.columns import check_columns
from paceline.pipeline.sink.options import parse_write_options
from paceline.pipeline.sink.writer import PacelineStreamWriter, publish
from paceline.pipeline.source.options import parse_stream_options
from paceline.pipeline.source.stream_reader import PacelineStreamReader

MASTER = "local-cluster[2,1,640]"
"""Executors are separate processes, so that a single executor can be killed."""
PORT = "PACELINE_STEPS_PORT"
BATCHES = 40


def ask(step: str) -> None:
    """Wait for the matrix's answer; continue when the matrix has closed the connection."""
    try:
        with socket.create_connection(("127.0.0.1", int(os.environ[PORT])), timeout=600) as connection:
            connection.sendall(f"{step.split()[0]} {os.getpid()}\n".encode())
            connection.recv(16)
    except OSError:
        return


class AskingListener:
    """Waits for permission after each step of the ingest's driver."""

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        ask(name)


class AskingTasks(IngestTasks):
    """Tasks that wait for permission before they report the files that they have written."""

    def run(self, number: int) -> TaskReport:
        report = super().run(number)
        ask("task")
        return report


class AskingWriter(PacelineStreamWriter):
    """A writer that waits for permission after a task has staged its rows, and before each step of the commit."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        message = super().write(iterator)
        ask("staged")
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        publish(self._options, messages, batchId, ask)


class AskingReader(PacelineStreamReader):
    """A streaming reader that waits for permission before it plans, and before and after a task's rows."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        ask("latest")
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ask("partitions")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        ask("read")
        yield from super().read(partition)
        ask("rows")

    def commit(self, end: Mapping[str, Any]) -> None:
        ask("committed")


class AskingSource(PacelineDataSource):
    """The data source with `AskingWriter`."""

    @classmethod
    def name(cls) -> str:
        return "asking"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PacelineStreamWriter:  # noqa: N802
        options = parse_write_options(self.options)
        return AskingWriter(options, check_columns(schema, options))


class AskingReadSource(PacelineDataSource):
    """The data source with `AskingReader`, under its own name."""

    def streamReader(self, schema: StructType) -> PacelineStreamReader:  # noqa: N802
        return AskingReader(parse_stream_options(self.options))


def ingest(spark: Any, table_format: str, bootstrap: str, source: str, table: str, records: int) -> None:
    """Copy the topic into a Delta table, or into Parquet files, in `BATCHES` batches."""
    if table_format == "parquet":
        spark.dataSource.register(AskingReadSource)
    vars(job)["IngestTasks"] = AskingTasks
    stored_bytes = records * 20
    servers = tuple(bootstrap.split(","))
    config = IngestConfig(servers, (source,), table, table_format, max_batch_bytes=stored_bytes // BATCHES)
    print(dict(job.run(spark, config, AskingListener()).summary), flush=True)


def copy(spark: Any, bootstrap: str, source: str, target: str, checkpoint: str, records: int) -> None:
    """Copy the topic into another topic, exactly once, in `BATCHES` micro-batches."""
    spark.dataSource.register(AskingSource)
    servers = {"paceline.bootstrap.servers": bootstrap}
    frame = spark.readStream.format("paceline").options(**servers, subscribe=source, startingOffsets="earliest")
    query = (
        frame.option("maxOffsetsPerTrigger", str(records // BATCHES))
        .load()
        .select("value", "partition")
        .writeStream.format("asking")
        .options(**servers, topic=target, deliveryGuarantee="exactly-once")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print({"rows": sum(each.numInputRows for each in query.recentProgress)}, flush=True)


def main() -> None:
    """Run the ingest or the copy."""
    what, bootstrap, source, target, records = sys.argv[1:]
    settings = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        # A killed executor fails its tasks; the matrix kills more executors than Spark allows per job by default.
        "spark.task.maxFailures": "20",
        "spark.deploy.maxExecutorRetries": "-1",
        # A busy machine starts a Python worker slowly.
        "spark.python.authenticate.socketTimeout": "120s",
        f"spark.executorEnv.{PORT}": os.environ[PORT],
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    with open_session(f"kill-matrix-{what}", MASTER, settings=settings) as spark:
        if what != "copy":
            ingest(spark, "delta" if what == "ingest" else what, bootstrap, source, target, int(records))
        else:
            copy(spark, bootstrap, source, target.split("@")[0], target.split("@")[1], int(records))


if __name__ == "__main__":
    main()
