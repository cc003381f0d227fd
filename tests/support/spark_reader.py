"""Reads topics with one data source and prints the rows as JSON lines; runs under PySpark 4.2 and 4.3.

    python spark_reader.py kafka|paceline BOOTSTRAP JARS < cases.json

A case is ``{"name", "options", "stream"}``; the answer has the rows, or the class and the message of the failure. It
imports nothing of this repository unless the source is ``paceline``.
"""

import json
import sys
import tempfile
from typing import Any

ROW = "topic, partition, offset, hex(key), hex(value), unix_millis(timestamp), timestampType"

SLOW_START = "Python worker failed to connect back"
"""Spark allows a Python process ten seconds to start, which a busy machine may exceed."""
MOST_SLOW_STARTS = 5


def main() -> None:
    """Run every case of the standard input."""
    side, bootstrap, jars = sys.argv[1:4]
    cases = json.load(sys.stdin)
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "OFF")
    )
    if side == "kafka":
        builder = builder.config("spark.jars", jars)
    else:
        from pyspark_paceline import configure

        builder = configure(builder)
    spark = builder.getOrCreate()
    for case in cases:
        answer = _answer(spark, side, bootstrap, case)
        for _ in range(MOST_SLOW_STARTS):
            if SLOW_START not in answer.get("message", ""):
                break
            answer = _answer(spark, side, bootstrap, case)
        print(json.dumps({"name": case["name"]} | answer), flush=True)
    spark.stop()


def _answer(spark: Any, side: str, bootstrap: str, case: dict[str, Any]) -> dict[str, Any]:
    try:
        return _stream(spark, side, bootstrap, case) if case["stream"] else _batch(spark, side, bootstrap, case)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}


def _rows(frame: Any) -> list[list[Any]]:
    wanted = ROW + (", transform(headers, h -> struct(h.key, hex(h.value)))" if "headers" in frame.columns else "")
    frame.createOrReplaceTempView("rows")
    found = frame.sparkSession.sql(f"SELECT {wanted} FROM rows").collect()
    return sorted(([_plain(value) for value in row] for row in found), key=lambda row: row[:3])


def _plain(value: Any) -> Any:
    return [list(each) for each in value] if isinstance(value, list) else value


def _batch(spark: Any, side: str, bootstrap: str, case: dict[str, Any]) -> dict[str, Any]:
    reader = spark.read.format(side).option("kafka.bootstrap.servers", bootstrap).options(**case["options"])
    return {"rows": _rows(reader.load())}


def _stream(spark: Any, side: str, bootstrap: str, case: dict[str, Any]) -> dict[str, Any]:
    rows: list[list[Any]] = []
    reader = spark.readStream.format(side).option("kafka.bootstrap.servers", bootstrap).options(**case["options"])
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            reader.load()
            .writeStream.foreachBatch(lambda frame, _: rows.extend(_rows(frame)))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(180)
        progress = [
            {"rows": each.numInputRows, "start": _offsets(source.startOffset), "end": _offsets(source.endOffset)}
            for each in query.recentProgress
            for source in each.sources
            if each.numInputRows
        ]
    return {"rows": sorted(rows, key=lambda row: row[:3]), "progress": progress}


def _offsets(text: str | None) -> Any:
    """Return the offsets by topic and partition, without the topic ids, which only Paceline stores."""
    found = json.loads(text) if text else None
    return found and {topic: {n: at for n, at in by.items() if n != "topicId"} for topic, by in found.items()}


if __name__ == "__main__":
    main()
