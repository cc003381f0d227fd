"""The writers against brokers over real gRPC, without Spark: routing, columns, options, brokers that fail."""

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, _parse_datatype_string

from paceline.model.errors import ErrorCode, MessageTooLargeError, UnknownTopicOrPartitionError
from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.errors import InvalidOptionError, InvalidRowError, UnsupportedOperationError
from paceline.pipeline.sink.columns import check_columns
from paceline.pipeline.sink.options import WriteOptions, parse_write_options
from paceline.pipeline.sink.writer import write_task
from paceline_client.partitioner import partition_for_key
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster
from tests.unit.pipeline.sink.writes import (
    PARTITIONS,
    fresh_channels,
    options,
    records,
    rows,
    served,
    struct,
    values,
    write,
)

__all__ = ["fresh_channels", "served"]


# --- where rows go and what is in them


def test_rows_go_to_the_partition_they_name_or_to_that_of_their_key(served: ServedCluster) -> None:
    named = rows([b"a", b"b"], partition=pa.array([2, 0], pa.int32()))
    write(options(served), named)
    assert values(served) == {0: [b"b"], 1: [], 2: [b"a"]}
    keys = [b"key-%d" % n for n in range(50)]
    write(options(served), rows(keys, key=pa.array(keys, pa.binary()), partition=pa.nulls(50, pa.int32())))
    for number, found in records(served).items():
        assert all(partition_for_key(each.key, PARTITIONS) == number for each in found if each.key is not None)
    assert sum(len(found) for found in values(served).values()) == 52


def test_rows_without_key_fill_one_partition_after_another(served: ServedCluster) -> None:
    made = [b"%03d" % n * 20 for n in range(300)]
    write(options(served, paceline__batch__size="1000"), rows(made))
    found = values(served)
    assert sorted(each for part in found.values() for each in part if each) == made
    assert all(part for part in found.values())
    write(options(served, paceline__partitioner="roundrobin"), rows([b"x"] * 30))
    assert {n: part.count(b"x") for n, part in values(served).items()} == {0: 10, 1: 10, 2: 10}


def test_every_column_arrives(served: ServedCluster) -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}, {"key": "none", "value": None}], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    time = datetime(2024, 5, 17, 12, 30, 15, 250_000, tzinfo=UTC)
    made = rows(
        [b"v", None],
        key=pa.array(["text key", None], pa.string()),
        headers=headers,
        timestamp=pa.array([time, time], pa.timestamp("us", tz="UTC")),
        partition=pa.array([1, 1], pa.int32()),
        ignored=pa.array([1.5, 2.5]),
    )
    write_task(options(served), ("topic", "key", "value", "headers", "partition", "timestamp"), iter([made]), "")
    time_ms = int(time.timestamp() * 1000)
    assert records(served)[1] == [
        Expected(b"text key", b"v", 0, time_ms, 0, (("h", b"1"), ("none", None))),
        Expected(None, None, 1, time_ms, 0, ()),
    ]


def test_the_option_topic_beats_the_column(served: ServedCluster) -> None:
    write(options(served, topic="u"), rows([b"a", b"b"]))
    assert values(served, "u") == {0: [b"a", b"b"]}
    assert values(served) == {0: [], 1: [], 2: []}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_can_be_compressed(served: ServedCluster, codec: str) -> None:
    write(options(served, topic="u", paceline__compression__type=codec), rows([b"abc" * 100] * 50))
    assert values(served, "u") == {0: [b"abc" * 100] * 50}
    assert (len(served.partitions["u", 0].data) < 5_000) == (codec != "none")


def test_an_empty_task_writes_nothing_and_stages_nothing(served: ServedCluster) -> None:
    assert write(options(served)).records == 0
    message = write(options(served, deliveryGuarantee="exactly-once"))
    assert message.staged is not None
    assert not message.staged.batches


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (
            pa.RecordBatch.from_pydict({"value": pa.array([b"a"]), "topic": pa.array([None], pa.string())}),
            InvalidRowError,
            "its column topic is null",
        ),
        (rows([b"a"], partition=pa.array([3], pa.int32())), InvalidRowError, "partition 3 of t, which has 3"),
        (rows([b"a"], partition=pa.array([-1], pa.int32())), InvalidRowError, "partition -1 of t"),
        (
            rows([b"a"], topic="__paceline_staging"),
            InvalidRowError,
            "names __paceline_staging, the staging",
        ),
        (rows([b"a"], topic="nowhere"), UnknownTopicOrPartitionError, "topic nowhere does not exist"),
    ],
)
def test_a_row_that_cannot_be_written_fails_the_task(
    served: ServedCluster, made: pa.RecordBatch, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write(options(served), made)


# --- options and columns


def schema_of(text: str) -> StructType:
    found = _parse_datatype_string(text)
    assert isinstance(found, StructType)
    return found


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("value binary", "no topic to write to: set the option topic"),
        ("topic string, key binary", "the DataFrame has no column value"),
        ("topic string, value int", "column value has type int, it must be string or binary"),
        ("topic string, value string, key double", "column key has type double"),
        ("topic binary, value string", "column topic has type binary, it must be string"),
        ("topic string, value string, partition bigint", "column partition has type bigint"),
        ("topic string, value string, headers map<string,binary>", "column headers has type map"),
        ("topic string, value string, headers array<struct<key:string,value:string>>", "column headers has type array"),
        ("topic string, value string, timestamp bigint", "column timestamp has type bigint"),
    ],
)
def test_wrong_columns_are_refused(schema: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        check_columns(struct(schema), WriteOptions(("a:1",)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deliveryGuarantee": "twice"}, "deliveryGuarantee must be one of at-least-once, exactly-once"),
        ({"deliveryGuarantee": "exactly-once", "kafka.acks": "1"}, "exactly-once needs paceline.acks=all"),
        ({"txnAppId": "x", "deliveryGuarantee": "exactly-once"}, "txnAppId and txnVersion must be given together"),
        ({"txnAppId": "x", "txnVersion": "0"}, "txnAppId needs deliveryGuarantee=exactly-once"),
        ({"kafka.transactional.id": "x"}, "there are no transactions"),
        ({"kafka.value.serializer": "x"}, "cast the column"),
        ({"topic": "a b"}, "topic: .*a b"),
        ({"topic": "__paceline_staging"}, "topic: __paceline_staging is the staging topic"),
        ({"topic": "mine", "stagingTopic": "mine"}, "topic: mine is the staging topic"),
        ({"paceline.compression.type": "brotli"}, "must be one of none, gzip"),
        ({"subscribe": "t"}, "names topics to read"),
        ({"deliveryGarantee": "x"}, "did you mean 'deliveryGuarantee'"),
    ],
)
def test_wrong_options_are_refused_with_advice(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        parse_write_options({"paceline.bootstrap.servers": "a:1"} | given)


def test_overwriting_is_refused_with_advice() -> None:
    source = PacelineDataSource({"paceline.bootstrap.servers": "a:1", "topic": "t"})
    schema = struct("value binary")
    with pytest.raises(UnsupportedOperationError, match="use mode\\('append'\\)"):
        source.writer(schema, overwrite=True)
    with pytest.raises(UnsupportedOperationError, match="use outputMode\\('append'\\)"):
        source.streamWriter(schema, overwrite=True)


def test_settings_of_kafka_without_a_meaning_are_listed_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    ignored = {"kafka.retries": "3", "kafka.security.protocol": "PLAINTEXT", "kafka.max.request.size": "1"}
    source = PacelineDataSource({"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.client.id": "me"} | ignored)
    assert source.writer(struct("value binary"), overwrite=False)._options.client_id == "me"
    assert [each.getMessage() for each in caplog.records] == [
        "ignoring settings of Kafka that have no meaning here: kafka.max.request.size, kafka.retries, "
        "kafka.security.protocol"
    ]


def test_a_streaming_query_takes_no_application_id() -> None:
    given = {"topic": "t", "deliveryGuarantee": "exactly-once", "txnAppId": "x", "txnVersion": "0"}
    source = PacelineDataSource({"paceline.bootstrap.servers": "a:1"} | given)
    with pytest.raises(InvalidOptionError, match="txnAppId is for batch writes"):
        source.streamWriter(struct("value binary"), overwrite=False)


def test_writers_open_no_connection_and_travel_to_the_executors() -> None:
    source = PacelineDataSource({"paceline.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    pickle.loads(pickle.dumps(source.writer(struct("value binary"), overwrite=False)))
    pickle.loads(pickle.dumps(source.streamWriter(struct("value binary"), overwrite=False)))


# --- brokers that fail


@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.LEADER_NOT_AVAILABLE])
def test_a_retriable_refusal_is_retried_in_order(served: ServedCluster, code: ErrorCode) -> None:
    served.partitions["u", 0].produce_errors = [code, code]
    made = [b"%03d" % n * 20 for n in range(300)]
    write(options(served, topic="u", paceline__batch__size="500"), rows(made))
    assert values(served, "u") == {0: made}


def test_a_moved_leader_is_followed(served: ServedCluster) -> None:
    chosen = options(served, topic="u")
    cluster = chosen.view()
    cluster.describe_topics(["u"])
    served.partitions["u", 0].leader = 2
    write(chosen, rows([b"a"]))
    assert values(served, "u") == {0: [b"a"]}


def test_a_lost_answer_repeats_no_row(served: ServedCluster) -> None:
    served.partitions["u", 0].lost_answers = 1
    made = [b"%03d" % n * 20 for n in range(100)]
    write(options(served, topic="u", paceline__batch__size="500"), rows(made))
    assert values(served, "u") == {0: made}


def test_tasks_of_a_process_share_a_producer_id_until_one_fails(served: ServedCluster) -> None:
    for _ in range(3):
        write(options(served, topic="u"), rows([b"a"]))
    assert served.producer_ids == 1
    served.partitions["u", 0].produce_errors = [ErrorCode.MESSAGE_TOO_LARGE]
    with pytest.raises(MessageTooLargeError):
        write(options(served, topic="u"), rows([b"b"]))
    write(options(served, topic="u"), rows([b"c"]))
    assert served.producer_ids == 2 and values(served, "u") == {0: [b"a", b"a", b"a", b"c"]}


def test_a_final_refusal_fails_the_task(served: ServedCluster) -> None:
    served.partitions["u", 0].produce_errors = [ErrorCode.MESSAGE_TOO_LARGE]
    with pytest.raises(MessageTooLargeError):
        write(options(served, topic="u"), rows([b"a"]))


def test_a_task_that_fails_does_not_wait_for_its_batches(served: ServedCluster) -> None:
    for partition in served.partitions.values():
        partition.produce_errors = [ErrorCode.NOT_ENOUGH_REPLICAS] * 100_000
    chosen = options(served, paceline__delivery__timeout__ms="600000")
    with pytest.raises(InvalidRowError):
        write(chosen, rows([b"x" * 600_000] * 5 + [b"a"], partition=pa.array([0, 0, 1, 1, 1, 7], pa.int32())))
