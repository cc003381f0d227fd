"""Batch reads in a real Spark session from in-process brokers that serve segments written by Kafka."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paceline.pipeline.data_source import spark_schema
from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.session import SETTINGS
from paceline.pipeline.source.options import parse_batch_options
from paceline_client import TopicPartition
from paceline_client.cluster_view import LATEST, ClusterView
from paceline_client.process_channels import channels_of_this_process
from tests.support.spark import spark  # noqa: F401
from tests.unit.pipeline import golden
from tests.unit.pipeline.batches import encode, simple_records
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

pytestmark = pytest.mark.spark

TOPICS = {
    "codecs": "clean/codecs-0",
    "orders": "clean/orders-eu.v1-0",
    "append_time": "clean/append_time-0",
    "txn": "clean/txn-0",
    "compact": "cleaned/compact_keep-0",
    "modern": "kafka-3.9.1/compact-0",
}
EPOCH = datetime(1970, 1, 1)


def log(count: int, per_batch: int = 10) -> bytes:
    return b"".join(encode(simple_records(min(per_batch, count - at), at)) for at in range(0, count, per_batch))


@pytest.fixture(scope="module")
def served() -> Iterator[ServedCluster]:
    """Serve Kafka's segments as topics of one partition, and topics with 4, 200, trimmed and empty partitions."""
    partitions = {(topic, 0): ServedPartition(golden.partition(name)) for topic, name in TOPICS.items()}
    partitions |= {("numbers", n): ServedPartition(log(1_000), leader=1 + n % 2) for n in range(4)}
    partitions |= {("many", n): ServedPartition(log(5), leader=1 + n % 2) for n in range(200)}
    partitions[("trimmed", 0)] = ServedPartition(log(100), log_start_offset=40)
    partitions[("empty", 0)] = ServedPartition(b"")
    with ServedCluster(partitions, brokers=2) as cluster:
        yield cluster


def read(spark: Any, served: ServedCluster, **options: str) -> Any:  # noqa: F811
    reader = spark.read.format("paceline").option("paceline.bootstrap.servers", served.bootstrap)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def collected(frame: Any) -> list[Expected]:
    return [
        Expected(
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.offset,
            (row.timestamp - EPOCH) // timedelta(milliseconds=1),
            row.timestampType,
            tuple((each.key, None if each.value is None else bytes(each.value)) for each in row.headers or ()),
        )
        for row in frame.orderBy("topic", "partition", "offset").collect()
    ]


def failure(action: Any) -> str:
    """Run an action that fails, and return the message of Spark's exception."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


# --- records and schema


@pytest.mark.parametrize("topic", TOPICS)
def test_kafkas_segments_arrive_in_spark_as_kafka_decodes_them(spark: Any, served: ServedCluster, topic: str) -> None:  # noqa: F811
    frame = read(spark, served, subscribe=topic, includeHeaders="true")
    assert collected(frame) == golden.partition_records(TOPICS[topic])


def test_the_schema_is_that_of_sparks_kafka_source(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    frame = read(spark, served, subscribe="codecs", includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert read(spark, served, subscribe="codecs").columns == frame.columns[:-1]


def test_arrow_types_are_exactly_what_spark_asks_for() -> None:
    """Spark refuses a batch with a non-nullable field, a large type or another order of fields."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from paceline.pipeline.decode.columns import arrow_schema
    from paceline.pipeline.source.options import ALL_COLUMNS

    for columns in (ALL_COLUMNS, ALL_COLUMNS[:-1], ("headers", "offset")):
        assert to_arrow_schema(spark_schema(columns), timezone="UTC").equals(arrow_schema(columns))


def test_large_and_small_partitions_are_packed_into_few_tasks(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    frame = read(spark, served, subscribe="many")
    assert frame.rdd.getNumPartitions() == 1
    assert frame.count() == 1_000
    spread = read(spark, served, subscribe="numbers", targetTaskBytes="40000", maxTasks="4")
    assert spread.rdd.getNumPartitions() == 4
    assert spread.selectExpr("count(*)", "count(distinct partition, offset)", "sum(offset)").first() == (
        4_000,
        4_000,
        4 * sum(range(1_000)),
    )


def test_partitions_are_split_on_demand_and_still_read_once(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    split = read(spark, served, subscribe="numbers", minPartitions="7")
    assert split.rdd.getNumPartitions() == 7
    assert split.select("partition", "offset").distinct().count() == 4_000
    limited = read(spark, served, subscribe="numbers", maxRecordsPerPartition="900")
    assert limited.rdd.getNumPartitions() == 5
    from pyspark.sql.functions import spark_partition_id

    sizes = limited.groupBy(spark_partition_id()).count().collect()
    assert max(row["count"] for row in sizes) <= 900
    assert sum(row["count"] for row in sizes) == 4_000


def test_an_empty_topic_is_an_empty_frame(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    """The frame is empty although Spark turns an empty list of partitions into one partition."""
    assert read(spark, served, subscribe="empty").collect() == []
    assert read(spark, served, subscribePattern="no-such-.*").count() == 0


def test_offsets_and_columns_are_chosen_by_options(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    frame = read(
        spark,
        served,
        assign='{"numbers": [2]}',
        startingOffsets='{"numbers": {"2": 13}}',
        endingOffsets='{"numbers": {"2": 17}}',
        columns="offset,topic",
    )
    assert [tuple(row) for row in frame.collect()] == [(n, "numbers") for n in range(13, 17)]


def test_a_limit_ends_the_read_early(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    assert len(read(spark, served, subscribe="numbers").limit(3).collect()) == 3


def test_sql_reads_a_topic_as_a_view(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW numbers USING paceline OPTIONS "
        f"('paceline.bootstrap.servers' '{served.bootstrap}', subscribe 'numbers')"
    )
    assert spark.sql("SELECT count(*), max(offset) FROM numbers").first() == (4_000, 999)


def test_a_table_of_the_catalog_is_refused_with_advice(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    """Spark 4.3 passes the options of a table to its source at CREATE TABLE, but not when the table is read."""
    statement = (
        "CREATE TABLE topic_numbers USING paceline OPTIONS "
        f"('paceline.bootstrap.servers' '{served.bootstrap}', subscribe 'numbers') COMMENT 'not to be' "
    )
    assert "use CREATE TEMPORARY VIEW" in failure(lambda: spark.sql(statement))
    assert not spark.catalog.tableExists("topic_numbers")


# --- push-down


def test_filters_become_seek_positions_and_the_answer_is_the_same(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    since = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1_990)).strftime("%Y-%m-%d %H:%M:%S.%f")
    conditions = [
        "partition = 3 AND offset >= 990",
        "topic = 'numbers' AND partition IN (1, 3) AND offset BETWEEN 500 AND 503",
        f"timestamp >= TIMESTAMP '{since}'",
        f"timestamp < TIMESTAMP '{since}' AND offset > 985",
        "topic = 'other'",
        "key = CAST('key-7' AS BINARY)",
        "offset = 5 OR offset = 7",
    ]
    for condition in conditions:
        everything = read(spark, served, subscribe="numbers").where(condition).select("partition", "offset")
        pushed = read(spark, served, subscribe="numbers", pushdown="true").where(condition)
        assert sorted(pushed.select("partition", "offset").collect()) == sorted(everything.collect()), condition


def test_a_pushed_filter_is_not_even_fetched(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    served.fetches.clear()
    frame = read(spark, served, subscribe="numbers", pushdown="true").where("partition = 3 AND offset >= 990")
    assert frame.count() == 10
    assert {(topic, number) for topic, number, _ in served.fetched_partitions()} == {("numbers", 3)}
    assert min(offset for *_, offset in served.fetched_partitions()) == 990


def test_a_pushed_time_moves_the_start(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    served.fetches.clear()
    frame = read(spark, served, subscribe="numbers", pushdown="true").where(
        "timestamp >= TIMESTAMP '1970-01-01 00:00:01.9'"
    )
    assert frame.count() == 400
    assert min(offset for *_, offset in served.fetched_partitions()) == 900


def test_push_down_needs_the_setting_and_reads_without_it_do_not(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert read(spark, served, subscribe="numbers").where("offset = 5").count() == 4
        wanted = read(spark, served, subscribe="numbers", pushdown="true").where("offset = 5")
        assert "DATA_SOURCE_PUSHDOWN_DISABLED" in failure(wanted.count)
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# --- error messages


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "numbers", "startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"subscribe": "numbers", "kafka.auto.offset.reset": "latest"}, "use startingOffsets instead"),
        ({"subscribe": "numbers", "assign": "{}"}, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "numbers", "startingOffsets": "latest"}, "may not be 'latest' in a batch query"),
    ],
)
def test_a_wrong_option_fails_before_any_job(
    spark: Any,  # noqa: F811
    served: ServedCluster,
    options: dict[str, str],
    says: str,
) -> None:
    text = failure(lambda: read(spark, served, **options).count())
    assert "InvalidOptionError" in text
    assert says in text


def test_a_path_is_refused(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    reader = spark.read.format("paceline").option("paceline.bootstrap.servers", served.bootstrap)
    assert "load() takes no path" in failure(lambda: reader.load("numbers"))


def test_a_schema_of_ones_own_is_refused(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    reader = spark.read.format("paceline").schema("value string").option("subscribe", "numbers")
    frame = lambda: reader.option("paceline.bootstrap.servers", served.bootstrap).load().count()  # noqa: E731
    assert "the schema is fixed" in failure(frame)


def test_lost_data_is_an_error_and_can_be_allowed(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    start = '{"trimmed": {"0": 5}}'
    frame = read(spark, served, subscribe="trimmed", startingOffsets=start)
    assert "DataLossError: trimmed/0: offsets 5 to 39 were deleted" in failure(frame.count)
    assert read(spark, served, subscribe="trimmed", startingOffsets=start, failOnDataLoss="false").count() == 60


# --- session and workers


def test_the_source_is_found_without_being_registered(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    """Spark finds the source through the module pyspark_paceline; the fixture does not register it."""
    import pyspark_paceline

    assert pyspark_paceline.DefaultSource.name() == "paceline"
    assert read(spark, served, subscribe="numbers").count() == 4_000


def test_configure_sets_what_the_traps_ask_for(spark: Any) -> None:  # noqa: F811
    settings = {key: spark.conf.get(key, None) or spark.sparkContext.getConf().get(key) for key in SETTINGS}
    assert settings == SETTINGS
    assert SETTINGS["spark.python.unix.domain.socket.enabled"] == "true"
    assert SETTINGS["spark.python.udf.pipelined.enabled"] == "false"


@pytest.mark.slow
def test_a_registered_source_reads_as_the_found_one_does(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    """Jobs shipped with --py-files have to register the source."""
    from paceline.pipeline.session import register

    register(spark)
    assert read(spark, served, subscribe="numbers").count() == 4_000


def test_workers_are_used_again_and_keep_their_channels(spark: Any, served: ServedCluster) -> None:  # noqa: F811
    """Repeated reads in forked workers return every record; each process opens its own channels."""
    for _ in range(3):
        assert read(spark, served, subscribe="numbers", minPartitions="4").count() == 4_000


def test_the_options_of_the_fixture_are_valid(served: ServedCluster) -> None:
    assert parse_batch_options({"kafka.bootstrap.servers": served.bootstrap, "subscribe": "numbers"}).max_tasks == 8
    with pytest.raises(InvalidOptionError):
        parse_batch_options({})


def test_a_reused_worker_reads_with_a_view_that_the_driver_has_used(
    spark: Any,  # noqa: F811
    served: ServedCluster,
) -> None:
    """Spark forks its workers. A view takes no channel along, and the tasks of a worker share one."""
    import pyarrow as pa

    bootstrap = served.bootstrap
    view = ClusterView([bootstrap], client_id="test")
    assert len(view.describe_topics(["numbers"])["numbers"].partitions) == 4
    channel = channels_of_this_process("test").get(bootstrap)

    def look_up(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            ends = view.list_offsets([TopicPartition("numbers", number) for number in range(4)], LATEST)
            shared = channels_of_this_process("test").get(bootstrap)
            yield pa.RecordBatch.from_pylist([{"pid": os.getpid(), "channel": id(shared), "ends": sum(ends.values())}])

    schema = "pid long, channel long, ends long"
    tasks: dict[int, Any] = {}
    for _ in range(20):  # Spark gives a task to any idle worker
        (task,) = spark.range(0, 1, 1, 1).mapInArrow(look_up, schema).collect()
        if task.pid in tasks:
            break
        tasks[task.pid] = task
    assert task == tasks[task.pid] and task.pid != os.getpid() and task.ends == 4_000
    assert channels_of_this_process("test").get(bootstrap) is channel
