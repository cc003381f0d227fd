"""``paceline pipeline NAME``: Spark jobs over topics and over the cluster, on this machine or on a Spark cluster."""

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.connection import bootstrap_option
from paceline.cli.failures import reported
from paceline.cli.output import output_option

if TYPE_CHECKING:
    from paceline.pipeline.jobs.run import JobResult


@click.group(context_settings={"show_default": True})
def pipeline() -> None:
    """Run Spark jobs over topics and over the cluster."""


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where Spark runs."""
    for option in (
        click.option("--master", help="Spark master [default: that of spark-submit, else local[*]]"),
        click.option("--remote", help="Spark Connect server, sc://host:port, instead of a master"),
        click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="a Spark setting; repeatable"),
        output_option,
    ):
        command = option(command)
    return command


@contextmanager
def spark_session(name: str, spark: Mapping[str, Any]) -> Iterator[Any]:
    """Give the session that the options ask for."""
    from paceline.model.errors import InvalidConfigError
    from paceline.pipeline.jobs.sessions import open_session

    settings = {}
    for text in spark["settings"]:
        key, separator, value = text.partition("=")
        if not separator:
            raise InvalidConfigError(f"--conf needs KEY=VALUE, not {text!r}")
        settings[key] = value
    click.echo("starting Spark", err=True)
    with open_session(f"paceline-{name}", spark["master"], spark["remote"], settings) as session:
        yield session


class ConsoleListener:
    """Shows steps on stderr: a progress bar on a terminal, a line per step elsewhere."""

    def __init__(self) -> None:
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
        """Show a step; ``done`` and ``left`` records, or the like, move the bar."""
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
    """Give an event that SIGTERM and the first Ctrl-C set; the second Ctrl-C interrupts."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("stopping after this batch; once more to interrupt", err=True)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def finish(result: "JobResult", output: str, err: bool = False) -> None:
    """Print the summary, on stderr when stdout has the result itself, and end with the job's exit code."""
    if output == "table":
        for name, value in result.summary.items():
            if name == "details":
                continue  # for programs
            shown = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
            shown = ", ".join(map(str, value)) if isinstance(value, list) else shown
            click.echo(f"{name.replace('_', ' ')}: {shown if shown != '' else '-'}", err=err)
    else:
        click.echo(json.dumps(dict(result.summary), indent=2 if output == "json" else None), err=err)
    sys.exit(int(result.exit_code))


@pipeline.command()
@spark_options
@click.option("--tasks", default=4, help="how many tasks look")
def doctor(tasks: int, output: str, **spark: Any) -> None:
    """Check inside tasks that the workers have what the jobs need; exit code 3 if not."""
    with reported(output):
        from paceline.pipeline.jobs import doctor as job

        with spark_session("doctor", spark) as session, ConsoleListener() as listener:
            result = job.run(session, {"tasks": tasks}, listener)
        finish(result, output)


@pipeline.command()
@click.argument("topics", nargs=-1, required=True)
@bootstrap_option
@click.option("--to", "table", required=True, help="directory of the table")
@click.option("--format", "table_format", type=click.Choice(["parquet", "delta"]), default="parquet", help="its kind")
@click.option(
    "--values",
    "value_format",
    type=click.Choice(["raw", "text", "json", "protobuf"]),
    default="raw",
    help="value format",
)
@click.option("--columns", default="", help='of JSON values: "id:long, name:string?"; ? marks optional fields')
@click.option(
    "--descriptors", type=click.Path(exists=True, dir_okay=False), help="of protobuf values: a descriptor set"
)
@click.option("--message", default="", help="of protobuf: full name of the message")
@click.option("--allow-unknown-fields", is_flag=True, help="keep protobuf messages with fields the schema lacks")
@click.option("--dead-letters", default="", help="directory of the dead-letter table [default: TABLE_dead_letters]")
@click.option("--from-latest", "start_at_latest", is_flag=True, help="begin new partitions at their end")
@click.option("--allow-data-loss", is_flag=True, help="go past records that were deleted before they were copied")
@click.option("--once/--continuous", "once", default=True, help="copy what there is, or until stopped")
@click.option("--interval", "interval_s", type=float, default=10.0, help="seconds between batches when continuous")
@click.option("--batch-bytes", "max_batch_bytes", type=int, default=1 << 30, help="stored bytes of one commit, about")
@click.option("--file-bytes", "target_file_bytes", type=int, default=256 << 20, help="size at which files roll")
@click.option(
    "--compression", type=click.Choice(["zstd", "snappy", "lz4", "none"]), default="zstd", help="of the files"
)
@click.option("--tasks", "max_tasks", type=int, default=0, help="tasks of one batch; 0: as many as cores")
@spark_options
def ingest(
    bootstrap: str, topics: tuple[str, ...], descriptors: str | None, once: bool, output: str, **options: Any
) -> None:
    """Copy TOPICS into a Parquet or Delta table, every record exactly once.

    Run it again to continue: the table knows how far it is. Values that do not parse go to the dead-letter table.
    """
    with reported(output):
        from paceline.pipeline.jobs.ingest import job
        from paceline.pipeline.jobs.ingest.config import IngestConfig, check_config

        spark = {name: options.pop(name) for name in ("master", "remote", "settings")}
        config = IngestConfig(
            bootstrap_servers=tuple(bootstrap.split(",")),
            topics=topics,
            descriptor_set=Path(descriptors).read_bytes() if descriptors else b"",
            continuous=not once,
            **options,
        )
        check_config(config)
        with spark_session("ingest", spark) as session, ConsoleListener() as listener, stopping() as stop:
            result = job.run(session, config, listener, stop)
        finish(result, output)


@pipeline.command()
@click.option("--topic", "topics", multiple=True, help="topic to place; may be repeated [default: all]")
@click.option("--empty", "empty_brokers", multiple=True, type=int, help="broker that shall hold nothing; repeatable")
@click.option("--sample-seconds", type=float, default=10.0, help="time over which bytes in and out are measured")
@click.option("--threshold", type=float, default=0.10, help="how far a broker may be from its share")
@click.option("--seed", type=int, default=0, help="the same seed and load give the same plan")
@click.option("--seeds", type=int, default=1, help="try so many seeds in Spark; the fewest copied bytes win")
@click.option("--file", "plan_file", type=click.Path(dir_okay=False, path_type=Path), help="where to [default: stdout]")
@bootstrap_option
@spark_options
def plan(bootstrap: str, plan_file: Path | None, output: str, **options: Any) -> None:
    """Plan a reassignment from measured load: racks, replicas, disk, bytes in and out, leaders.

    Nothing is changed: give the file to `paceline reassign start`. Exits with 3 when racks or an emptied broker cannot
    be had.
    """
    with reported(output):
        from contextlib import nullcontext

        from paceline.cli.reassign_plan import encode_plan
        from paceline.pipeline.jobs.plan import job

        spark = {name: options.pop(name) for name in ("master", "remote", "settings")}
        config = job.PlanConfig(tuple(bootstrap.split(",")), **options)
        session_or_none = spark_session("plan", spark) if config.seeds > 1 else nullcontext()
        with session_or_none as session, ConsoleListener() as listener:
            result = job.run(session, config, listener)
        if not result.exit_code:
            if plan_file is None:
                click.echo(encode_plan(result.moves), nl=False)
            else:
                plan_file.write_text(encode_plan(result.moves), encoding="utf-8")
        finish(result, output, err=plan_file is None)


@pipeline.command()
@click.option("--topic", default="__cluster_events", help="topic of the events")
@click.option("--since-ms", type=int, help="only events since this time, milliseconds since 1970")
@bootstrap_option
@spark_options
def analyse(bootstrap: str, topic: str, since_ms: int | None, output: str, **spark: Any) -> None:
    """Compute ISR churn, under-replicated time, leader imbalance and failover spans from the cluster's events."""
    with reported(output):
        from paceline.pipeline.jobs.analyse import job

        config = job.AnalyseConfig(tuple(bootstrap.split(",")), topic, since_ms)
        with spark_session("analyse", spark) as session, ConsoleListener() as listener:
            result = job.run(session, config, listener)
        finish(result, output)


@pipeline.command()
@click.option("--topic", "topics", multiple=True, help="topic to verify; may be repeated [default: all]")
@click.option("--tasks", "max_tasks", type=int, default=8, help="tasks that share the partitions")
@bootstrap_option
@spark_options
def verify(bootstrap: str, topics: tuple[str, ...], max_tasks: int, output: str, **spark: Any) -> None:
    """Compare what all replicas have stored; exit code 3 when they differ.

    Brokers send digests and no records. Compacted topics are left out.
    """
    with reported(output):
        from paceline.pipeline.jobs.verify import job

        config = job.VerifyConfig(tuple(bootstrap.split(",")), topics, max_tasks)
        with spark_session("verify", spark) as session, ConsoleListener() as listener:
            result = job.run(session, config, listener)
        finish(result, output)


@pipeline.command()
@click.option("--to", "page", default="build/report.html", help="file of the page")
@click.option("--verify", "with_verify", is_flag=True, help="compare replicas as well; reads every log once")
@bootstrap_option
@spark_options
def report(bootstrap: str, page: str, with_verify: bool, output: str, **spark: Any) -> None:
    """Write one HTML page about the cluster, with plots, readable without a network."""
    with reported(output):
        from paceline.pipeline.jobs.report import job

        config = job.ReportConfig(tuple(bootstrap.split(",")), page, with_verify)
        with spark_session("report", spark) as session, ConsoleListener() as listener:
            result = job.run(session, config, listener)
        finish(result, output)
