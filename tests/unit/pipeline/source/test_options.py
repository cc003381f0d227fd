"""Options: Kafka's names, checked before anything connects, with errors that say what to do."""

import pickle
from pathlib import Path

import pytest

from paceline.model.errors import InvalidConfigError
from paceline.model.identifiers import TopicPartition
from paceline.model.tls import TlsFiles
from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.errors import InvalidOptionError
from paceline.pipeline.source.offset_specs import AtOffsets, AtTimestamp, AtTimestamps, Earliest, Latest
from paceline.pipeline.source.options import (
    BATCH_ONLY,
    KNOWN,
    STREAM_ONLY,
    ReadOptions,
    parse_batch_options,
    parse_schema_options,
    parse_stream_options,
)

MINIMAL = {"paceline.bootstrap.servers": "a:1", "subscribe": "t"}


def parsed(**more: str) -> ReadOptions:
    return parse_batch_options(MINIMAL | {name.replace("__", "."): value for name, value in more.items()})


def test_the_least_that_must_be_given() -> None:
    options = parsed()
    assert options.bootstrap_servers == ("a:1",)
    assert options.subscription.topics == ("t",)
    assert (options.starting, options.ending) == (Earliest(), Latest())
    assert options.fail_on_data_loss
    assert options.max_tasks == 8
    assert options.target_task_bytes == 64 * 1024 * 1024
    assert options.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def test_options_travel_to_the_executors() -> None:
    options = parsed(startingOffsets='{"t": {"0": 3}}', endingTimestamp="5")
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_are_compared_without_case_and_kafka_is_an_alias() -> None:
    options = parse_batch_options({"KAFKA.Bootstrap.Servers": " b:2 , c:3,", "SUBSCRIBE": "u, t,u", "maxtasks": "3"})
    assert options.bootstrap_servers == ("b:2", "c:3")
    assert options.subscription.topics == ("t", "u")
    assert options.max_tasks == 3


def test_the_alias_may_repeat_a_value_but_not_contradict_it() -> None:
    assert parse_batch_options(MINIMAL | {"kafka.bootstrap.servers": "a:1"}).bootstrap_servers == ("a:1",)
    with pytest.raises(InvalidOptionError, match="given twice"):
        parse_batch_options(MINIMAL | {"kafka.bootstrap.servers": "b:1"})


def test_every_documented_option_is_accepted() -> None:
    values = {
        "paceline.bootstrap.servers": "a:1",
        "paceline.ssl.ca.file": "/certs/ca.crt",
        "paceline.ssl.certificate.file": "/certs/client.crt",
        "paceline.ssl.key.file": "/certs/client.key",
        "paceline.fetch.max.bytes": "1048576",
        "paceline.isolation.level": "read_uncommitted",
        "subscribe": "t",
        "startingOffsets": '{"t": {"0": -2}}',
        "endingOffsets": '{"t": {"0": -1}}',
        "startingTimestamp": "1",
        "endingTimestamp": "2",
        "startingOffsetsByTimestamp": '{"t": {"0": 1}}',
        "endingOffsetsByTimestamp": '{"t": {"0": 1}}',
        "startingOffsetsByTimestampStrategy": "latest",
        "failOnDataLoss": "FALSE",
        "includeHeaders": "true",
        "columns": "Value,headers",
        "pushdown": "true",
        "minPartitions": "3",
        "maxRecordsPerPartition": "4",
        "maxTasks": "5",
        "targetTaskBytes": "6",
        "groupIdPrefix": "me",
        "kafkaConsumer.pollTimeoutMs": "7",
        "fetchOffset.numRetries": "0",
        "fetchOffset.retryIntervalMs": "9",
    }
    assert set(values) | {"subscribePattern", "assign", *STREAM_ONLY} == set(KNOWN)
    options = parse_batch_options(values)
    assert options == ReadOptions(
        ("a:1",),
        options.subscription,
        AtTimestamp("startingTimestamp", 1),
        AtTimestamp("endingTimestamp", 2),
        True,
        False,
        ("value", "headers"),
        True,
        3,
        4,
        5,
        6,
        1_048_576,
        "me",
        7,
        0,
        9,
        tls=TlsFiles(Path("/certs/ca.crt"), Path("/certs/client.crt"), Path("/certs/client.key")),
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "none is"),
        ({"subscribe": "t", "assign": '{"t": [0]}'}, "subscribe and assign are"),
        ({"subscribe": "t", "subscribePattern": "t", "assign": '{"t": [0]}'}, "subscribePattern and assign are"),
    ],
)
def test_exactly_one_way_to_name_topics_must_be_given(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"exactly one of subscribe, subscribePattern and assign.*{says}"):
        parse_batch_options({"paceline.bootstrap.servers": "a:1"} | given)


def test_a_pattern_and_an_assignment_are_understood() -> None:
    servers = {"kafka.bootstrap.servers": "a:1"}
    assert parse_batch_options(servers | {"subscribePattern": "order.*"}).subscription.pattern == "order.*"
    assigned = parse_batch_options(servers | {"assign": '{"b": [1, 0, 1], "a": [2]}'}).subscription.partitions
    assert assigned == (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("paceline.bootstrap.server", "paceline.bootstrap.servers"),
        ("kafka.bootstrapservers", "paceline.bootstrap.servers"),
        ("startingOffset", "startingOffsets"),
        ("fail_on_data_loss", "failOnDataLoss"),
        ("maxTask", "maxTasks"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"unknown option '{name}'; did you mean '{nearest}'"):
        parse_batch_options(MINIMAL | {name: "x"})


def test_settings_of_kafka_without_a_meaning_are_listed_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    ignored = {"kafka.client.id": "me", "kafka.fetch.min.bytes": "1", "kafka.security.protocol": "plaintext"}
    PacelineDataSource(MINIMAL | ignored).schema()
    assert [each.getMessage() for each in caplog.records] == [
        "ignoring settings of Kafka that have no meaning here: kafka.client.id, kafka.fetch.min.bytes, "
        "kafka.security.protocol"
    ]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("kafka.auto.offset.reset", "use startingOffsets"),
        ("paceline.auto.offset.reset", "use startingOffsets"),
        ("kafka.key.deserializer", "cast the column"),
        ("kafka.value.deserializer", "cast the column"),
        ("kafka.enable.auto.commit", "commits no offsets"),
        ("kafka.interceptor.classes", "transform the DataFrame"),
        ("kafka.security.protocol", "paceline.ssl.ca.file"),
        ("kafka.ssl.truststore.location", "paceline.ssl.ca.file"),
        ("maxOffsetsPerTrigger", "streaming"),
        ("path", "subscribe"),
    ],
)
def test_a_refused_option_comes_with_advice(name: str, advice: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{name} is refused: .*{advice}"):
        parse_batch_options(MINIMAL | {name: "x"})


def test_a_table_in_the_catalog_is_refused_with_advice() -> None:
    """Spark 4.3 passes these options to CREATE TABLE, but passes no options to SELECT from that table."""
    added = {"foo": "bar", "option.subscribe": "t", "owner": "me", "provider": "paceline", "comment": "c"}
    with pytest.raises(InvalidOptionError, match=r"CREATE TABLE is refused.*CREATE TEMPORARY VIEW"):
        parse_batch_options(added | MINIMAL)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("paceline__bootstrap__servers", "", "must be given"),
        ("paceline__bootstrap__servers", "localhost", "not host:port"),
        ("paceline__bootstrap__servers", "a:1,b:99999", "'b:99999' is not host:port"),
        ("paceline__bootstrap__servers", "::1:9092", "'::1:9092' is not host:port"),
        ("paceline__isolation__level", "read_committed", "transactions"),
        ("paceline__isolation__level", "dirty", "read_uncommitted, read_committed"),
        ("paceline__fetch__max__bytes", "99999999999", "1 to 33554432"),
        ("subscribe", " , ", "names no topic"),
        ("subscribe", "a/b", "characters other than"),
        ("startingOffsets", "latest", "may not be 'latest' in a batch query"),
        ("endingOffsets", "earliest", "may not be 'earliest' in a batch query"),
        ("startingOffsets", '{"t": {"0": -1}}', "t/0 may not be -1"),
        ("endingOffsets", '{"t": {"0": -2}}', "t/0 may not be -2"),
        ("startingOffsets", "newest", "not JSON"),
        ("startingOffsets", '{"t": [1]}', "object of partitions"),
        ("startingOffsets", '{"t": {"0": -3}}', "not a partition and its value"),
        ("startingOffsets", '{"t": {"x": 3}}', "not a partition and its value"),
        ("startingOffsets", '{"t": {"0": true}}', "not a partition and its value"),
        ("startingTimestamp", "yesterday", "milliseconds"),
        ("endingTimestamp", "-4", "milliseconds"),
        ("startingOffsetsByTimestamp", '{"t": {"0": -1}}', "not a partition and its value"),
        ("startingOffsetsByTimestampStrategy", "skip", "error, latest"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("minPartitions", "0", "1 to 2147483647"),
        ("maxTasks", "many", "whole number"),
        ("startingTimestamp", "9" * 30, "milliseconds"),
        ("endingTimestamp", "9" * 5_000, "milliseconds"),
        ("startingOffsetsByTimestamp", '{"t": {"0": 9223372036854775808}}', "not a partition and its value"),
        ("startingOffsets", '{"t": {"0": 9223372036854775808}}', "not a partition and its value"),
        ("startingOffsets", '{"t": {"%s": 1}}' % ("9" * 5_000), "not a partition and its value"),
        ("startingOffsets", '{"t": {"0": 1, "00": 2}}', "t/0 is named twice"),
        ("startingOffsets", '{"t": {"0": 1, "0": 2}}', "'0' is named twice"),
        ("startingOffsets", '{"t": {"0": 1}, "t": {"1": 2}}', "'t' is named twice"),
        ("startingOffsets", "[" * 100_000, "not JSON"),
        ("kafkaConsumer__pollTimeoutMs", "9" * 30, "1 to 9223372036854775807"),
        ("targetTaskBytes", "9" * 400, "1 to 9223372036854775807"),
        ("minPartitions", "2147483648", "1 to 2147483647"),
        ("maxTasks", "9" * 400, "1 to 2147483647"),
        ("maxRecordsPerPartition", "9" * 400, "1 to 9223372036854775807"),
        ("fetchOffset__numRetries", "9" * 400, "0 to 2147483647"),
        ("columns", "vlaue", "did you mean 'value'"),
        ("columns", "key,key", "each once"),
        ("columns", ",", "at least one"),
    ],
)
def test_a_malformed_value_is_an_error_that_names_the_option(name: str, value: str, says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says) as caught:
        parsed(**{name: value})
    assert name.replace("__", ".") in str(caught.value)
    assert isinstance(caught.value, InvalidConfigError)


@pytest.mark.parametrize("text", ["[0]", '{"t": 0}', '{"t": [-1]}', '{"t": ["0"]}', "{}", '{"t": []}', "t:0"])
def test_a_malformed_assignment_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="assign"):
        parse_batch_options({"paceline.bootstrap.servers": "a:1", "assign": text})


def test_a_broken_pattern_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="subscribePattern"):
        parse_batch_options({"paceline.bootstrap.servers": "a:1", "subscribePattern": "a("})


def test_the_more_exact_start_and_end_win_as_in_spark() -> None:
    by_time = '{"t": {"0": 5}}'
    options = parsed(startingOffsets="earliest", startingOffsetsByTimestamp=by_time, endingOffsetsByTimestamp=by_time)
    assert options.starting == AtTimestamps("startingOffsetsByTimestamp", {TopicPartition("t", 0): 5})
    assert options.ending == AtTimestamps("endingOffsetsByTimestamp", {TopicPartition("t", 0): 5})
    assert parsed(startingOffsetsByTimestamp=by_time, startingTimestamp="7").starting == AtTimestamp(
        "startingTimestamp", 7
    )


def test_json_offsets_keep_the_marks_for_earliest_and_latest() -> None:
    options = parsed(startingOffsets='{"t": {"1": 7, "0": -2}}', endingOffsets='{"t": {"0": 9, "1": -1}}')
    assert options.starting == AtOffsets("startingOffsets", {TopicPartition("t", 0): -2, TopicPartition("t", 1): 7})
    assert options.ending == AtOffsets("endingOffsets", {TopicPartition("t", 0): 9, TopicPartition("t", 1): -1})


def test_start_end_and_assign_must_name_the_same_partitions() -> None:
    with pytest.raises(InvalidOptionError, match="only one of them names t/1"):
        parsed(startingOffsets='{"t": {"0": 1}}', endingOffsets='{"t": {"0": 1, "1": 2}}')
    with pytest.raises(InvalidOptionError, match="only one of them names t/1"):
        parse_batch_options(
            {"paceline.bootstrap.servers": "a:1", "assign": '{"t": [0, 1]}', "startingOffsets": '{"t": {"0": 1}}'}
        )


def test_headers_come_when_asked_for() -> None:
    assert parsed(includeHeaders="true").columns[-1] == "headers"
    assert parsed(columns="headers").columns == ("headers",)
    with pytest.raises(InvalidOptionError, match="includeHeaders is false"):
        parsed(columns="headers", includeHeaders="false")


def test_every_option_of_a_stream_is_accepted() -> None:
    options = parse_stream_options(
        MINIMAL
        | {
            "startingOffsets": "latest",
            "maxOffsetsPerTrigger": "100",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2m",
            "maxBytesPerTrigger": "1000",
            "metadataRefreshMs": "50",
        }
    )
    assert options.starting == Latest()
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (100, 10)
    assert (options.max_trigger_delay_ms, options.max_bytes_per_trigger) == (120_000, 1000)
    assert options.metadata_refresh_ms == 50


def test_a_stream_starts_at_the_end_by_default_and_holds_back_for_a_quarter_of_an_hour() -> None:
    options = parse_stream_options(MINIMAL)
    assert (options.starting, options.max_trigger_delay_ms) == (Latest(), 900_000)


@pytest.mark.parametrize("name", BATCH_ONLY)
def test_a_stream_has_no_options_of_a_batch(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{name} is refused: a streaming query does not have it"):
        parse_stream_options(MINIMAL | {name: "latest"})


@pytest.mark.parametrize("name", STREAM_ONLY)
def test_a_batch_has_no_options_of_a_stream(name: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{name} is refused: only a streaming query has it"):
        parse_batch_options(MINIMAL | {name: "1"})


def test_a_minimum_above_the_maximum_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="minOffsetsPerTrigger 5 is above maxOffsetsPerTrigger 4"):
        parse_stream_options(MINIMAL | {"maxOffsetsPerTrigger": "4", "minOffsetsPerTrigger": "5"})


def test_the_schema_is_known_before_the_kind_of_query() -> None:
    assert parse_schema_options(MINIMAL | {"startingOffsets": "latest", "columns": "value"}).columns == ("value",)
    assert parse_schema_options(MINIMAL | {"endingOffsets": "latest", "columns": "value"}).columns == ("value",)
    with pytest.raises(InvalidOptionError, match="exactly one of subscribe"):
        parse_schema_options({"paceline.bootstrap.servers": "a:1"})
