"""Spark program of the run: a stream that writes the flights to a table, and a check of that table.

``python -m examples.flights.spark_job DIRECTORY`` reads two lines of JSON from its standard input. The first names the
cluster and the topic and starts the query. The second has the expected number of records, and ends the query when it
has read all records of the topic. `examples.flights.verify.SparkReader` starts this program and writes these lines.

Relative paths are below the working directory, DIRECTORY/scratch: the program writes a line per micro-batch to
``progress.jsonl`` and the result of the check to ``verdict.json``.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from examples.flights.verify import PROGRESS_FILE, TABLE, VERDICT_FILE, Verdict
from paceline.pipeline.session import configure
from paceline.pipeline.source.stream_offset import StreamOffset

TRIGGER = "1 second"
_FLIGHT = (
    "seq long, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour string"
)


def spark_session() -> Any:
    """Return a local session with the data source registered, which writes only below the working directory."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("paceline-flights")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        # By default Spark repeats a task whose Python worker has not started in 15 s; a busy machine needs longer.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.sql.warehouse.dir", "warehouse")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    session = configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


class BatchLog(StreamingQueryListener):  # type: ignore[misc]
    """Writes a line of JSON for every micro-batch that had rows: a `reading.Batch`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: TextIO | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Create the file, from which `SparkReader` knows that the query runs."""
        self._file = self._path.open("w", encoding="utf-8", buffering=1)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Write the micro-batch with the time of the monotonic clock, which all processes of the machine share."""
        progress = event.progress
        if not progress.numInputRows or self._file is None:
            return
        ends = StreamOffset.from_json(json.loads(progress.sources[0].endOffset)).offsets
        batch = {
            "at_s": time.monotonic(),
            "duration_ms": progress.durationMs["triggerExecution"],
            "rows": progress.numInputRows,
            "ends": {str(tp.partition): end for tp, end in ends.items()},
        }
        self._file.write(json.dumps(batch) + "\n")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""


def start_stream(session: Any, bootstrap: str, topic: str, table: Path) -> Any:
    """Start the query that appends each flight of the topic once to the table, and return the query."""
    return (
        session.readStream.format("paceline")
        .option("paceline.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(
            f.col("key").cast("string").alias("key"),
            "partition",
            "offset",
            "timestamp",
            f.from_json(f.col("value").cast("string"), _FLIGHT).alias("flight"),
        )
        .select("key", "partition", "offset", "timestamp", "flight.*")
        .writeStream.format("parquet")
        .option("checkpointLocation", "checkpoint")
        .trigger(processingTime=TRIGGER)
        .start(str(table))
    )


def judge(session: Any, table: Path, expected: int) -> Verdict:
    """Return the result of checking the table.

    Args:
        session: a Spark session from `spark_session`.
        table: folder to which the stream wrote.
        expected: number of records, whose sequence numbers begin at 0.
    """
    written = session.read.parquet(str(table))
    totals = written.agg(
        f.count("*").alias("records"),
        f.countDistinct("seq").alias("distinct"),
        f.sum(f.when((f.col("seq") < 0) | (f.col("seq") >= expected), 1).otherwise(0)).alias("foreign"),
    ).first()
    by_key = Window.partitionBy("key").orderBy("partition", "offset")
    out_of_order = written.withColumn("before", f.lag("seq").over(by_key)).where("before >= seq").count()
    split_keys = written.groupBy("key").agg(f.countDistinct("partition").alias("n")).where("n > 1").count()
    delays: dict[str, dict[int, float]] = {}
    for row in written.groupBy("carrier", "month").agg(f.avg("dep_delay").alias("delay")).collect():
        if row["delay"] is not None:
            delays.setdefault(row["carrier"], {})[row["month"]] = row["delay"]
    distinct = totals["distinct"]
    return Verdict(
        records_read=totals["records"],
        distinct=distinct,
        lost=expected - (distinct - (totals["foreign"] or 0)),
        duplicated=totals["records"] - distinct,
        out_of_order=out_of_order,
        keys_on_two_partitions=split_keys,
        delays=delays,
    )


def main(argv: Sequence[str]) -> None:
    """Start a session, run the stream after the first input line, and write the verdict when all records are read."""
    table = Path(argv[0]) / TABLE
    # The minute is a constant of Spark's PythonWorkerFactory, and the worker's last flush finds a closed socket.
    print("Spark stops Python workers idle for a minute; their BrokenPipeError is harmless", file=sys.stderr)
    session = spark_session()
    session.streams.addListener(BatchLog(Path(PROGRESS_FILE)))
    line = sys.stdin.readline()
    if not line:
        return
    query = start_stream(session, **json.loads(line), table=table)
    line = sys.stdin.readline()
    if not line:
        return
    query.processAllAvailable()
    query.stop()
    verdict = judge(session, table, **json.loads(line))
    session.stop()
    Path(VERDICT_FILE).write_text(json.dumps(asdict(verdict)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
