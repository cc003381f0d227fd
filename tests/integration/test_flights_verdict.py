"""The reader of `make run`, a Spark process that streams a topic and checks its records, on known damage."""

import json
from pathlib import Path

import pytest

from examples.flights.verify import SparkFailedError, SparkReader
from tests.unit.pipeline.batches import encode
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

pytestmark = pytest.mark.spark


def flights(*carriers_and_numbers: tuple[str, int]) -> bytes:
    """Return a log with one record per flight."""
    return encode(
        [
            Expected(
                carrier.encode(),
                json.dumps({"seq": seq, "carrier": carrier, "month": 1 + seq % 2, "dep_delay": seq}).encode(),
                offset,
                1_000 + offset,
                0,
                (),
            )
            for offset, (carrier, seq) in enumerate(carriers_and_numbers)
        ]
    )


@pytest.mark.slow
def test_lost_duplicate_and_reordered_records_are_counted_in_any_directory(tmp_path: Path) -> None:
    """The directory name has spaces, commas and brackets, which are special in Spark's options and file paths."""
    directory = tmp_path / 'my "run", [1] {a,b} *'
    directory.mkdir()
    reader = SparkReader(directory)
    try:
        partitions = {
            ("flights", 0): ServedPartition(flights(("AA", 0), ("AA", 2), ("AA", 1), ("AA", 2), ("UA", 5))),
            ("flights", 1): ServedPartition(flights(("DL", 3), ("UA", 6), ("DL", 7))),
        }
        with ServedCluster(partitions) as served:
            reader.start(served.bootstrap, "flights")
            reader.await_stream()
            verdict = reader.finish(9, timeout_s=240)
            batches = reader.batches()
        assert (verdict.records_read, verdict.distinct) == (8, 7)
        assert (verdict.lost, verdict.duplicated) == (2, 1)
        assert (verdict.out_of_order, verdict.keys_on_two_partitions) == (1, 1)
        assert sum(batch.rows for batch in batches) == 8 and batches[-1].ends == {0: 5, 1: 3}
        assert verdict.delays == {"AA": {1: 4 / 3, 2: 1.0}, "DL": {2: 5.0}, "UA": {2: 5.0, 1: 6.0}}
    finally:
        reader.stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == [directory.name]
    assert sorted(path.name for path in directory.iterdir()) == ["flights.parquet", "scratch", "spark.log"]


def test_a_spark_that_ends_early_is_an_error_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java"))
    reader = SparkReader(tmp_path)
    try:
        with pytest.raises(SparkFailedError, match=r"exit code[\s\S]*no java"):
            reader.start("127.0.0.1:1", "flights")
            reader.await_stream()
    finally:
        reader.stop()
