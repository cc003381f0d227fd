"""The Spark driver of the kill matrix: an ingest or a streaming copy that waits for permission before each step.

``python -m tests.support.killable_driver ingest|copy BOOTSTRAP SOURCE TARGET RECORDS``, where TARGET is a table's
directory, or TOPIC@CHECKPOINT. The driver, its commits and its tasks send ``STEP PID`` to the port of 127.0.0.1 in
PACELINE_STEPS_PORT and wait for the answer. `tests.soak.kill_matrix` answers after it has killed a process, or at once.
"""

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.jobs.ingest import job
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.task import IngestTasks, TaskReport
from paceline.pipeline.jobs.sessions import open_session
from paceline.pipeline.sink.columns import check_columns
from paceline.pipeline.sink.options import parse_write_options
from paceline.pipeline.sink.writer import PacelineStreamWriter, publish

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


class AskingSource(PacelineDataSource):
    """The data source with `AskingWriter`."""

    @classmethod
    def name(cls) -> str:
        return "asking"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PacelineStreamWriter:  # noqa: N802
        options = parse_write_options(self.options)
        return AskingWriter(options, check_columns(schema, options))


def ingest(spark: Any, bootstrap: str, source: str, table: str, records: int) -> None:
    """Copy the topic into a Parquet table in `BATCHES` batches."""
    vars(job)["IngestTasks"] = AskingTasks
    stored_bytes = records * 20
    config = IngestConfig(
        tuple(bootstrap.split(",")), (source,), table, "parquet", "text", max_batch_bytes=stored_bytes // BATCHES
    )
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
        if what == "ingest":
            ingest(spark, bootstrap, source, target, int(records))
        else:
            copy(spark, bootstrap, source, target.split("@")[0], target.split("@")[1], int(records))


if __name__ == "__main__":
    main()
