"""Writes without Spark: topics that brokers serve, tasks of rows, and the records that the topics hold."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from paceline.pipeline.sink import staging
from paceline.pipeline.sink.options import WriteOptions, parse_write_options
from paceline.pipeline.sink.writer import TaskWritten, write_task
from paceline_client.process_channels import close_channels
from tests.unit.pipeline.batches import decoded
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

PARTITIONS = 3
STAGING = "__paceline_staging"


def close_producers() -> None:
    while staging._producers:
        staging._producers.popitem()[1].close(timeout_s=0.0)


@pytest.fixture(autouse=True)
def fresh_channels() -> Iterator[None]:
    yield
    close_producers()
    close_channels()


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    """Topic ``t`` with three empty partitions on two brokers, ``u`` with one, and a staging topic with two."""
    partitions = {("t", number): ServedPartition(b"", leader=1 + number % 2) for number in range(PARTITIONS)}
    partitions |= {(STAGING, number): ServedPartition(b"", leader=2 - number) for number in range(2)}
    partitions["u", 0] = ServedPartition(b"")
    with ServedCluster(partitions, brokers=2) as cluster:
        yield cluster


def options(served: ServedCluster, **more: str) -> WriteOptions:
    names = {name.replace("__", "."): value for name, value in more.items()}
    given = {"paceline.bootstrap.servers": served.bootstrap, "paceline.delivery.timeout.ms": "10000"} | names
    return parse_write_options(given)


def rows(values: Sequence[bytes | None], topic: str | None = "t", **columns: Any) -> pa.RecordBatch:
    made: dict[str, Any] = {"value": pa.array(values, pa.binary())}
    if topic is not None:
        made["topic"] = pa.array([topic] * len(values), pa.string())
    made |= columns
    return pa.RecordBatch.from_pydict(made)


def write(chosen: WriteOptions, *batches: pa.RecordBatch, query_id: str = "q") -> TaskWritten:
    columns = tuple(batches[0].schema.names) if batches else ()
    wanted = tuple(name for name in columns if not (name == "topic" and chosen.topic is not None))
    message: TaskWritten = pickle.loads(pickle.dumps(write_task(chosen, wanted, iter(batches), query_id)))
    return message


def records(served: ServedCluster, topic: str = "t") -> dict[int, list[Expected]]:
    return {number: decoded(partition.data) for (name, number), partition in served.partitions.items() if name == topic}


def values(served: ServedCluster, topic: str = "t") -> dict[int, list[bytes | None]]:
    return {number: [each.value for each in found] for number, found in records(served, topic).items()}


def struct(text: str) -> StructType:
    """Parse the few types of these tests without a Spark session."""
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DataType,
        DoubleType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        TimestampType,
    )

    pair = StructType([StructField("key", StringType()), StructField("value", StringType())])
    types: dict[str, DataType] = {
        "binary": BinaryType(),
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "double": DoubleType(),
        "timestamp": TimestampType(),
        "map<string,binary>": MapType(StringType(), BinaryType()),
        "array<struct<key:string,value:string>>": ArrayType(pair),
    }
    return StructType([StructField(*_field(each, types)) for each in text.split(", ")])


def _field(text: str, types: dict[str, Any]) -> tuple[str, Any]:
    name, _, kind = text.partition(" ")
    return name, types[kind]
