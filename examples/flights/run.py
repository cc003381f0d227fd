"""Start a cluster, stream real flights through it from a producer to Spark, and pause and kill a broker meanwhile."""

import argparse
import math
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.stamp import stamp
from examples.flights.flights import FLIGHT_COUNT, FlightsNotFoundError, data_file, read_flights
from examples.flights.moments import Moment, read_moments
from examples.flights.reading import Reading
from examples.flights.recorder import RECORDING, RunRecorder
from examples.flights.report import StreamTotals, conclusion, facts_as_json, print_report, succeeded, write_report
from examples.flights.story import Story, StoryFailedError
from examples.flights.stream import Stream
from examples.flights.verify import SCRATCH, TABLE, SparkFailedError, SparkReader, Verdict
from paceline import __version__
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster, LocalClusterError, remove
from paceline_client import Admin, Producer

TOPIC, PARTITIONS, REPLICATION_FACTOR, MIN_INSYNC_REPLICAS = "flights", 6, 3, 2
LAG_TIME_MAX_MS, SESSION_TIMEOUT_MS = 2_000, 6_000
_KILL_BY = 0.85
"""Share of the records after which a leader is killed even if Spark has read nothing; the rest follow the kill."""
_CLUSTER = "cluster"
_SPARK_LOG = "spark.log"
"""First file that a run writes; a non-empty directory without it does not belong to a run and is not deleted."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    directory: Path
    seed: int
    duration_s: float
    keep: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 when every record was acknowledged, read back once, and in order."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("build/run"), help="everything is written below it")
    parser.add_argument("--seed", type=int, help="choice of victims and moments (default: by chance, and reported)")
    parser.add_argument(
        "--duration-s", type=_pace, default=40.0, help="pace of the stream in seconds, if Spark is not late"
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster up and say how to talk to it")
    parser.add_argument("--clean", action="store_true", help="stop a kept cluster, remove the directory, and exit")
    arguments = parser.parse_args(argv)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    if arguments.clean:
        try:
            clear(arguments.directory)
        except NotARunError as error:
            console.print(f"[red]{escape(str(error))}[/]")
            return 1
        return 0
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        options = Options(arguments.directory.resolve(), seed, arguments.duration_s, arguments.keep)
        return _Demo(options, console).run()
    except KeyboardInterrupt:
        console.print("[yellow]interrupted; everything has been stopped[/]")
        return 130
    except (
        LocalClusterError,
        StoryFailedError,
        FlightsNotFoundError,
        SparkFailedError,
        NotARunError,
        OSError,
    ) as error:
        console.print(f"[red]{type(error).__name__}[/]: {escape(str(error))}")
        return 1


def _pace(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


class NotARunError(Exception):
    """The directory to be deleted was not written by a run."""


def clear(directory: Path) -> None:
    """Stop the cluster that an earlier run left running, and delete the directory.

    Raises:
        NotARunError: the directory has files, but not the first file of a run; nothing is deleted.
    """
    if not directory.exists():
        return
    if not directory.is_dir() or (any(directory.iterdir()) and not (directory / _SPARK_LOG).exists()):
        raise NotARunError(f"{directory} has files that are not of an earlier run; choose another directory")
    remove(directory / _CLUSTER)
    shutil.rmtree(directory, ignore_errors=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Demo:
    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console
        self._began = time.monotonic()
        self._rng = random.Random(options.seed)
        self._stream_began = 0.0

    def run(self) -> int:
        directory, console = self._options.directory, self._console
        clear(directory)
        directory.mkdir(parents=True)
        source = data_file()
        below = escape(str(directory))
        console.print(f"[bold]Paceline[/]: {FLIGHT_COUNT:,} flights, seed {self._options.seed}, all below {below}")
        cluster = LocalCluster(
            directory / _CLUSTER,
            CONFIG_FILE,
            settings={
                "replica.lag.time.max.ms": str(LAG_TIME_MAX_MS),
                "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            },
            detached=self._options.keep,
        )
        spark = SparkReader(directory)
        kept = False
        try:
            cluster.start(say=lambda text: console.print(f"  {text}", markup=False))
            if self._options.keep:
                console.print(f"  gateway: {cluster.start_gateway().client_address}", markup=False)
                console.print(f"  watch it in a browser: {cluster.start_console()}", markup=False)
            with Admin(cluster.bootstrap) as admin:
                admin.create_topics(
                    {TOPIC: (PARTITIONS, REPLICATION_FACTOR, {"min.insync.replicas": str(MIN_INSYNC_REPLICAS)})}
                )
            spark.start(cluster.bootstrap, TOPIC)
            console.print("  waiting for Spark's stream to start")
            spark.await_stream()
            totals, story, moments = self._stream(cluster, source, spark)
            console.print("waiting until Spark's stream has read every record and its table is checked")
            verdict = spark.finish(FLIGHT_COUNT)
            code = self._conclude(totals, story, moments, Reading.since(self._stream_began, spark.batches()), verdict)
            kept = self._options.keep
            return code
        finally:
            if kept:
                self._say_how_to_talk(cluster)
            else:
                console.print("stopping the cluster")
                cluster.stop()
            spark.stop()
            shutil.rmtree(directory / SCRATCH, ignore_errors=True)

    def _stream(
        self, cluster: LocalCluster, source: Path, spark: SparkReader
    ) -> tuple[StreamTotals, Story, list[Moment]]:
        progress = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=36),
            TextColumn("{task.completed:>9,.0f} / {task.total:,.0f} {task.fields[unit]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        bar = progress.add_task("streaming", total=FLIGHT_COUNT, unit="acked")
        read_bar = progress.add_task("Spark's stream", total=FLIGHT_COUNT, unit="read")

        def say(text: str) -> None:
            progress.update(bar, description=escape(text))
            progress.console.print(f"  {progress.tasks[bar].elapsed or 0:5.1f} s  {text}", markup=False)
            recorder.fault(text)

        def show(acked: int) -> None:
            progress.update(bar, completed=acked)
            progress.update(read_bar, completed=sum(batch.rows for batch in spark.batches()))

        ending: list[BaseException] = []

        def tell(started: float) -> None:
            try:
                story.tell(started)
            except BaseException as error:
                ending.append(error)

        teller: list[threading.Thread] = []

        def on_start(started: float) -> None:
            self._stream_began = started
            teller.append(threading.Thread(target=tell, args=(started,), name="story", daemon=True))
            teller[0].start()

        with progress, Producer(cluster.bootstrap, linger_ms=20) as producer:
            stream = Stream(producer, TOPIC, FLIGHT_COUNT, self._options.duration_s)
            story = Story(
                cluster,
                TOPIC,
                PARTITIONS,
                self._rng,
                LAG_TIME_MAX_MS,
                say,
                is_reading=lambda: bool(spark.batches()),
                is_ending=lambda: stream.sent > _KILL_BY * FLIGHT_COUNT,
            )
            watcher = _Every(0.2, lambda: show(stream.acked))
            recorder = RunRecorder(
                self._options.directory / RECORDING,
                f"make run, seed {self._options.seed}",
                cluster.bootstrap,
                TOPIC,
                PARTITIONS,
                lambda: stream.acked_ends,
            )
            try:
                with recorder:
                    totals = stream.run(read_flights(source), on_start, is_slow=lambda: story.waits_for_reader)
                    teller[0].join(timeout=240.0)
            except BaseException:
                story.abandon()
                raise
            finally:
                watcher.stop()
            show(stream.acked)
            progress.update(bar, description="streamed")
        if ending:
            raise ending[0]
        story.check_the_end()
        recording, began_t = self._options.directory / RECORDING, recorder.t_of(self._stream_began)
        return totals, story, read_moments(recording, TOPIC, story.facts, began_t)

    def _conclude(
        self, totals: StreamTotals, story: Story, moments: Sequence[Moment], reading: Reading, verdict: Verdict
    ) -> int:
        elapsed_s = time.monotonic() - self._began
        about = {"seed": self._options.seed, "version": __version__, **stamp()}
        report = facts_as_json(about, totals, story.facts, reading, verdict, elapsed_s)
        page, facts_file = write_report(self._options.directory, report, moments, verdict)
        self._console.print()
        print_report(self._console, report, verdict)
        replay = f"watch the kill again: .venv/bin/paceline console --replay {page.parent / RECORDING}"
        written = f"\nreport {page}\nfacts  {facts_file}\ntable  {page.parent / TABLE}\n{replay}"
        self._console.print(written, markup=False)
        if succeeded(report):
            self._console.print(f"[bold green]{conclusion(report)}.[/] {report['elapsed_s']} s.")
            return 0
        self._console.print(f"[bold red]{conclusion(report)}.[/]")
        for failure in totals.failures[:5]:
            self._console.print(f"  {failure}", markup=False)
        return 1

    def _say_how_to_talk(self, cluster: LocalCluster) -> None:
        self._console.print(
            f"\nThe cluster stays up. bootstrap servers: {cluster.bootstrap}\n"
            f"  console, for one more browser: {cluster.console_address}\n"
            f"  .venv/bin/paceline topic describe {TOPIC} -b {cluster.bootstrap.split(',')[0]}\n"
            f"  .venv/bin/paceline consume {TOPIC} --num 5 -b {cluster.bootstrap.split(',')[0]}\n"
            f"  .venv/bin/paceline dev down --directory {cluster.directory}     (or make clean)",
            markup=False,
        )


class _Every:
    """Calls a function periodically until stopped."""

    def __init__(self, seconds: float, call: Callable[[], object]) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(seconds, call), name="progress", daemon=True)
        self._thread.start()

    def _run(self, seconds: float, call: Callable[[], object]) -> None:
        while not self._over.wait(seconds):
            call()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(5.0)
