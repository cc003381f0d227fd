"""The driver of an ingest into Delta: plan a batch, run its tasks, commit the dead letters, commit the table, repeat.

| Step | If the driver dies after it | The next run |
|---|---|---|
| planned | nothing was written | plans again from the tables' offsets |
| written | files that are in no commit | copies the batch again; ``pipeline compact`` deletes the files |
| dead-letters-committed | only the dead letters are committed | copies the batch again, adds no dead letter twice |
| committed | everything is committed | continues after the batch |

When a worker dies, its task or batch fails and is repeated from the step ``planned``. Parquet files are written by
Spark's own file sink, see `parquet_query`.
"""

import pickle
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.model.identifiers import TopicPartition
from paceline.pipeline.jobs.ingest.attempts import repeated
from paceline.pipeline.jobs.ingest.config import PARTITION_COLUMNS, IngestConfig, check_config, table_path
from paceline.pipeline.jobs.ingest.delta_table import DeltaLakeTable, Snapshot, Source
from paceline.pipeline.jobs.ingest.parquet_files import WrittenFile
from paceline.pipeline.jobs.ingest.parquet_query import copy_to_parquet
from paceline.pipeline.jobs.ingest.rows import DEAD_LETTER_FIELDS, DEAD_LETTER_PARTITION, table_fields
from paceline.pipeline.jobs.ingest.task import REPORT_SCHEMA, IngestTasks, TaskReport
from paceline.pipeline.jobs.run import ExitCode, JobListener, JobResult, SilentListener
from paceline.pipeline.source.offset_ranges import OffsetRange
from paceline.pipeline.source.options import parse_stream_options
from paceline.pipeline.source.stream_offset import StreamOffset
from paceline.pipeline.source.stream_planner import StreamPlanner
from paceline.rpc.security.client_tls import files_in_environment


def run(
    spark: Any,
    config: IngestConfig,
    listener: JobListener | None = None,
    stop: threading.Event | None = None,
) -> JobResult:
    """Copy the topics up to their present end, or until ``stop`` is set when the config says ``continuous``.

    Raises:
        InvalidConfigError: the settings are invalid, or the directory has a table of another kind or other columns.
        JobFailedError: a batch failed in every attempt; the message has the last cause.
        DataLossError: records were deleted before they were copied.
        CommitConflictError: another driver writes to the table; the message names it.
    """
    check_config(config)
    config = replace(config, tls=config.tls or files_in_environment())
    listener, stop = listener or SilentListener(), stop or threading.Event()
    options = config.source_options(_cores(spark))
    if config.table_format == "parquet":
        return copy_to_parquet(spark, config, options, listener, stop)
    return _Ingest(spark, config, options, listener, stop).run()


class _Ingest:
    def __init__(
        self, spark: Any, config: IngestConfig, options: Mapping[str, str], listener: JobListener, stop: threading.Event
    ) -> None:
        self._spark, self._config, self._listener, self._stop = spark, config, listener, stop
        self._options = parse_stream_options(options)
        self._cluster = self._options.view()
        self._planner = StreamPlanner(self._options, self._cluster)
        self._first: StreamOffset | None = None
        """Offsets at which topics start that the table does not have yet."""
        path, dead_path = table_path(config.table), table_path(config.dead_letter_table)
        fields, stored = table_fields(config.include_headers), config.storage_options
        self._table = DeltaLakeTable(path, fields, PARTITION_COLUMNS, stored)
        self._dead = DeltaLakeTable(dead_path, DEAD_LETTER_FIELDS, DEAD_LETTER_PARTITION, stored)
        self._totals: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def run(self) -> JobResult:
        started = time.monotonic()
        while not self._stop.is_set():
            batch_started = time.monotonic()
            advanced = repeated(self._config, self._listener, self._stop, self._copy_batch)
            if self._config.continuous:
                self._stop.wait(max(0.0, self._config.interval_s - (time.monotonic() - batch_started)))
            elif not advanced:
                break
        names = ("batches", "rows", "dead_letters", "files", "stored_bytes")
        summary = {
            "table": table_path(self._config.table),
            **{name: self._totals[name] for name in names},
            "reasons": dict(self._reasons.most_common()),
            "seconds": round(time.monotonic() - started, 3),
        }
        return JobResult(ExitCode.OK, summary)

    def _copy_batch(self) -> bool:
        """Copy one batch; return whether there was anything to copy."""
        planner, totals = self._planner, self._totals
        first = self._find_first()
        sources = {tp: Source(tp.topic, first.topic_ids[tp.topic], tp.partition) for tp in first.offsets}
        seen, dead_seen = self._table.load(sources.values()), self._dead.load(sources.values())
        begins = {tp: seen.progress.get(source, first.offsets[tp]) for tp, source in sources.items()}
        start = StreamOffset(begins, first.topic_ids)
        end = planner.latest(start, None, self._config.max_batch_bytes, None)
        if end.topic_ids != first.topic_ids or end.offsets.keys() - begins.keys():
            return True  # Topics or partitions were created after `_find_first`, which finds them in the next batch.
        progress = {
            source: end.offsets[tp]
            for tp, source in sources.items()
            # With ``start_at_latest`` the next run has to continue at the end that this run has found.
            if end.offsets[tp] != begins[tp] or (self._config.start_at_latest and source not in seen.progress)
        }
        if not progress:
            return False
        latest = planner.report_latest() or end
        left = sum(max(0, latest.offsets.get(tp, begin) - begin) for tp, begin in begins.items())
        tasks = planner.tasks(start, end)
        records = sum(each.records for ranges in tasks for each in ranges)
        self._listener.step("planned", {"records": records, "left": left})
        started = time.monotonic()
        # The progress may have a deleted topic with the same name; its `Source` differs, because the topic id does.
        reports = self._run_tasks(tasks, {tp: dead_seen.progress.get(source, 0) for tp, source in sources.items()})
        rows = sum(report.rows for report in reports)
        self._listener.step("written", {"rows": rows, "seconds": time.monotonic() - started})
        self._commit(progress, reports, seen, dead_seen)
        totals.update(batches=1, rows=rows)
        for report in reports:
            totals.update(dead_letters=report.dead_letters, stored_bytes=report.stored_bytes)
            totals.update(files=len(report.files) + len(report.dead_letter_files))
            self._reasons.update(report.reasons)
        facts = {"rows": rows, "total_rows": totals["rows"], "dead_letters": totals["dead_letters"], "records": records}
        self._listener.step("committed", {**facts, "left": left - records, "seconds": time.monotonic() - started})
        return True

    def _find_first(self) -> StreamOffset:
        """Return where topics start that the table does not have; a run that ends has a fixed end, too."""
        if self._first is None or self._config.continuous:
            if not self._config.continuous:
                self._planner.prepare_available_now()
            self._first = self._planner.initial()
        return self._first

    def _commit(
        self, progress: Mapping[Source, int], reports: Sequence[TaskReport], seen: Snapshot, dead_seen: Snapshot
    ) -> None:
        # A log that was shortened may get other records at offsets whose dead letters are already committed.
        shortened = {source for source, end in progress.items() if end < seen.progress.get(source, 0)}
        dead_files: list[WrittenFile] = [file for report in reports for file in report.dead_letter_files]
        if dead_files or shortened & dead_seen.progress.keys():
            ahead = {
                source: end if source in shortened else max(end, dead_seen.progress.get(source, 0))
                for source, end in progress.items()
            }
            self._dead.commit(dead_seen, dead_files, ahead)
            self._listener.step("dead-letters-committed", {"files": len(dead_files)})
        self._table.commit(seen, [file for report in reports for file in report.files], progress)

    def _run_tasks(
        self, tasks: Sequence[Sequence[OffsetRange]], dead_letters_from: Mapping[TopicPartition, int]
    ) -> list[TaskReport]:
        if not tasks:
            return []
        mapped = IngestTasks(self._config, self._options, tasks, dead_letters_from, self._cluster.fallback_servers())
        # One number per Spark partition, so that each Spark task runs one ingest task.
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        reports = numbers.mapInArrow(mapped.__call__, REPORT_SCHEMA).collect()
        return [pickle.loads(row.report) for row in reports]


def _cores(spark: Any) -> int:
    """Return the number of tasks that Spark runs at once.

    Spark Connect does not report this number, so return the number of shuffle partitions.
    """
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:
        return max(1, int(spark.conf.get("spark.sql.shuffle.partitions", "8")))
