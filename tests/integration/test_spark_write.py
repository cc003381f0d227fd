"""Writes in a real Spark session to in-process brokers."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from paceline.log.record_batch import iterate_headers
from tests.support.spark import spark  # noqa: F401
from tests.support.waiting import eventually
from tests.unit.pipeline.batches import decoded, encode, simple_records
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "sink"
PARTITIONS = 3
SOURCE_RECORDS = 600


def part(count: int) -> ServedPartition:
    records = simple_records(count)
    return ServedPartition(b"".join(encode(records[at : at + 10]) for at in range(0, count, 10)))


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    """Serve a topic to read, an empty topic to write to, and a staging topic."""
    partitions = {("in", number): part(SOURCE_RECORDS) for number in range(PARTITIONS)}
    partitions |= {("out", number): ServedPartition(b"", leader=1 + number % 2) for number in range(PARTITIONS)}
    partitions |= {("__paceline_staging", number): ServedPartition(b"") for number in range(2)}
    with ServedCluster(partitions, brokers=2) as cluster:
        yield cluster


def written(served: ServedCluster) -> dict[int, list[bytes | None]]:
    return {
        number: [each.value for each in decoded(partition.data)]
        for (topic, number), partition in served.partitions.items()
        if topic == "out"
    }


def copy_frame(frame: Any) -> Any:
    """Return rows for the same partition, whose value names partition and offset of the source record."""
    return frame.selectExpr("concat(partition, '/', offset) AS value", "partition", "timestamp")


EVERYTHING = {number: [b"%d/%d" % (number, offset) for offset in range(SOURCE_RECORDS)] for number in range(PARTITIONS)}


def read_options(served: ServedCluster) -> dict[str, str]:
    return {"paceline.bootstrap.servers": served.bootstrap, "subscribe": "in", "startingOffsets": "earliest"}


def write_options(served: ServedCluster, **more: str) -> dict[str, str]:
    return {"paceline.bootstrap.servers": served.bootstrap, "topic": "out"} | more


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_batch_is_appended(spark: Any, served: ServedCluster, guarantee: str) -> None:  # noqa: F811
    frame = copy_frame(spark.read.format("paceline").options(**read_options(served)).load())
    options = write_options(served, deliveryGuarantee=guarantee)
    frame.write.format("paceline").options(**options).mode("append").save()
    assert written(served) == EVERYTHING


def test_the_default_save_mode_and_overwriting_are_refused(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    """Spark refuses its default mode for every Python source, and the message names that mode."""
    from pyspark.errors import PySparkException

    writer = spark.range(1).selectExpr("CAST('v' AS BINARY) AS value").write.format("paceline")
    with pytest.raises(PySparkException, match=r"(?i)errorifexists"):
        writer.options(**write_options(served)).save()
    with pytest.raises(PySparkException, match=r"use mode\('append'\)"):
        writer.options(**write_options(served)).mode("overwrite").save()
    assert written(served) == {0: [], 1: [], 2: []}


def test_wrong_columns_fail_before_a_task_runs(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="column value has type bigint"):
        spark.range(1).selectExpr("id AS value").write.format("paceline").options(**write_options(served)).mode(
            "append"
        ).save()


def test_headers_keys_and_topics_of_rows_arrive(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    frame = spark.sql(
        "SELECT 'out' AS topic, 'k' AS key, 'v' AS value, 1 AS partition, TIMESTAMP'2024-05-17 12:00:00' AS timestamp, "
        "array(struct('h' AS key, CAST('1' AS BINARY) AS value)) AS headers, 1.5 AS ignored"
    )
    frame.write.format("paceline").option("paceline.bootstrap.servers", served.bootstrap).mode("append").save()
    [record] = decoded(served.partitions["out", 1].data)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"1"),))
    assert record.timestamp_ms == 1_715_947_200_000


def forget_last_commit(checkpoint: Path) -> None:
    """Delete the commit file of the last batch, so that Spark runs the batch again."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_foreach_batch_with_an_id_writes_a_repeated_batch_once(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
) -> None:
    def copy(frame: Any, batch_id: int) -> None:
        options = write_options(
            served, deliveryGuarantee="exactly-once", txnAppId="copy-of-in", txnVersion=str(batch_id)
        )
        copy_frame(frame).write.format("paceline").options(**options).mode("append").save()

    def run(checkpoint: str) -> None:
        frame = spark.readStream.format("paceline").options(**read_options(served)).load()
        writer = frame.writeStream.foreachBatch(copy).option("checkpointLocation", str(tmp_path / checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(60)

    run("checkpoint")
    forget_last_commit(tmp_path / "checkpoint")
    run("checkpoint")
    assert written(served) == EVERYTHING
    with pytest.raises(StreamingQueryException, match=r"PublishFencedError.*give each query an id"):
        run("another")


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_stream_is_appended_batch_after_batch_and_across_restarts(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
    guarantee: str,
) -> None:
    def run() -> Any:
        frame = spark.readStream.format("paceline").options(**read_options(served))
        query = (
            copy_frame(frame.option("maxOffsetsPerTrigger", "900").load())
            .writeStream.format("paceline")
            .options(**write_options(served, deliveryGuarantee=guarantee))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return query

    first = run()
    assert [each.numInputRows for each in first.recentProgress if each.numInputRows] == [900, 900]
    assert written(served) == EVERYTHING
    forget_last_commit(tmp_path / "checkpoint")
    run()
    found = written(served)
    assert {number: list(dict.fromkeys(values)) for number, values in found.items()} == EVERYTHING
    repeated = sum(len(values) for values in found.values()) - PARTITIONS * SOURCE_RECORDS
    assert repeated == (0 if guarantee == "exactly-once" else 900)


def test_a_query_continues_from_the_checkpoint_and_the_half_published_batch_of_an_earlier_commit(
    spark: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Commit 0cf595c7 wrote ``tests/golden/sink``: batch 0, and batch 1 without the 30 records of partition 1."""
    logs = {path.stem.rpartition("-"): path.read_bytes() for path in sorted((GOLDEN / "logs").glob("*.log"))}
    partitions = {(topic, int(number)): ServedPartition(data) for (topic, _, number), data in logs.items()}
    for partition in partitions.values():
        for _, header in iterate_headers(partition.data):
            partition.producers.update(header)
    partitions |= {("in", number): part(90) for number in range(2)}
    shutil.copytree(GOLDEN / "checkpoint", tmp_path / "checkpoint")
    with ServedCluster(partitions) as served:
        assert [len(values) for values in written(served).values()] == [60, 30]
        frame = spark.readStream.format("paceline").options(**read_options(served)).load()
        writer = copy_frame(frame).writeStream.format("paceline").trigger(availableNow=True)
        writer = writer.options(**write_options(served, deliveryGuarantee="exactly-once"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(60)
        assert [each.batchId for each in query.recentProgress if each.numInputRows] == [1, 2]
        assert written(served) == {number: values[:90] for number, values in EVERYTHING.items() if number < 2}


DRIVER = """
import sys
from pyspark.sql import SparkSession
from pyspark_paceline import configure

bootstrap, checkpoint = sys.argv[1:]
spark = (
    configure(SparkSession.builder.master("local[2]"))
    .config("spark.driver.memory", "512m").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.log.level", "ERROR").getOrCreate()
)
frame = (
    spark.readStream.format("paceline").option("paceline.bootstrap.servers", bootstrap).option("subscribe", "in")
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "90").load()
)
query = (
    frame.selectExpr("concat(partition, '/', offset) AS value", "partition", "timestamp")
    .writeStream.format("paceline").option("paceline.bootstrap.servers", bootstrap).option("topic", "out")
    .option("deliveryGuarantee", "exactly-once").option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


@pytest.mark.slow
def test_a_driver_killed_in_the_middle_writes_every_row_once(served: ServedCluster, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    command = [sys.executable, str(script), served.bootstrap, str(tmp_path / "checkpoint")]

    def count() -> int:
        return sum(len(values) for values in written(served).values())

    process = subprocess.Popen(command, start_new_session=True)
    try:
        eventually(lambda: count() >= 700 or process.poll() is not None, 240, "700 rows were written")
        assert process.poll() is None
    finally:
        # Kill the driver, its JVM and the Python workers together, as a power failure does.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, timeout=300)
    assert written(served) == EVERYTHING
