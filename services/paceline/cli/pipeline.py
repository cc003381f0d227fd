"""``paceline pipeline NAME``: Spark jobs over topics and over the cluster, on this machine or on a Spark cluster."""

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from paceline.cli.connection import bootstrap_option
from paceline.cli.failures import reported
from paceline.cli.numbers import COUNT, SECONDS
from paceline.cli.output import output_option, show_summary

if TYPE_CHECKING:
    from paceline.pipeline.jobs.run import JobResult


@click.group(context_settings={"show_default": True})
def pipeline() -> None:
    """Run Spark jobs over topics and over the cluster."""


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the Spark master and its settings."""
    for option in (
        click.option("--master", help="Spark master [default: that of spark-submit, else local[*]]"),
        click.option("--remote", help="Spark Connect server, sc://host:port, instead of a master"),
        click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="a Spark setting; repeatable"),
        output_option,
    ):
        command = option(command)
    return command


storage_option = click.option(
    "--storage-options",
    "storage",
    type=click.File(),
    help="Delta in an object store: a JSON file with settings and credentials of delta-rs",
)


def read_storage(file: IO[str] | None) -> dict[str, str]:
    """Return the options in a file: the arguments of a process, unlike a file, are visible to other users."""
    from paceline.model.errors import InvalidConfigError

    try:
        found = json.load(file) if file else {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidConfigError('--storage-options needs a file with JSON such as {"AWS_REGION": "eu-central-1"}')
    return found


def shows_progress(output: str) -> bool:
    """Return whether steps may be printed on stderr: under spark-submit they would mix with the JSON on stdout."""
    return output == "table" or "PYSPARK_GATEWAY_PORT" not in os.environ


@contextmanager
def spark_session(name: str, spark: Mapping[str, Any], output: str) -> Iterator[Any]:
    """Yield the Spark session for the options."""
    from paceline.model.errors import InvalidConfigError
    from paceline.pipeline.jobs.sessions import open_session

    settings = {}
    for text in spark["settings"]:
        key, separator, value = text.partition("=")
        if not separator:
            raise InvalidConfigError(f"--conf needs KEY=VALUE, not {text!r}")
        settings[key] = value
    if shows_progress(output):
        click.echo("starting Spark", err=True)
    with open_session(f"paceline-{name}", spark["master"], spark["remote"], settings) as session:
        yield session


class ConsoleListener:
    """Shows progress on stderr: a progress bar on a terminal, otherwise a line per step."""

    def __init__(self, output: str) -> None:
        """``output`` is the format of the summary."""
        self._shown = shows_progress(output)
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "ConsoleListener":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        """Print a step as a line; on a terminal, a step with ``left`` moves the progress bar instead."""
        if not self._shown:
            return
        if self._bar is None or "left" not in facts:
            said = " ".join(f"{key}={_short(value)}" for key, value in facts.items())
            click.echo(f"{name} {said}".rstrip(), err=True)
            return
        if self._task is None:
            self._task = self._bar.add_task(name, total=facts["left"])
        if name == "planned":
            done = self._bar.tasks[0].completed
            self._bar.update(self._task, total=done + facts["left"], description="copying")
        else:
            self._bar.advance(self._task, facts.get("records", 0))


def _short(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and the first Ctrl-C set; the second Ctrl-C interrupts."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("stopping after this batch; press Ctrl-C again to interrupt", err=True)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def finish(result: "JobResult", output: str) -> None:
    """Print the summary, and exit with the job's exit code."""
    show_summary(result.summary, output)
    sys.exit(int(result.exit_code))


@pipeline.command()
@spark_options
@click.option("--tasks", type=COUNT, default=4, help="number of tasks that run the check")
def doctor(tasks: int, output: str, **spark: Any) -> None:
    """Check that Spark workers have the packages that the jobs need; exits with 3 when they do not."""
    with reported(output):
        from paceline.pipeline.jobs import doctor as job

        with spark_session("doctor", spark, output) as session, ConsoleListener(output) as listener:
            result = job.run(session, {"tasks": tasks}, listener)
        finish(result, output)


@pipeline.command()
@click.argument("topics", nargs=-1, required=True)
@bootstrap_option
@click.option(
    "--to",
    "table",
    required=True,
    type=click.Path(file_okay=False),
    help="directory of the table, or s3://... and the like",
)
@storage_option
@click.option("--format", "table_format", type=click.Choice(["delta", "parquet"]), default="delta", help="its kind")
@click.option(
    "--dead-letters",
    default="",
    show_default=False,
    help="Delta: directory of the dead letters [default: TABLE_dead_letters]",
)
@click.option("--partition-by", default="topic,date", help="Parquet: columns that become folders")
@click.option(
    "--checkpoint", default="", show_default=False, help="Parquet: Spark's checkpoint [default: TABLE/_checkpoint]"
)
@click.option("--from-latest", "start_at_latest", is_flag=True, help="start new partitions at their end")
@click.option("--allow-data-loss", is_flag=True, help="skip records that were deleted before they were copied")
@click.option("--once/--continuous", "once", default=True, help="copy the present records, or run until stopped")
@click.option("--interval", "interval_s", type=SECONDS, default=10.0, help="seconds between continuous batches")
@click.option("--batch-bytes", "max_batch_bytes", type=int, default=1 << 30, help="approximate bytes per commit")
@click.option("--file-bytes", "target_file_bytes", type=int, default=256 << 20, help="Delta: size of a file")
@click.option(
    "--compression", type=click.Choice(["zstd", "snappy", "lz4", "none"]), default="zstd", help="codec of the files"
)
@click.option("--tasks", "max_tasks", type=int, default=0, help="tasks per batch; 0: the number of cores")
@spark_options
def ingest(
    bootstrap: str,
    topics: tuple[str, ...],
    partition_by: str,
    once: bool,
    storage: IO[str] | None,
    output: str,
    **options: Any,
) -> None:
    """Copy TOPICS into a Delta table or into Parquet files, every record exactly once.

    Run it again to continue: a Delta table stores its offsets, Parquet has a checkpoint. Records that cannot be decoded
    go to the dead-letter table of a Delta table.
    """
    with reported(output):
        from paceline.pipeline.jobs.ingest import job
        from paceline.pipeline.jobs.ingest.config import IngestConfig, check_config

        spark = {name: options.pop(name) for name in ("master", "remote", "settings")}
        config = IngestConfig(
            bootstrap_servers=tuple(bootstrap.split(",")),
            topics=topics,
            partition_by=tuple(name.strip() for name in partition_by.split(",") if name.strip()),
            continuous=not once,
            storage_options=read_storage(storage),
            **options,
        )
        check_config(config)
        with spark_session("ingest", spark, output) as session, ConsoleListener(output) as listener, stopping() as stop:
            result = job.run(session, config, listener, stop)
        finish(result, output)


@pipeline.command()
@click.argument("tables", nargs=-1, required=True, type=click.Path(file_okay=False, path_type=Path))
@output_option
def migrate(tables: tuple[Path, ...], output: str) -> None:
    """Make a Delta table of the Parquet table of an earlier version in each directory.

    Copies no file. Stop the ingest of the earlier version first.
    """
    with reported(output):
        from paceline.pipeline.jobs.ingest.maintenance import migrate as job
        from paceline.pipeline.jobs.run import ExitCode, JobResult

        counts: Counter[str] = Counter()
        for table in tables:
            counts.update(job(table.absolute()))
        finish(JobResult(ExitCode.OK, {"tables": len(tables), **counts}), output)


@pipeline.command()
@click.argument("table", type=click.Path(file_okay=False))
@storage_option
@click.option("--keep-hours", type=float, default=168.0, help="keep files of versions and batches younger than this")
@output_option
def compact(table: str, storage: IO[str] | None, keep_hours: float, output: str) -> None:
    """Merge small files of a Delta table and delete files that are in no version.

    An ingest may run meanwhile and continues: the progress is kept.
    """
    with reported(output):
        from paceline.pipeline.jobs.ingest.config import table_path
        from paceline.pipeline.jobs.ingest.maintenance import compact as job

        finish(job(table_path(table), keep_hours, read_storage(storage)), output)


@pipeline.command()
@click.option("--topic", default="__cluster_events", help="topic of the events")
@click.option("--since-ms", type=int, help="skip events before this time, milliseconds since 1970")
@bootstrap_option
@spark_options
def analyse(bootstrap: str, topic: str, since_ms: int | None, output: str, **spark: Any) -> None:
    """Compute ISR churn, under-replicated time, leader imbalance and failover spans from the cluster's events."""
    with reported(output):
        from paceline.pipeline.jobs.analyse import job

        config = job.AnalyseConfig(tuple(bootstrap.split(",")), topic, since_ms)
        with spark_session("analyse", spark, output) as session, ConsoleListener(output) as listener:
            result = job.run(session, config, listener)
        finish(result, output)
