"""The driver of an ingest: plan a batch, run its tasks, commit the dead letters, commit the table, repeat.

| Step | If the driver dies after it | The next run |
|---|---|---|
| planned | nothing was written | plans again from the tables' offsets |
| written | files that are in no commit | copies the batch again; the files are deleted as orphans |
| dead-letters-committed | only the dead letters are committed | copies the batch again, adds no dead letter twice |
| committed | everything is committed | continues after the batch |

When a worker dies, its task or batch fails and is repeated from the step ``planned``.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from paceline.model.errors import InvalidConfigError, PacelineError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.cluster import EARLIEST, LATEST, Cluster
from paceline.pipeline.errors import DataLossError
from paceline.pipeline.jobs.certificates import driver_tls
from paceline.pipeline.jobs.ingest.batches import LogEnds, PlannedRange, plan_batch
from paceline.pipeline.jobs.ingest.config import IngestConfig, check_config, make_parser
from paceline.pipeline.jobs.ingest.read_options import read_options
from paceline.pipeline.jobs.ingest.rows import DEAD_LETTER_FIELDS, DEAD_LETTER_PARTITION, TABLE_PARTITION, table_fields
from paceline.pipeline.jobs.ingest.task import REPORT_SCHEMA, IngestTasks, TaskReport
from paceline.pipeline.jobs.lake.delta_table import DeltaLakeTable
from paceline.pipeline.jobs.lake.orphans import collect_orphans
from paceline.pipeline.jobs.lake.parquet_table import ParquetTable
from paceline.pipeline.jobs.lake.table import CommitConflictError, Snapshot, Source, Table, WrittenFile, local_root
from paceline.pipeline.jobs.run import ExitCode, JobFailedError, JobListener, JobResult, SilentListener
from paceline.pipeline.source.offset_ranges import OffsetRange, pack
from paceline.rpc.retry import RetryPolicy, call_with_retry

FIRST_RECORD_BYTES: Final = 1024.0
"""Assumed stored size of a record before the first batch."""
ORPHAN_INTERVAL_S: Final = 3600.0
PAUSE: Final = RetryPolicy(initial_backoff_ms=500, max_backoff_ms=30_000, deadline_ms=None, max_attempts=1 << 62)


def run(
    spark: Any,
    config: IngestConfig,
    listener: JobListener | None = None,
    stop: threading.Event | None = None,
) -> JobResult:
    """Copy the topics up to their present end, or until ``stop`` is set when the config says ``continuous``.

    Raises:
        InvalidConfigError: the settings are invalid, or the tables have other columns.
        JobFailedError: a batch failed in every attempt; the message has the last cause.
        DataLossError: records were deleted before they were copied.
        CommitConflictError: another driver writes to the table; the message names it.
    """
    check_config(config)
    config = replace(config, tls=driver_tls(config.tls))
    return _Ingest(spark, config, listener or SilentListener(), stop or threading.Event()).run()


@dataclass(slots=True)
class _Totals:
    batches: int = 0
    rows: int = 0
    dead_letters: int = 0
    files: int = 0
    stored_bytes: int = 0
    orphans: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class _Ingest:
    def __init__(self, spark: Any, config: IngestConfig, listener: JobListener, stop: threading.Event) -> None:
        self._spark, self._config, self._listener, self._stop = spark, config, listener, stop
        self._cluster = Cluster(read_options(config))
        parser = make_parser(config)
        self._table = _open_table(config, config.table, table_fields(parser, config.include_headers), TABLE_PARTITION)
        self._dead = _open_table(config, config.dead_letter_table, DEAD_LETTER_FIELDS, DEAD_LETTER_PARTITION)
        self._bytes_per_record = FIRST_RECORD_BYTES
        self._totals = _Totals()
        self._next_collection_s = 0.0

    def run(self) -> JobResult:
        started = time.monotonic()
        goal: dict[Source, LogEnds] | None = None
        while not self._stop.is_set():
            batch_started = time.monotonic()
            logs = self._repeated(self._log_ends) if goal is None or self._config.continuous else goal
            goal = goal or logs
            advanced = self._repeated(partial(self._copy_batch, logs))
            if time.monotonic() >= self._next_collection_s:
                self._collect_orphans()
            if self._config.continuous:
                self._stop.wait(max(0.0, self._config.interval_s - (time.monotonic() - batch_started)))
            elif not advanced:
                break
        totals = self._totals
        seconds = time.monotonic() - started
        summary = {
            "table": str(self._table.root),
            "batches": totals.batches,
            "rows": totals.rows,
            "dead_letters": totals.dead_letters,
            "reasons": dict(totals.reasons.most_common()),
            "files": totals.files,
            "stored_bytes": totals.stored_bytes,
            "orphans_removed": totals.orphans,
            "seconds": round(seconds, 3),
        }
        return JobResult(ExitCode.OK, summary)

    def _repeated(self, action: Any) -> Any:
        """Repeat a call until it succeeds.

        A continuous run retries forever, another run up to its number of attempts.
        """
        config = self._config
        policy = PAUSE if config.continuous else RetryPolicy(500, 5_000, deadline_ms=None, max_attempts=config.attempts)

        def attempt(_: float | None) -> Any:
            return None if self._stop.is_set() else action()

        def tell(error: BaseException, pause_s: float) -> None:
            self._listener.step("paused", {"seconds": pause_s, "because": _first_line(error)})

        try:
            return call_with_retry(
                policy, attempt, should_retry=_may_pass, is_over=self._stop.is_set, on_retry=tell, wake=self._stop
            )
        except (PacelineError, OSError):
            raise
        except Exception as error:
            raise JobFailedError(_first_line(error)) from error

    def _log_ends(self) -> dict[Source, LogEnds]:
        topics = self._cluster.describe_topics(self._config.topics)
        missing = sorted(set(self._config.topics) - set(topics))
        if missing:
            raise UnknownTopicOrPartitionError(f"topic {', '.join(missing)} does not exist")
        sources = [Source(name, topic.topic_id, p) for name, topic in sorted(topics.items()) for p in topic.leaders]
        partitions = [TopicPartition(source.topic, source.partition) for source in sources]
        starts = self._cluster.list_offsets(partitions, EARLIEST)
        ends = self._cluster.list_offsets(partitions, LATEST)
        return {source: LogEnds(starts[tp] or 0, ends[tp] or 0) for source, tp in zip(sources, partitions, strict=True)}

    def _copy_batch(self, logs: Mapping[Source, LogEnds]) -> bool:
        """Copy one batch; return whether there was anything to copy."""
        config, totals = self._config, self._totals
        seen, dead_seen = self._table.load(logs), self._dead.load(logs)
        max_records = max(1, int(config.max_batch_bytes / self._bytes_per_record))
        planned = plan_batch(logs, seen.progress, max_records, config.start_at_latest, config.allow_data_loss)
        if not planned:
            return False
        records = sum(each.end - each.start for each in planned)
        left = sum(max(0, log.end - seen.progress.get(source, log.start)) for source, log in logs.items())
        self._listener.step("planned", {"records": records, "left": left})
        started = time.monotonic()
        reports = self._run_tasks(planned, dead_seen.progress)
        rows = sum(report.rows for report in reports)
        self._listener.step("written", {"rows": rows, "seconds": time.monotonic() - started})
        self._commit(planned, reports, seen, dead_seen)
        totals.batches += 1
        totals.rows += rows
        for report in reports:
            totals.dead_letters += report.dead_letters
            totals.files += len(report.files) + len(report.dead_letter_files)
            totals.stored_bytes += report.stored_bytes
            totals.reasons.update(report.reasons)
        stored = sum(report.stored_bytes for report in reports)
        if stored and records:
            self._bytes_per_record = max(1.0, stored / records)
        facts = {"rows": rows, "total_rows": totals.rows, "dead_letters": totals.dead_letters, "records": records}
        self._listener.step("committed", {**facts, "left": left - records, "seconds": time.monotonic() - started})
        return True

    def _commit(
        self, planned: Sequence[PlannedRange], reports: Sequence[TaskReport], seen: Snapshot, dead_seen: Snapshot
    ) -> None:
        progress = {each.source: each.end for each in planned}
        # A log that was shortened may get other records at offsets whose dead letters are already committed.
        shortened = {each.source for each in planned if each.start < seen.progress.get(each.source, 0)}
        dead_files: list[WrittenFile] = [file for report in reports for file in report.dead_letter_files]
        if dead_files or shortened & dead_seen.progress.keys():
            ahead = {
                source: end if source in shortened else max(end, dead_seen.progress.get(source, 0))
                for source, end in progress.items()
            }
            self._dead.commit(dead_seen, dead_files, ahead)
            self._listener.step("dead-letters-committed", {"files": len(dead_files)})
        self._table.commit(seen, [file for report in reports for file in report.files], progress)

    def _run_tasks(self, planned: Sequence[PlannedRange], dead_progress: Mapping[Source, int]) -> list[TaskReport]:
        ranges = [
            OffsetRange(
                each.source.topic,
                each.source.partition,
                each.start,
                each.end,
                each.source.topic_id,
                self._cluster.leader_address(TopicPartition(each.source.topic, each.source.partition)) or "",
                self._bytes_per_record,
            )
            for each in planned
        ]
        packed = pack(ranges, self._config.max_tasks or _cores(self._spark), self._config.fetch_max_bytes)
        if not packed:
            return []
        # The progress may have a deleted topic with the same name; its `Source` differs, because the topic id does.
        dead_from = {
            TopicPartition(each.source.topic, each.source.partition): dead_progress.get(each.source, 0)
            for each in planned
        }
        tasks = IngestTasks(self._config, packed, dead_from, self._cluster.fallback_servers())
        # One number per Spark partition, so that each Spark task runs one ingest task.
        numbers = self._spark.range(0, len(packed), 1, len(packed))
        reports = numbers.mapInArrow(tasks.__call__, REPORT_SCHEMA).collect()
        return [TaskReport.from_json(row.report) for row in reports]

    def _collect_orphans(self) -> None:
        age_s = self._config.orphan_age_s
        removed = collect_orphans(self._table, age_s) + collect_orphans(self._dead, age_s)
        self._totals.orphans += len(removed)
        self._next_collection_s = time.monotonic() + ORPHAN_INTERVAL_S
        if removed:
            self._listener.step("orphans-removed", {"files": len(removed)})


def _open_table(config: IngestConfig, path: str, fields: pa.Schema, partition_columns: Sequence[str]) -> Table:
    root = local_root(path)
    types = {"topic": pa.string(), "date": pa.date32()}
    schema = pa.schema([*fields, *(pa.field(name, types[name]) for name in partition_columns)])
    if config.table_format == "delta":
        return DeltaLakeTable(root, schema, partition_columns)
    return ParquetTable(root, schema, partition_columns)


def _cores(spark: Any) -> int:
    """Return the number of tasks that Spark runs at once.

    Spark Connect does not report this number, so return the number of shuffle partitions.
    """
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except Exception:
        return max(1, int(spark.conf.get("spark.sql.shuffle.partitions", "8")))


def _may_pass(error: BaseException) -> bool:
    """Return whether another attempt of a batch may succeed; not after data loss, a wrong setting or a bug.

    Not after a conflict either: two drivers of one table would take turns, and count the rows of each other.
    """
    if isinstance(error, DataLossError | InvalidConfigError | CommitConflictError | KeyboardInterrupt):
        return False
    text = str(error)
    if "DataLossError" in text:
        return False
    return isinstance(error, Exception) and not isinstance(error, AssertionError | TypeError)


def _first_line(error: BaseException) -> str:
    """Return the line of an error with its message: for a Python error in a task, the last line of its traceback."""
    if isinstance(error, PacelineError):
        return f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line and not line.startswith(("File", "at "))]
    return f"{type(error).__name__}: {(named or lines or [''])[-1 if named else 0]}"
