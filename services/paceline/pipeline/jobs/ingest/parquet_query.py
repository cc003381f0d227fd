"""Copy topics into Parquet files with Spark's own file sink: a streaming query with a checkpoint.

The files that count are those in the sink's log, ``_spark_metadata``, which Spark's readers follow. Any file system and
any of the columns as partition columns will do. Spark's checkpoint has the offsets.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from paceline.pipeline.jobs.ingest.attempts import repeated
from paceline.pipeline.jobs.ingest.config import IngestConfig, table_path
from paceline.pipeline.jobs.run import ExitCode, JobListener, JobResult

DAY: Final = "date_from_unix_date(CAST(floor(unix_seconds(timestamp) / 86400) AS INT))"
"""The date in UTC, whatever the time zone of the session."""
POLL_S: Final = 0.2


def copy_to_parquet(
    spark: Any, config: IngestConfig, options: Mapping[str, str], listener: JobListener, stop: threading.Event
) -> JobResult:
    """Run the query until it has copied the present records, or until ``stop`` is set in a continuous run.

    A query that is stopped repeats its last micro-batch in the next run.

    Raises:
        DataLossError: records were deleted before they were copied.
        JobFailedError: the query failed in every attempt; the message has the last cause.
    """
    path = table_path(config.table)
    started = time.monotonic()
    totals = {"batches": 0, "rows": 0}

    def run_query() -> None:
        frame = spark.readStream.format("paceline").options(**options).load().selectExpr("*", f"{DAY} AS date")
        writer = (
            frame.writeStream.format("parquet")
            .partitionBy(*config.partition_by)
            .option("compression", config.compression)
            .option("checkpointLocation", config.checkpoint or f"{path}/_checkpoint")
        )
        if config.continuous:
            writer = writer.trigger(processingTime=f"{config.interval_s * 1000:.0f} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        query = writer.start(path)
        told = -1
        ended = False
        while not ended:
            ended = stop.is_set() or bool(query.awaitTermination(POLL_S))
            for batch in query.recentProgress:
                if batch.batchId > told and batch.numInputRows:
                    told = batch.batchId
                    totals["batches"] += 1
                    totals["rows"] += batch.numInputRows
                    listener.step("committed", {"rows": batch.numInputRows, "total_rows": totals["rows"]})
        query.stop()

    repeated(config, listener, stop, run_query)
    return JobResult(ExitCode.OK, {"table": path, **totals, "seconds": round(time.monotonic() - started, 3)})
