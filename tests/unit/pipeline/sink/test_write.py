"""The writers against brokers over real gRPC, without Spark: routing, columns, both guarantees, drivers that die."""

import pickle
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, _parse_datatype_string

from paceline.model.errors import ErrorCode, MessageTooLargeError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.cluster import Cluster, close_channels
from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.errors import (
    InvalidOptionError,
    InvalidRowError,
    PublishFencedError,
    StagedDataLostError,
    UnsupportedOperationError,
)
from paceline.pipeline.sink import appender as appender_module
from paceline.pipeline.sink import writer as writer_module
from paceline.pipeline.sink.columns import check_columns
from paceline.pipeline.sink.options import WriteOptions, parse_write_options
from paceline.pipeline.sink.publisher import EPOCHS, Publisher, producer_of
from paceline.pipeline.sink.staging import Staged
from paceline.pipeline.sink.writer import TaskWritten, write_task
from paceline_client.partitioner import partition_for_key
from tests.unit.pipeline.batches import decoded
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition

PARTITIONS = 3
STAGING = "__paceline_staging"
VALUE = ("topic", "key", "value", "partition")


@pytest.fixture(autouse=True)
def _fresh_channels() -> Iterator[None]:
    yield
    close_channels()


@pytest.fixture
def every_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send each batch as soon as it is handed over, so that a publish can end between any two appends."""
    monkeypatch.setattr(appender_module, "ROUND_BYTES", 1)


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
        check_columns(_struct(schema), WriteOptions(("a:1",)))


def _struct(text: str) -> StructType:
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deliveryGuarantee": "twice"}, "deliveryGuarantee must be one of at-least-once, exactly-once"),
        ({"deliveryGuarantee": "exactly-once", "kafka.acks": "1"}, "exactly-once needs paceline.acks=all"),
        ({"kafka.transactional.id": "x"}, "there are no transactions"),
        ({"kafka.value.serializer": "x"}, "cast the column"),
        ({"topic": "a b"}, "topic: .*a b"),
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
    schema = _struct("value binary")
    with pytest.raises(UnsupportedOperationError, match="use mode\\('append'\\)"):
        source.writer(schema, overwrite=True)
    with pytest.raises(UnsupportedOperationError, match="use append or update"):
        source.streamWriter(schema, overwrite=True)


def test_writers_open_no_connection_and_travel_to_the_executors() -> None:
    source = PacelineDataSource({"paceline.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    pickle.loads(pickle.dumps(source.writer(_struct("value binary"), overwrite=False)))
    pickle.loads(pickle.dumps(source.streamWriter(_struct("value binary"), overwrite=False)))


# --- brokers that fail


@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.LEADER_NOT_AVAILABLE])
def test_a_retriable_refusal_is_retried_in_order(served: ServedCluster, code: ErrorCode) -> None:
    served.partitions["u", 0].produce_errors = [code, code]
    made = [b"%03d" % n * 20 for n in range(300)]
    write(options(served, topic="u", paceline__batch__size="500"), rows(made))
    assert values(served, "u") == {0: made}


def test_a_moved_leader_is_followed(served: ServedCluster) -> None:
    chosen = options(served, topic="u")
    cluster = Cluster(chosen)
    cluster.describe_topics(["u"])
    served.partitions["u", 0].leader = 2
    write(chosen, rows([b"a"]))
    assert values(served, "u") == {0: [b"a"]}


def test_a_lost_answer_repeats_a_batch_at_least_once_and_keeps_the_order(served: ServedCluster) -> None:
    served.partitions["u", 0].lost_answers = 1
    made = [b"%03d" % n * 20 for n in range(100)]
    write(options(served, topic="u", paceline__batch__size="500"), rows(made))
    [found] = values(served, "u").values()
    assert len(found) > 100
    assert list(dict.fromkeys(found)) == made


def test_a_final_refusal_fails_the_task(served: ServedCluster) -> None:
    served.partitions["u", 0].produce_errors = [ErrorCode.MESSAGE_TOO_LARGE]
    with pytest.raises(MessageTooLargeError):
        write(options(served, topic="u"), rows([b"a"]))


# --- exactly once


def exact(served: ServedCluster) -> WriteOptions:
    return options(served, deliveryGuarantee="exactly-once", paceline__batch__size="300")


def task_rows(first: int, count: int = 30) -> pa.RecordBatch:
    """Rows of 100 bytes with their number, spread over the partitions."""
    made = [b"%08d" % n + b"." * 92 for n in range(first, first + count)]
    return rows(made, partition=pa.array([n % PARTITIONS for n in range(first, first + count)], pa.int32()))


def numbers(served: ServedCluster) -> dict[int, list[int]]:
    return {number: [int((each or b"")[:8]) for each in part] for number, part in values(served).items()}


def of_partitions(count: int) -> dict[int, list[int]]:
    return {number: list(range(number, count, PARTITIONS)) for number in range(PARTITIONS)}


def stage(served: ServedCluster, batch_id: int) -> Staged:
    """Two tasks of a micro-batch of 60 rows."""
    staged: dict[Any, list[Any]] = {}
    for task in range(2):
        message = write(exact(served), task_rows(batch_id * 60 + task * 30))
        assert message.staged is not None
        for tp, places in message.staged.batches.items():
            staged.setdefault(tp, []).extend(places)
    return Staged(staged)


class DriverDiedError(Exception):
    """Ends a publish where a killed driver would end it."""


class DiesAt:
    """Ends the publish before its ``number``-th step."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self.number:
            raise DriverDiedError(name)


def publisher(served: ServedCluster, at_step: Any = lambda _: None) -> Publisher:
    return Publisher(Cluster(exact(served)), exact(served), at_step)


def test_staged_rows_are_not_visible_before_the_commit(served: ServedCluster) -> None:
    staged = stage(served, 0)
    assert numbers(served) == {0: [], 1: [], 2: []}
    done = publisher(served).publish("q", 0, staged)
    assert (done.records, done.appended, done.repeated) == (60, 60, False)
    assert numbers(served) == of_partitions(60)


def test_a_repeated_commit_appends_nothing(served: ServedCluster) -> None:
    staged = stage(served, 0)
    publisher(served).publish("q", 0, staged)
    done = publisher(served).publish("q", 0, stage(served, 0))
    assert (done.records, done.appended, done.repeated) == (60, 0, True)
    assert numbers(served) == of_partitions(60)


STEPS = 35
"""Steps of one publish in these tests, `test_the_kill_matrix_covers_every_step` counts them."""


def test_the_kill_matrix_covers_every_step(served: ServedCluster) -> None:
    steps = DiesAt(0)
    publisher(served, steps).publish("q", 0, stage(served, 0))
    assert len(steps.names) == STEPS
    assert steps.names[:3] == ["list", "decide", "read decision"]
    assert sum(name.startswith("append ") for name in steps.names) > 10


@pytest.mark.usefixtures("every_batch_alone")
@pytest.mark.parametrize("forgets", [False, True], ids=["remembered", "forgotten"])
@pytest.mark.parametrize("number", range(1, STEPS + 1))
def test_a_driver_that_dies_before_any_step_loses_and_repeats_nothing(
    served: ServedCluster, number: int, forgets: bool
) -> None:
    """The next run stages other batches, as after a shuffle; the brokers may have forgotten the producer meanwhile."""
    publisher(served).publish("q", 0, stage(served, 0))
    try:
        publisher(served, DiesAt(number)).publish("q", 1, stage(served, 1))
    except DriverDiedError:
        pass
    if forgets:
        for (topic, _), partition in served.partitions.items():
            if topic == "t":
                partition.producers.clear()
    # Another number of rows per task: other batches, the same rows.
    again: dict[Any, list[Any]] = {}
    for first in range(60, 120, 20):
        message = write(exact(served), task_rows(first, 20))
        assert message.staged is not None
        for tp, places in message.staged.batches.items():
            again.setdefault(tp, []).extend(places)
    done = publisher(served).publish("q", 1, Staged(again))
    assert done.records == 60
    assert numbers(served) == of_partitions(120)
    publisher(served).publish("q", 2, stage(served, 2))
    assert numbers(served) == of_partitions(180)


@pytest.mark.usefixtures("every_batch_alone")
def test_drivers_that_die_one_after_another_lose_and_repeat_nothing(served: ServedCluster) -> None:
    for number in (9, 3, 5, 6, 7, 12, 1, 20, 6):
        with pytest.raises(DriverDiedError):
            publisher(served, DiesAt(number)).publish("q", 0, stage(served, 0))
    publisher(served).publish("q", 0, stage(served, 0))
    assert numbers(served) == of_partitions(60)


def test_lost_answers_of_every_append_repeat_nothing(served: ServedCluster) -> None:
    staged = stage(served, 0)
    for partition in served.partitions.values():
        partition.lost_answers = 2
    publisher(served).publish("q", 0, staged)
    assert numbers(served) == of_partitions(60)


def test_two_drivers_that_decide_publish_the_first_decision(served: ServedCluster) -> None:
    old, new = stage(served, 0), stage(served, 0)
    publisher(served).publish("q", 0, new)
    done = publisher(served).publish("q", 0, old)
    assert done.repeated
    assert numbers(served) == of_partitions(60)


def test_an_old_driver_is_fenced_by_a_later_batch(served: ServedCluster) -> None:
    late = stage(served, 0)
    publisher(served).publish("q", 0, stage(served, 0))
    publisher(served).publish("q", 1, stage(served, 1))
    with pytest.raises(PublishFencedError, match="a later batch of this query has been published"):
        publisher(served).publish("q", 0, late)
    assert numbers(served) == of_partitions(120)


def test_queries_do_not_disturb_each_other(served: ServedCluster) -> None:
    publisher(served).publish("q", 0, stage(served, 0))
    done = publisher(served).publish("other", 0, stage(served, 1))
    assert not done.repeated
    assert numbers(served) == of_partitions(120)


def test_leaders_that_move_during_the_publish_are_followed(served: ServedCluster) -> None:
    def move(name: str) -> None:
        if name in ("decide", "read decision", "append 2", "append 4"):
            for partition in served.partitions.values():
                partition.leader = 3 - (partition.leader or 1)

    publisher(served, move).publish("q", 0, stage(served, 0))
    assert numbers(served) == of_partitions(60)


def test_staged_data_deleted_after_the_decision_is_named(served: ServedCluster) -> None:
    with pytest.raises(DriverDiedError):
        publisher(served, DiesAt(5)).publish("q", 0, stage(served, 0))
    for number in range(2):
        partition = served.partitions[STAGING, number]
        if partition.batches:
            # The decision itself is the last batch of its partition.
            partition.log_start_offset = partition.batches[-1][0]
    with pytest.raises(StagedDataLostError, match="was deleted by retention"):
        publisher(served).publish("q", 0, stage(served, 0))


def test_batch_ids_beyond_an_epoch_get_another_producer_id() -> None:
    first, second = producer_of("q", EPOCHS - 1), producer_of("q", EPOCHS)
    assert first[0] != second[0]
    assert (first[1], second[1]) == (EPOCHS - 1, 0)
    assert producer_of("q", 0)[0] == first[0]
    assert 0 <= first[0] < 1 << 63


# --- commit and abort as Spark calls them


def test_abort_after_a_failed_commit_removes_nothing(served: ServedCluster) -> None:
    source = PacelineDataSource(
        {"paceline.bootstrap.servers": served.bootstrap, "topic": "t", "deliveryGuarantee": "exactly-once"}
    )
    made = source.streamWriter(_struct("value binary, partition int"), overwrite=False)
    messages = [write(exact(served), task_rows(0, 60)), None]
    made.commit(messages, 0)
    made.abort(messages, 0)
    made.abort([None, None], 1)
    assert numbers(served) == of_partitions(60)
    made.commit(messages, 0)
    assert numbers(served) == of_partitions(60)


def test_a_batch_write_publishes_all_or_nothing(served: ServedCluster) -> None:
    source = PacelineDataSource(
        {"paceline.bootstrap.servers": served.bootstrap, "topic": "t", "deliveryGuarantee": "exactly-once"}
    )
    made = source.writer(_struct("value binary, partition int"), overwrite=False)
    copy = pickle.loads(pickle.dumps(made))
    message = copy.write(iter([task_rows(0, 60)]))
    made.abort([message, None])
    assert numbers(served) == {0: [], 1: [], 2: []}
    made.commit([message])
    made.commit([message])
    assert numbers(served) == of_partitions(60)


def test_a_streaming_task_without_a_query_id_cannot_be_exact(
    served: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module.TaskContext, "get", lambda: None)
    made = writer_module.PacelineStreamWriter(exact(served), ("value",))
    with pytest.raises(UnsupportedOperationError, match="no query id"):
        made.write(iter([]))


def test_an_appender_closes_at_once_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that has failed, or that Spark has killed, does not wait for the delivery timeout."""
    monkeypatch.setattr(appender_module, "ROUND_BYTES", 1)
    options = parse_write_options({"paceline.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    assert options.delivery_timeout_ms >= 120_000
    appender: appender_module.BatchAppender[None] = appender_module.BatchAppender(Cluster(options), options)
    appender.append(TopicPartition("t", 0), b"batch", None)
    closing = threading.Thread(target=appender.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()


def test_an_appender_that_closes_cancels_its_calls(served: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender_module, "ROUND_BYTES", 1)
    options = parse_write_options({"paceline.bootstrap.servers": served.bootstrap, "topic": "t"})
    cluster, started = Cluster(options), threading.Event()
    held: Future[Any] = Future()
    monkeypatch.setattr(cluster, "start_produce", lambda *_: started.set() or held)
    appender: appender_module.BatchAppender[None] = appender_module.BatchAppender(cluster, options)
    appender.append(TopicPartition("t", 0), b"batch", None)
    assert started.wait(60)
    closing = threading.Thread(target=appender.close, daemon=True)
    closing.start()
    closing.join(60)
    assert held.cancelled() and not closing.is_alive()
