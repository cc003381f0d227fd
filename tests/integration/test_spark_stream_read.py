"""Streaming reads in a real Spark session from in-process brokers."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from paceline.model.identifiers import TopicPartition
from paceline.pipeline.source.lag import offsets_behind_latest
from tests.support.spark import spark  # noqa: F401
from tests.support.waiting import eventually
from tests.unit.pipeline.batches import encode, simple_records
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

pytestmark = pytest.mark.spark


def part(count: int, **more: Any) -> ServedPartition:
    records = simple_records(count)
    return ServedPartition(b"".join(encode(records[at : at + 10]) for at in range(0, count, 10)), **more)


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    with ServedCluster({("t", number): part(100) for number in range(3)}) as cluster:
        yield cluster


def read_stream(spark: Any, served: ServedCluster, **options: str) -> Any:  # noqa: F811
    chosen = {"subscribe": "t", "startingOffsets": "earliest", "metadataRefreshMs": "100"} | options
    return (
        spark.readStream.format("paceline")
        .option("paceline.bootstrap.servers", served.bootstrap)
        .options(**chosen)
        .load()
    )


class Sink:
    """Writes every batch as Parquet into its own folder, so that a repeated batch overwrites the first attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, frame: Any, batch_id: int) -> None:
        frame.selectExpr("topic", "partition", "offset").coalesce(1).write.mode("overwrite").parquet(
            str(self.path / f"batch={batch_id}")
        )

    def places(self, spark: Any) -> list[tuple[str, int, int]]:  # noqa: F811
        rows = spark.read.parquet(str(self.path)).selectExpr("topic", "partition", "offset").collect()
        return sorted((row.topic, row.partition, row.offset) for row in rows)


def everything(count: int, partitions: int = 3) -> list[tuple[str, int, int]]:
    return [("t", partition, offset) for partition in range(partitions) for offset in range(count)]


def start(frame: Any, sink: Callable[[Any, int], None], checkpoint: Path, **trigger: Any) -> Any:
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()


def test_available_now_reads_the_present_records_and_a_restart_continues(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
) -> None:
    sink = Sink(tmp_path / "out")
    frame = read_stream(spark, served, maxOffsetsPerTrigger="120")
    query = start(frame, sink, tmp_path / "checkpoint", availableNow=True)
    assert query.awaitTermination(120)
    assert sink.places(spark) == everything(100)
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [120, 120, 60]
    for number in range(3):
        served.partitions["t", number] = part(150)
    again = start(frame, sink, tmp_path / "checkpoint", availableNow=True)
    assert again.awaitTermination(120)
    assert sink.places(spark) == everything(150)
    assert sum(each.numInputRows for each in again.recentProgress) == 150


def _lag(query: Any) -> dict[TopicPartition, int] | None:
    [source] = query.lastProgress.sources
    return offsets_behind_latest(source.endOffset, source.latestOffset)


def test_a_running_query_reads_new_records_and_reports_its_lag(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
) -> None:
    sink = Sink(tmp_path / "out")
    query = start(read_stream(spark, served, maxOffsetsPerTrigger="150"), sink, tmp_path / "checkpoint")
    try:
        eventually(lambda: sum(p.numInputRows for p in query.recentProgress) == 300, 60, "the second batch was read")
        first = next(each for each in query.recentProgress if each.numInputRows)
        [source] = first.sources
        assert json.loads(source.latestOffset)["t"]["0"] == 100
        assert offsets_behind_latest(source.endOffset, source.latestOffset) == {
            ("t", number): 50 for number in range(3)
        }
        served.partitions["t", 3] = part(40)
        eventually(lambda: sum(p.numInputRows for p in query.recentProgress) == 340, 60, "the new partition was read")
        caught_up = [("t", number) for number in range(4)]
        eventually(lambda: _lag(query) == dict.fromkeys(caught_up, 0), 60, "the progress shows no lag")
    finally:
        query.stop()
    assert sink.places(spark) == sorted(everything(100) + [("t", 3, offset) for offset in range(40)])


def test_an_idle_query_makes_no_empty_batches(spark: Any, served: ServedCluster, tmp_path: Path) -> None:  # noqa: F811
    """Equal offsets start no batch; Spark would take offsets with another order of keys for new ones."""
    batches: list[int] = []
    query = start(read_stream(spark, served), lambda _, batch_id: batches.append(batch_id), tmp_path / "checkpoint")
    try:
        eventually(lambda: bool(batches), 60, "the first batch was read")
        polls = len(served.described)
        eventually(lambda: len(served.described) >= polls + 10, 60, "the query has polled ten more times")
        assert batches == [0]
    finally:
        query.stop()


def test_lost_records_fail_the_query_with_the_name_of_the_partition(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
) -> None:
    from pyspark.errors import StreamingQueryException

    sink = Sink(tmp_path / "out")
    first = start(read_stream(spark, served), sink, tmp_path / "checkpoint", availableNow=True)
    assert first.awaitTermination(120)
    served.partitions["t", 1] = part(50)
    query = start(read_stream(spark, served), sink, tmp_path / "checkpoint", availableNow=True)
    with pytest.raises(StreamingQueryException, match="t/1: read up to 100, the log ends at 50"):
        query.awaitTermination(120)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets is refused: a streaming query does not have it"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be 1 to"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time like 500ms, 30s or 15m, not 'soon'"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets instead"),
        ({"maxOffsetPerTrigger": "3"}, "did you mean 'maxOffsetsPerTrigger'"),
    ],
)
def test_a_wrong_option_fails_before_the_query_starts(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
    options: dict[str, str],
    message: str,
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=message):
        query = start(read_stream(spark, served, **options), lambda *_: None, tmp_path / "checkpoint")
        query.awaitTermination(60)


def test_a_bad_option_of_a_new_or_restarted_query_is_named(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    tmp_path: Path,
) -> None:
    """PySpark stops the reader even when there is none, and then the error of that hides the error of the options."""
    frame = spark.readStream.format("paceline").option("paceline.bootstrap.servers", served.bootstrap)
    good = start(frame.option("subscribe", "t").load(), lambda *_: None, tmp_path / "old", availableNow=True)
    assert good.awaitTermination(60)
    for checkpoint in ("new", "old"):
        bad = start(frame.option("endingOffsets", "latest").load(), lambda *_: None, tmp_path / checkpoint)
        with pytest.raises(
            StreamingQueryException, match="InvalidOptionError: option endingOffsets is refused"
        ) as told:
            bad.awaitTermination(60)
        assert "UnboundLocalError" not in str(told.value)
