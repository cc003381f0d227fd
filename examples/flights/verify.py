"""Run Spark in a separate process: a stream that reads the topic while it is written, then a check of the table.

Spark's log goes to a file. `SparkReader` controls the process, which runs `examples.flights.spark_job`; this module
does not import Spark.
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
"""Progress and verdict files are in the scratch folder."""

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of Spark's check of the records that its stream has read."""

    records_read: int
    distinct: int
    lost: int
    duplicated: int
    out_of_order: int
    """Records whose sequence number is below that of an earlier record of the same key."""
    keys_on_two_partitions: int
    delays: dict[str, dict[int, float]]
    """Mean departure delay in minutes by carrier and month."""


class SparkFailedError(Exception):
    """Spark failed or did not finish in time; the message ends with the tail of its log."""


class SparkReader:
    """A Spark process, started before the topic exists, because its start takes seconds."""

    def __init__(self, directory: Path) -> None:
        """Start the process, which writes its log, its scratch files and the table to ``directory``."""
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
                # Spark writes its own files below the working directory, because its options accept no path with
                # spaces or commas.
                cwd=self._scratch,
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_LOCAL_DIRS": ".",
                    # The examples are not installed as a package, and the child does not start in the repository.
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")])),
                },
            )

    def start(self, bootstrap: str, topic: str) -> None:
        """Stream the topic from its beginning as soon as Spark has started.

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
            SparkFailedError: the process has ended, or the stream did not start in time.
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
        """Wait until the stream has read all records of the topic, end it, and return the verdict.

        Raises:
            SparkFailedError: Spark failed or did not finish in time.
        """
        try:
            self._process.communicate(_line({"expected": expected}), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise SparkFailedError(f"Spark did not finish its check within {timeout_s:g} s\n{self._tail()}") from None
        if self._process.returncode != 0:
            raise self._failure()
        answer = json.loads((self._scratch / VERDICT_FILE).read_text(encoding="utf-8"))
        delays = answer.pop("delays")
        return Verdict(
            delays={carrier: {int(month): mean for month, mean in row.items()} for carrier, row in delays.items()},
            **answer,
        )

    def stop(self) -> None:
        """Kill the process and its JVM."""
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
