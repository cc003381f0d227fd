"""Reads without Spark: a reader of a served cluster, and its tasks in the order in which Spark runs them."""

import pickle
from collections.abc import Iterator

import pytest

from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.source.reader import PacelineReader
from paceline_client.process_channels import close_channels
from tests.unit.pipeline.batches import encode, simple_records, to_records
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster


@pytest.fixture(autouse=True)
def fresh_channels() -> Iterator[None]:
    yield
    close_channels()


def log(count: int, first: int = 0, per_batch: int = 10) -> bytes:
    records = simple_records(count, first)
    return b"".join(encode(records[at : at + per_batch]) for at in range(0, count, per_batch))


def reader(served: ServedCluster, **more: str) -> PacelineReader:
    options = {"paceline.bootstrap.servers": served.bootstrap, "includeHeaders": "true"} | more
    if not {"subscribe", "subscribePattern", "assign"} & set(options):
        options["subscribe"] = "t"
    source = PacelineDataSource(options)
    return source.reader(source.schema())


def read_all(made: PacelineReader) -> list[Expected]:
    """Plan, send reader and partitions through pickle as Spark does, and read every task."""
    partitions = made.partitions()
    assert isinstance(partitions, list)
    found = []
    for partition in partitions:
        copy: PacelineReader = pickle.loads(pickle.dumps(made))
        found += to_records(copy.read(pickle.loads(pickle.dumps(partition))))
    return found


def offsets(records: list[Expected]) -> list[int]:
    return [each.offset for each in records]
