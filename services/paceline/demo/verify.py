"""Reads the topic back with Spark, checks that nothing is lost, doubled or out of order, and tabulates delays."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FLIGHT = (
    "seq long, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour string"
)


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


def spark_session(scratch: Path) -> Any:
    """Return a local session that knows the data source and writes only below ``scratch``."""
    from pyspark.sql import SparkSession

    from paceline.pipeline.session import configure

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("paceline-demo")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "spark"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={scratch}")
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
    written = session.read.parquet(str(parquet))
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
