"""Reads the topic back with Spark, checks that nothing is lost, doubled or out of order, and tabulates delays.

Spark runs in a process of its own, started while the stream goes on: its chatter goes to a file, and the demo shows
only what was found. `SparkReader` is the near end; ``python -m examples.flights.verify`` the far end.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_FLIGHT = (
    "seq long, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour string"
)

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Spark found in the topic."""

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
    """A Spark process that is ready when it is needed."""

    def __init__(self, directory: Path) -> None:
        """Start it; ``directory`` gets its log, its scratch files and the Parquet table."""
        directory = directory.resolve()
        self._verdict = directory / "scratch" / "verdict.json"
        self._log = directory / "spark.log"
        self._verdict.parent.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "examples.flights.verify", str(directory), str(self._verdict)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # What Spark writes by itself goes below its working directory: in its options a path may hold neither
                # spaces nor commas.
                cwd=self._verdict.parent,
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_LOCAL_DIRS": ".",
                    # The example is no installed package, and the child starts in the run's directory.
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")])),
                },
            )

    def read_back(self, bootstrap: str, topic: str, expected: int, timeout_s: float = 180.0) -> Verdict:
        """Have the topic read and return what was found.

        Raises:
            SparkFailedError: no verdict within the time, or Spark failed.
        """
        question = json.dumps({"bootstrap": bootstrap, "topic": topic, "expected": expected})
        try:
            self._process.communicate(question.encode() + b"\n", timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise SparkFailedError(f"Spark came to no verdict within {timeout_s:g} s\n{self._tail()}") from None
        if self._process.returncode != 0:
            raise SparkFailedError(f"Spark ended with exit code {self._process.returncode}\n{self._tail()}")
        answer = json.loads(self._verdict.read_text(encoding="utf-8"))
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

    def _tail(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(f"  {line}" for line in text.splitlines()[-30:])


def spark_session() -> Any:
    """Return a local session that knows the data source and writes only below the working directory."""
    from pyspark.sql import SparkSession

    from paceline.pipeline.session import configure

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("paceline-flights")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", "warehouse")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    session = configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def read_back(session: Any, bootstrap: str, topic: str, expected: int, parquet: Path) -> Verdict:
    """Read the whole topic once, write it as Parquet, and judge what was written.

    Args:
        session: a Spark session from `spark_session`.
        bootstrap: client addresses of the brokers.
        topic: the topic to read.
        expected: how many records with sequence numbers from 0 must be there.
        parquet: folder to write to; replaced when it exists.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    flights = (
        session.read.format("paceline")
        .option("paceline.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .load()
        .select(
            f.col("key").cast("string").alias("key"),
            "partition",
            "offset",
            "timestamp",
            f.from_json(f.col("value").cast("string"), _FLIGHT).alias("flight"),
        )
        .select("key", "partition", "offset", "timestamp", "flight.*")
    )
    flights.write.mode("overwrite").parquet(str(parquet))
    # Reading, unlike writing, takes a pattern.
    written = session.read.parquet(re.sub(r"([\[\]{}*?\\])", r"\\\1", str(parquet)))
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
    """Start a session, wait for one question on stdin, and write the verdict."""
    directory, verdict_path = Path(argv[0]), Path(argv[1])
    session = spark_session()
    line = sys.stdin.readline()
    if not line:
        return
    question = json.loads(line)
    verdict = read_back(
        session, question["bootstrap"], question["topic"], question["expected"], directory / "flights.parquet"
    )
    session.stop()
    verdict_path.write_text(json.dumps(asdict(verdict)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
