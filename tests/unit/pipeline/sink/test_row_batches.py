"""The limit on the total size of open batches."""

import pyarrow as pa
import pytest

from paceline.pipeline.sink import row_batches
from paceline.pipeline.sink.options import parse_write_options
from paceline.pipeline.sink.row_batches import RowBatches

PARTITIONS = 10
VALUE_BYTES = 400


def test_open_batches_stay_below_the_limit_after_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 5_000
    monkeypatch.setattr(row_batches, "MAX_OPEN_BYTES", limit)
    options = parse_write_options({"paceline.bootstrap.servers": "a:1", "paceline.batch.size": "1000"})
    counts: list[int] = []
    batches = RowBatches(
        options,
        lambda _topic: PARTITIONS,
        lambda _tp, _batch, count: counts.append(count),
        lambda _topic, _wanted: 1 << 20,
    )
    most = 0
    for number in range(1_000):
        row = {"topic": ["t"], "value": [b"x" * VALUE_BYTES], "partition": pa.array([number % PARTITIONS], pa.int32())}
        batches.add(pa.RecordBatch.from_pydict(row), ("topic", "value", "partition"))
        most = max(most, number + 1 - sum(counts))
    assert len(counts) > 100 and PARTITIONS <= most < limit / VALUE_BYTES
