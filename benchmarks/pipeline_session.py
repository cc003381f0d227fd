"""Run a Spark session of the pipeline benchmark, which measures a source and prints a JSON object.

    python pipeline_session.py kafka|paceline BOOTSTRAP TOPIC OUTPUT --rounds 3 [--jars a.jar,b.jar] [--heap 1g]
        [--batches batch_noop parquet delta] [--micro-batches TOPIC]

It runs in the environment of either side, so it imports modules of this repository only if the side is ``paceline``.
With ``--micro-batches`` it starts a query, prints ``ready`` and waits for a line on its standard input; on the side of
Paceline it then measures micro-batches of a Python source that does nothing.
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

FEWEST_BATCHES = 3
SLOW_BATCHES_S = 150.0
"""Longest wait for micro-batches if a batch takes longer than the writing of the records."""
FOREACH_BATCH_ROWS = 500_000
"""The rows of a micro-batch are collected on the driver, whose heap is small."""
COLUMNS = ("key", "value", "partition", "offset", "timestamp")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["kafka", "paceline"])
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jars", default="")
    parser.add_argument("--heap", default="1g")
    parser.add_argument("--batches", nargs="*", default=[], choices=["batch_noop", "parquet", "delta"])
    parser.add_argument("--micro-batches", default="")
    arguments = parser.parse_args()
    spark = _session(arguments)
    found: dict[str, Any] = {}
    if arguments.batches:
        found |= _batches(spark, arguments)
    if arguments.micro_batches:
        found |= _micro_batch(spark, arguments)
        if arguments.side == "paceline":
            found |= _empty_batch(spark, arguments)
    print(json.dumps(found), flush=True)
    spark.stop()


def _session(arguments: argparse.Namespace) -> Any:
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", arguments.heap)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
    )
    if arguments.side == "kafka":
        return builder.config("spark.jars", arguments.jars).getOrCreate()
    from pyspark_paceline import configure

    return configure(builder).getOrCreate()


def _source(reader: Any, arguments: argparse.Namespace) -> Any:
    name = f"{arguments.side}.bootstrap.servers"
    return reader.format(arguments.side).option(name, arguments.bootstrap)


def _batches(spark: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return rows per second of warm rounds: to the noop sink, with Spark's Parquet writer, and into a Delta table."""
    frame = _source(spark.read, arguments).option("subscribe", arguments.topic).load()
    rows = frame.count()
    columns = frame.selectExpr(*COLUMNS)

    def noop(_: int) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def parquet(_: int) -> None:
        columns.write.mode("overwrite").parquet(str(arguments.output / "parquet"))

    copy = _ingest if arguments.side == "paceline" else _foreach_batch

    def delta(number: int) -> None:
        copy(spark, arguments, str(arguments.output / f"delta-{number}"))

    actions = {"batch_noop": noop, "parquet": parquet, "delta": delta}
    found = {name: rows / _median_s(actions[name], arguments.rounds) for name in arguments.batches}
    shutil.rmtree(arguments.output, ignore_errors=True)
    return found | {"rows": rows}


def _ingest(spark: Any, arguments: argparse.Namespace, table: str) -> None:
    from paceline.pipeline.jobs.ingest import job
    from paceline.pipeline.jobs.ingest.config import IngestConfig

    servers = tuple(arguments.bootstrap.split(","))
    job.run(spark, IngestConfig(servers, (arguments.topic,), table, include_headers=False, compression="snappy"))


def _foreach_batch(spark: Any, arguments: argparse.Namespace, table: str) -> None:
    """Copy the topic with a streaming query whose foreachBatch writes with delta-rs, which needs no jar of Delta."""
    from deltalake import CommitProperties, Transaction, write_deltalake

    def append(frame: Any, batch: int) -> None:
        properties = CommitProperties(app_transactions=[Transaction("benchmark", batch)])
        write_deltalake(table, frame.toArrow(), mode="append", commit_properties=properties)

    frame = _source(spark.readStream, arguments).option("subscribe", arguments.topic)
    query = (
        frame.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(FOREACH_BATCH_ROWS))
        .load()
        .selectExpr(*COLUMNS)
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", f"{table}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _median_s(action: Any, rounds: int) -> float:
    """Return the median time of the rounds after a warm-up round."""
    times = []
    for number in range(rounds + 1):
        began = time.monotonic()
        action(number)
        times.append(time.monotonic() - began)
    return median(times[1:])


def _micro_batch(spark: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the median time of a micro-batch that has rows, while the caller writes.

    When no micro-batch ends in time, the result is the time limit, a lower bound, with ``micro_batch_not_ended``.
    """
    frame = _source(spark.readStream, arguments).option("subscribe", arguments.micro_batches)
    query = (
        frame.option("startingOffsets", "latest")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(arguments.output / "checkpoint"))
        .start()
    )
    while not query.recentProgress:
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        time.sleep(0.1)
    began = time.monotonic()
    print("ready", flush=True)
    sys.stdin.readline()
    deadline = time.monotonic() + SLOW_BATCHES_S
    while len(steps := _steps_ms(query)) < FEWEST_BATCHES and time.monotonic() < deadline:
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        time.sleep(0.5)
    if not steps:
        return {"micro_batch_ms": round((time.monotonic() - began) * 1000), "micro_batch_not_ended": True}
    query.stop()
    shutil.rmtree(arguments.output, ignore_errors=True)
    return _medians("micro_batch", steps)


def _medians(name: str, steps: list[dict[str, int]]) -> dict[str, Any]:
    """Return the median times of a micro-batch and of its steps, in milliseconds."""
    warm = steps[len(steps) // 5 :]  # In the first batches the JVM compiles code.
    medians = {step: float(median(each.get(step, 0) for each in warm)) for step in sorted(warm[-1])}
    return {f"{name}_ms": medians.pop("triggerExecution"), f"{name}_steps_ms": medians}


def _empty_batch(spark: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the median time of a micro-batch of a Python source with a task without rows, while the caller writes.

    The source does nothing else, so this is the part of a micro-batch that every Python source has. The writes take
    processor time from it, as from the micro-batches with rows.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):  # type: ignore[misc]
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"batch": 0}

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
            return {"batch": start["batch"] + 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Any:
            return iter(())

        def commit(self, end: dict[str, int]) -> None:
            pass

    class Empty(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "empty"

        def schema(self) -> str:
            return "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP"

        def streamReader(self, schema: Any) -> Reader:  # noqa: N802
            return Reader()

    spark.dataSource.register(Empty)
    writer = spark.readStream.format("empty").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(arguments.output / "empty")).start()
    while not query.recentProgress:
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        time.sleep(0.1)
    print("ready", flush=True)
    sys.stdin.readline()
    query.stop()
    return _medians("empty_batch", [dict(each.durationMs) for each in query.recentProgress])


def _steps_ms(query: Any) -> list[dict[str, int]]:
    return [dict(each.durationMs) for each in query.recentProgress if each.numInputRows]


if __name__ == "__main__":
    main()
