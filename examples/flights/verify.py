"""Runs Spark in a process of its own: a stream that reads the topic while it is written, then a verdict.

Spark's log goes to a file. `SparkReader` is the near end, `examples.flights.spark_job` the far end; this module imports
no Spark.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.flights.reading import Batch, parse_batches

TABLE = "flights.parquet"
SCRATCH = "scratch"
PROGRESS_FILE = "progress.jsonl"
VERDICT_FILE = "verdict.json"
"""The last two are in the scratch folder."""

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Spark's stream has read from the topic."""

    records_read: int
    distinct: int
    lost: int
    duplicated: int
    out_of_order: int
    """Records whose sequence number is below that of an earlier record of the same key."""
    keys_on_two_partitions: int
    delays: dict[str, dict[int, float]]
    """Mean departure delay in minutes by carrier and month."""

    @property
    def clean(self) -> bool:
        """Whether every record is there once and in order."""
        return not (self.lost or self.duplicated or self.out_of_order or self.keys_on_two_partitions)


class SparkFailedError(Exception):
    """Spark did not come to a verdict; the message ends with the tail of its log."""


class SparkReader:
    """A Spark process that is ready when the topic is."""

    def __init__(self, directory: Path) -> None:
        """Start it; ``directory`` gets its log, its scratch files and the table."""
        directory = directory.resolve()
        self._scratch = directory / SCRATCH
        self._log = directory / "spark.log"
        self._scratch.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.flights.spark_job", str(directory)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # What Spark writes by itself goes below its working directory: in its options a path may hold neither
                # spaces nor commas.
                cwd=self._scratch,
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_LOCAL_DIRS": ".",
                    # The example is no installed package, and the child starts in the run's directory.
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")])),
                },
            )

    def start(self, bootstrap: str, topic: str) -> None:
        """Begin to stream the topic, from its beginning, as soon as Spark is up.

        Raises:
            SparkFailedError: the process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(_line({"bootstrap": bootstrap, "topic": topic}))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def await_stream(self, timeout_s: float = 150.0) -> None:
        """Wait until the stream runs.

        Raises:
            SparkFailedError: the process has ended, or the time is over.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._scratch / PROGRESS_FILE).exists():
            if self._process.poll() is not None:
                raise self._failure()
            if time.monotonic() >= deadline:
                raise SparkFailedError(f"Spark's stream did not start within {timeout_s:g} s\n{self._tail()}")
            time.sleep(0.05)

    def batches(self) -> list[Batch]:
        """Return the micro-batches that have ended."""
        try:
            with (self._scratch / PROGRESS_FILE).open(encoding="utf-8") as lines:
                return parse_batches(lines)
        except FileNotFoundError:
            return []

    def finish(self, expected: int, timeout_s: float = 180.0) -> Verdict:
        """Wait until the stream has read all that the topic holds, end it, and return what it has read.

        Raises:
            SparkFailedError: no verdict within the time, or Spark failed.
        """
        try:
            self._process.communicate(_line({"expected": expected}), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise SparkFailedError(f"Spark came to no verdict within {timeout_s:g} s\n{self._tail()}") from None
        if self._process.returncode != 0:
            raise self._failure()
        answer = json.loads((self._scratch / VERDICT_FILE).read_text(encoding="utf-8"))
        delays = answer.pop("delays")
        return Verdict(
            delays={carrier: {int(month): mean for month, mean in row.items()} for carrier, row in delays.items()},
            **answer,
        )

    def stop(self) -> None:
        """End the process and its JVM, whatever they are doing."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(timeout=30)

    def _failure(self) -> SparkFailedError:
        return SparkFailedError(f"Spark ended with exit code {self._process.wait(timeout=30)}\n{self._tail()}")

    def _tail(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(f"  {line}" for line in text.splitlines()[-30:])


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"
