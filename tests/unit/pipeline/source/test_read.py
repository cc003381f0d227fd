"""Planning and reading without Spark, against real gRPC servers that serve the real contract."""

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from paceline.model.errors import (
    BrokerNotAvailableError,
    CorruptMessageError,
    ErrorCode,
    LeaderNotAvailableError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.pipeline import cluster as cluster_module
from paceline.pipeline.cluster import Cluster, channels_of_this_process, close_channels
from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.errors import DataLossError, InvalidOptionError
from paceline.pipeline.source.options import parse_batch_options
from paceline.pipeline.source.planning import plan_tasks
from paceline.pipeline.source.range_fetcher import RangeFetcher, prefetched
from paceline.pipeline.source.reader import OffsetRangesPartition, PacelineReader, PushdownReader
from paceline.v1.errors_pb2 import LeaderHint
from tests.unit.pipeline import golden
from tests.unit.pipeline.batches import encode, simple_records, to_records
from tests.unit.pipeline.golden import Expected
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition


@pytest.fixture(autouse=True)
def _fresh_channels() -> Iterator[None]:
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


# --- reading


@pytest.mark.parametrize("name", ["clean/codecs-0", "clean/txn-0", "cleaned/compact_keep-0", "kafka-3.9.1/compact-0"])
def test_kafkas_own_segments_are_read_whole(name: str) -> None:
    with ServedCluster({("t", 0): ServedPartition(golden.partition(name))}) as served:
        assert read_all(reader(served)) == golden.partition_records(name)


def test_many_fetches_and_cut_answers_lose_and_repeat_nothing() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(3_000, per_batch=7))}) as served:
        found = read_all(reader(served, **{"paceline.fetch.max.bytes": "5000"}))
        assert found == simple_records(3_000)
        assert len(served.fetches) > 20


def test_many_partitions_share_few_requests() -> None:
    partitions = {("t", number): ServedPartition(log(20)) for number in range(300)}
    with ServedCluster(partitions) as served:
        made = reader(served)
        [task] = made.partitions()
        planned = len(served.fetches)
        assert sorted(offsets(to_records(made.read(task)))) == sorted(list(range(20)) * 300)
        assert len(served.fetches) - planned <= 3


def test_start_and_end_are_exact_inside_batches() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(100))}) as served:
        found = read_all(reader(served, startingOffsets='{"t": {"0": 13}}', endingOffsets='{"t": {"0": 58}}'))
        assert found == simple_records(45, 13)


def test_nothing_above_the_high_watermark_is_read() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(100), high_watermark=37)}) as served:
        assert offsets(read_all(reader(served))) == list(range(37))


def test_an_offset_range_removed_by_compaction_is_no_loss() -> None:
    data = log(10) + log(10, 50) + log(10, 90)
    with ServedCluster({("t", 0): ServedPartition(data)}) as served:
        whole = offsets(read_all(reader(served)))
        assert whole == [*range(10), *range(50, 60), *range(90, 100)]
        gap = reader(served, startingOffsets='{"t": {"0": 20}}', endingOffsets='{"t": {"0": 40}}')
        assert read_all(gap) == []


def test_only_the_chosen_columns_are_read() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(30))}) as served:
        source = PacelineDataSource(
            {"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t", "columns": "offset,topic"}
        )
        made = source.reader(source.schema())
        [batch] = made.read(made.partitions()[0])
        assert batch.schema.names == ["offset", "topic"]
        assert batch["offset"].to_pylist() == list(range(30))


def test_a_corrupt_batch_fails_the_read_and_names_the_place() -> None:
    data = bytearray(log(20))
    data[-3] ^= 1
    with (
        ServedCluster({("t", 0): ServedPartition(bytes(data))}) as served,
        pytest.raises(CorruptMessageError, match="t-0, batch at offset 10: the checksum differs"),
    ):
        read_all(reader(served))


def test_a_read_that_is_closed_early_ends_the_fetch_in_flight() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(2_000))}) as served:
        made = reader(served, **{"paceline.fetch.max.bytes": "5000"})
        [task] = made.partitions()
        before = threading.active_count()
        rows = made.read(task)
        assert next(rows).num_rows > 0
        served.hold_fetches = threading.Event()
        started = time.monotonic()
        rows.close()  # type: ignore[attr-defined]
        assert time.monotonic() - started < 10
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("paceline-fetch")] == []
        assert threading.active_count() <= before + 3


# --- moving leaders and failing brokers


def test_a_leader_that_moves_during_the_read_is_followed() -> None:
    partition = ServedPartition(log(1_000))
    with ServedCluster({("t", 0): partition}, brokers=2) as served:
        made = reader(served, **{"paceline.fetch.max.bytes": "5000"})
        [task] = made.partitions()
        rows = made.read(task)
        found = to_records([next(rows)])
        partition.leader = 2
        found += to_records(rows)
        assert found == simple_records(1_000)
        assert {1, 2} <= set(served.fetching_brokers)


@pytest.mark.parametrize("gives_hints", [True, False], ids=["with hints", "without hints"])
@pytest.mark.usefixtures("ipv6")
def test_a_leader_that_moves_is_followed_to_an_ipv6_address(gives_hints: bool) -> None:
    partition = ServedPartition(log(1_000))
    with ServedCluster({("t", 0): partition}, brokers=2, host="::1") as served:
        served.gives_hints = gives_hints
        made = reader(served, **{"paceline.fetch.max.bytes": "5000", "kafkaConsumer.pollTimeoutMs": "5000"})
        [task] = made.partitions()
        rows = made.read(task)
        found = to_records([next(rows)])
        lookups = len(served.described)
        partition.leader = 2
        assert found + to_records(rows) == simple_records(1_000)
        assert set(served.fetching_brokers) == {1, 2} and (len(served.described) == lookups) == gives_hints


def test_a_leader_that_moved_after_planning_is_found_without_a_hint() -> None:
    partition = ServedPartition(log(50))
    with ServedCluster({("t", 0): partition}, brokers=2) as served:
        made = reader(served)
        [task] = made.partitions()
        served.gives_hints = False
        partition.leader = 2
        partition.errors = [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH]
        assert to_records(made.read(task)) == simple_records(50)


def test_a_hint_for_an_earlier_topic_of_the_name_is_not_followed() -> None:
    partition = ServedPartition(log(50))
    with ServedCluster({("t", 0): partition}, brokers=2) as served:
        made = reader(served, **{"kafkaConsumer.pollTimeoutMs": "3000"})
        [task] = made.partitions()
        served.false_hint = LeaderHint(leader_id=1, host="127.0.0.1", port=served.ports[1], topic_id="earlier")
        partition.leader = 2
        assert to_records(made.read(task)) == simple_records(50)


@pytest.mark.parametrize("status", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "INTERNAL", "UNKNOWN"])
def test_a_broker_that_fails_is_retried_and_its_successor_found(status: str) -> None:
    partition = ServedPartition(log(50))
    with ServedCluster({("t", 0): partition}, brokers=2) as served:
        made = reader(served)
        [task] = made.partitions()
        served.failing_brokers[1] = grpc.StatusCode[status]
        partition.leader = 2
        assert to_records(made.read(task)) == simple_records(50)


def test_a_status_that_is_not_retriable_ends_the_read_at_once() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(50))}) as served:
        [task] = (made := reader(served)).partitions()
        served.failing_brokers[1] = grpc.StatusCode.PERMISSION_DENIED
        started = time.monotonic()
        with pytest.raises(UnknownServerError, match="t-0 at offset 0: PERMISSION_DENIED"):
            list(made.read(task))
        assert time.monotonic() - started < 10


def test_retries_end_with_the_poll_timeout_and_the_last_cause() -> None:
    partition = ServedPartition(log(50))
    with ServedCluster({("t", 0): partition}) as served:
        made = reader(served, **{"kafkaConsumer.pollTimeoutMs": "600"})
        [task] = made.partitions()
        partition.leader = None
        started = time.monotonic()
        with pytest.raises(LeaderNotAvailableError, match="t-0"):
            list(made.read(task))
        assert 0.3 < time.monotonic() - started < 10


def test_the_poll_timeout_applies_when_every_broker_is_unreachable() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(3_000))}, brokers=2) as served:
        made = reader(served, **{"paceline.fetch.max.bytes": "5000", "kafkaConsumer.pollTimeoutMs": "600"})
        [task] = made.partitions()
        rows = made.read(task)
        assert next(rows).num_rows > 0
    started = time.monotonic()
    with pytest.raises(BrokerNotAvailableError, match=r"127\.0\.0\.1:"):
        list(rows)
    assert time.monotonic() - started < 10


def test_a_read_that_gives_up_names_broker_partition_and_offset() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(50))}) as served:
        made = reader(served, startingOffsets='{"t": {"0": 7}}', **{"kafkaConsumer.pollTimeoutMs": "300"})
        [task] = made.partitions()
        served.failing_brokers[1] = grpc.StatusCode.UNAVAILABLE
        with pytest.raises(BrokerNotAvailableError, match=f"{served.bootstrap}: t-0 at offset 7: .*planned"):
            list(made.read(task))


def test_a_task_that_loses_every_bootstrap_server_asks_the_brokers_found_by_planning() -> None:
    partitions = {("t", number): ServedPartition(log(50)) for number in range(2)}
    with ServedCluster(partitions, brokers=3) as served:
        made = reader(served, **{"kafkaConsumer.pollTimeoutMs": "5000"})
        [task] = made.partitions()
        served.stop(1)
        for partition in partitions.values():
            partition.leader = 2
        assert len(to_records(made.read(pickle.loads(pickle.dumps(task))))) == 100


def test_a_lookup_names_no_more_topics_than_a_broker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "MAX_NAMES_PER_LOOKUP", 3)
    partitions = {(f"t{number}", 0): ServedPartition(log(5)) for number in range(8)}
    with ServedCluster(partitions) as served:
        names = ",".join(topic for topic, _ in partitions)
        assert len(read_all(reader(served, subscribe=names))) == 40
        assert max(len(asked) for asked in served.described) == 3


def test_an_unreachable_cluster_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "METADATA_DEADLINE_MS", 500)
    source = PacelineDataSource({"paceline.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    with pytest.raises(BrokerNotAvailableError, match=r"127\.0\.0\.1:1"):
        source.reader(source.schema()).partitions()


def test_a_server_that_hangs_does_not_hide_why_the_others_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "METADATA_DEADLINE_MS", 500)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:1,127.0.0.1:{silent.getsockname()[1]}"
        source = PacelineDataSource({"paceline.bootstrap.servers": servers, "subscribe": "t"})
        with pytest.raises(BrokerNotAvailableError, match=r"127\.0\.0\.1:1: "):
            source.reader(source.schema()).partitions()


def test_a_dead_bootstrap_server_is_skipped() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(5))}) as served:
        made = reader(served, **{"paceline.bootstrap.servers": f"127.0.0.1:1,{served.bootstrap}"})
        assert read_all(made) == simple_records(5)


def test_planning_waits_for_an_election() -> None:
    partition = ServedPartition(log(5), leader=None)
    with ServedCluster({("t", 0): partition}) as served:
        timer = threading.Timer(0.3, lambda: setattr(partition, "leader", 1))
        timer.start()
        try:
            assert read_all(reader(served)) == simple_records(5)
        finally:
            timer.join()


# --- subscriptions


def two_topics() -> dict[tuple[str, int], ServedPartition]:
    return {
        ("orders", 0): ServedPartition(log(10)),
        ("orders", 1): ServedPartition(log(10)),
        ("orders-eu", 0): ServedPartition(log(10)),
        ("__consumer_offsets", 0): ServedPartition(log(10)),
    }


def planned(made: PacelineReader) -> list[tuple[str, int, int, int]]:
    ranges = [each for part in made.partitions() for each in part.ranges]
    return sorted((each.topic, each.partition, each.start, each.end) for each in ranges)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": "orders,orders-eu"}, [("orders", 0), ("orders", 1), ("orders-eu", 0)]),
        ({"subscribePattern": "orders"}, [("orders", 0), ("orders", 1)]),
        ({"subscribePattern": ".*eu"}, [("orders-eu", 0)]),
        ({"subscribePattern": ".*"}, [("orders", 0), ("orders", 1), ("orders-eu", 0)]),
        ({"subscribePattern": "__.*"}, [("__consumer_offsets", 0)]),
        ({"subscribePattern": "nothing"}, []),
        ({"assign": '{"orders": [1], "orders-eu": [0]}'}, [("orders", 1), ("orders-eu", 0)]),
    ],
    ids=str,
)
def test_subscriptions_choose_partitions(given: dict[str, str], expected: list[tuple[str, int]]) -> None:
    with ServedCluster(two_topics()) as served:
        assert planned(reader(served, **given)) == [(topic, number, 0, 10) for topic, number in expected]


def test_a_missing_topic_or_partition_is_named() -> None:
    with ServedCluster(two_topics()) as served:
        with pytest.raises(UnknownTopicOrPartitionError, match="topic payments does not exist"):
            reader(served, subscribe="orders,payments").partitions()
        with pytest.raises(UnknownTopicOrPartitionError, match="orders-5, but orders has 2 partitions"):
            reader(served, assign='{"orders": [5]}').partitions()


# --- offsets


def test_marks_and_times_become_offsets() -> None:
    # Record n was written at 1000 + n milliseconds.
    with ServedCluster({("t", 0): ServedPartition(log(100), log_start_offset=20)}) as served:
        cases: list[tuple[dict[str, str], tuple[int, int]]] = [
            ({}, (20, 100)),
            ({"startingOffsets": '{"t": {"0": -2}}', "endingOffsets": '{"t": {"0": -1}}'}, (20, 100)),
            ({"startingTimestamp": "1030"}, (30, 100)),
            ({"startingTimestamp": "5"}, (20, 100)),
            ({"startingOffsetsByTimestamp": '{"t": {"0": 1040}}', "endingTimestamp": "1050"}, (40, 50)),
            ({"endingOffsetsByTimestamp": '{"t": {"0": 9999}}'}, (20, 100)),
        ]
        for given, (start, end) in cases:
            assert planned(reader(served, **given)) == [("t", 0, start, end)], given


def test_a_time_after_the_last_record_is_an_error_unless_allowed() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(10))}) as served:
        with pytest.raises(
            InvalidOptionError, match=r"t-0 has no record at or after.*startingOffsetsByTimestampStrategy"
        ):
            reader(served, startingTimestamp="99999").partitions()
        lenient = reader(served, startingTimestamp="99999", startingOffsetsByTimestampStrategy="latest")
        assert lenient.partitions() == []


def test_a_time_found_among_records_newer_than_the_plan_is_no_loss() -> None:
    """Ends are asked for first and times after; meanwhile records are written."""
    for given, expected in (("endingTimestamp", [("t", 0, 0, 40)]), ("startingTimestamp", [])):
        partition = GrowingPartition(log(100), high_watermark=40)
        with ServedCluster({("t", 0): partition}) as served:
            assert planned(reader(served, **{given: "1050"})) == expected
            assert partition.high_watermark == 100


class GrowingPartition(ServedPartition):
    """A partition whose records are committed when an offset is looked up by time."""

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        self.high_watermark = self.batches[-1][0] + 1
        return super().offset_for_time(timestamp_ms)


def test_json_offsets_must_name_every_partition_and_no_other() -> None:
    with ServedCluster(two_topics()) as served:
        with pytest.raises(InvalidOptionError, match="missing: orders-1"):
            reader(served, subscribe="orders", startingOffsets='{"orders": {"0": 1}}').partitions()
        with pytest.raises(InvalidOptionError, match="not read: orders-2"):
            reader(served, subscribe="orders", endingOffsets='{"orders": {"0": 1, "1": 1, "2": 1}}').partitions()


def test_an_end_before_the_start_is_refused() -> None:
    with (
        ServedCluster({("t", 0): ServedPartition(log(10))}) as served,
        pytest.raises(InvalidOptionError, match="t-0: endingOffsets 3 lies before startingOffsets 5"),
    ):
        reader(served, startingOffsets='{"t": {"0": 5}}', endingOffsets='{"t": {"0": 3}}').partitions()


# --- lost data


@pytest.mark.parametrize(
    ("start", "end", "says", "left"),
    [
        (5, 50, "offsets 5 to 19 were deleted, the log starts at 20", range(20, 50)),
        (200, 300, "the read starts at 200, the log ends at 100", range(0)),
        (50, 150, "the read ends at 150, the log ends at 100", range(50, 100)),
    ],
)
def test_lost_offsets_are_an_error_at_planning_unless_allowed(start: int, end: int, says: str, left: range) -> None:
    asked = {"startingOffsets": f'{{"t": {{"0": {start}}}}}', "endingOffsets": f'{{"t": {{"0": {end}}}}}'}
    with ServedCluster({("t", 0): ServedPartition(log(100), log_start_offset=20)}) as served:
        with pytest.raises(DataLossError, match=f"t-0: {says}; set failOnDataLoss to false"):
            reader(served, **asked).partitions()
        assert offsets(read_all(reader(served, failOnDataLoss="false", **asked))) == list(left)


def trimmed(partition: ServedPartition) -> None:
    partition.log_start_offset = 60


def truncated(partition: ServedPartition) -> None:
    partition.high_watermark = 0


@pytest.mark.parametrize(
    ("happens", "says", "left"),
    [
        (trimmed, "offsets 10 to 59 were deleted, the log starts at 60", range(60, 100)),
        (truncated, "offset 10 does not exist, the log ends at 0", range(0)),
    ],
)
def test_records_lost_after_planning_are_an_error_in_the_task_unless_allowed(
    happens: Callable[[ServedPartition], None], says: str, left: range
) -> None:
    for allowed in (False, True):
        partition = ServedPartition(log(100))
        with ServedCluster({("t", 0): partition}) as served:
            made = reader(served, startingOffsets='{"t": {"0": 10}}', failOnDataLoss=str(not allowed))
            [task] = made.partitions()
            happens(partition)
            if allowed:
                assert offsets(to_records(made.read(task))) == list(left)
            else:
                with pytest.raises(DataLossError, match=f"t-0: {says}"):
                    list(made.read(task))


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_after_planning_is_lost_even_when_re_created(again: bool) -> None:
    for allowed in (False, True):
        with ServedCluster({("t", 0): ServedPartition(log(100))}) as served:
            made = reader(served, failOnDataLoss=str(not allowed))
            [task] = made.partitions()
            if again:
                served.topic_ids["t"] = "another".ljust(22, "1")
            else:
                served.partitions.clear()
            if allowed:
                assert list(made.read(task)) == []
            else:
                with pytest.raises(DataLossError, match="deleted and re-created" if again else "no longer exists"):
                    list(made.read(task))


def test_a_broker_that_still_has_an_earlier_topic_of_the_name_is_asked_again() -> None:
    partition = ServedPartition(log(50))
    with ServedCluster({("t", 0): partition}) as served:
        made = reader(served)
        [task] = made.partitions()
        partition.errors = [ErrorCode.INCONSISTENT_TOPIC_ID]
        assert to_records(made.read(task)) == simple_records(50)


# --- push-down


def pushed(
    served: ServedCluster, *filters: object, **more: str
) -> tuple[list[object], list[tuple[str, int, int, int]]]:
    made = reader(served, pushdown="true", **more)
    assert isinstance(made, PushdownReader)
    left = list(made.pushFilters(list(filters)))
    return left, planned(made)


def test_exact_filters_become_seek_positions_and_are_not_left_to_spark() -> None:
    with ServedCluster(two_topics()) as served:
        everything = {"subscribe": "orders,orders-eu"}
        left, plan = pushed(
            served,
            IsNotNull(("topic",)),
            EqualTo(("topic",), "orders"),
            In(("partition",), (1, 5)),
            GreaterThan(("offset",), 2),
            LessThanOrEqual(("offset",), 7),
            **everything,
        )
        assert (left, plan) == ([], [("orders", 1, 3, 8)])
        left, plan = pushed(
            served,
            In(("topic",), ("orders-eu", "x")),
            LessThan(("partition",), 1),
            GreaterThanOrEqual(("offset",), 4),
            LessThan(("offset",), 6),
            **everything,
        )
        assert (left, plan) == ([], [("orders-eu", 0, 4, 6)])
        assert pushed(served, EqualTo(("offset",), 3), EqualTo(("offset",), 4), **everything) == ([], [])


def test_a_time_only_moves_the_start_and_stays_with_spark() -> None:
    since = GreaterThan(("timestamp",), datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1030, microseconds=7))
    until = LessThan(("timestamp",), datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1050))
    with ServedCluster({("t", 0): ServedPartition(log(100))}) as served:
        assert pushed(served, since, until) == ([since, until], [("t", 0, 30, 100)])
        never = GreaterThan(("timestamp",), datetime(2100, 1, 1, tzinfo=UTC))
        assert pushed(served, never) == ([never], [])


def test_other_filters_are_left_to_spark() -> None:
    others = [
        EqualTo(("value",), b"x"),
        StringStartsWith(("topic",), "or"),
        IsNotNull(("key",)),
        EqualTo(("topic",), 5),
    ]
    with ServedCluster({("t", 0): ServedPartition(log(10))}) as served:
        assert pushed(served, *others) == (others, [("t", 0, 0, 10)])


# --- traps of the data source API


def test_without_the_option_the_reader_does_not_override_push_filters() -> None:
    """Spark refuses a reader that overrides ``pushFilters`` while its setting is off."""
    from pyspark.sql.datasource import DataSourceReader

    with ServedCluster({("t", 0): ServedPartition(log(10))}) as served:
        assert reader(served).pushFilters.__func__ is DataSourceReader.pushFilters  # type: ignore[attr-defined]
        assert reader(served, pushdown="true").pushFilters.__func__ is not DataSourceReader.pushFilters  # type: ignore[attr-defined]


def test_constructors_open_no_connection() -> None:
    """Spark builds source and reader in several processes. No server listens on port 1."""
    close_channels()
    source = PacelineDataSource({"paceline.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    made = source.reader(source.schema())
    Cluster(parse_batch_options(source.options))
    pickle.loads(pickle.dumps((source, made)))
    assert cluster_module._channels == {}


def test_the_partition_spark_makes_of_an_empty_plan_reads_nothing() -> None:
    with ServedCluster({("t", 0): ServedPartition(b"")}) as served:
        made = reader(served)
        assert made.partitions() == []
        assert list(made.read(InputPartition(None))) == []
        assert list(made.read(OffsetRangesPartition([]))) == []


def test_channels_of_another_process_are_never_used() -> None:
    """gRPC does not survive a fork."""
    mine = channels_of_this_process("me")
    assert channels_of_this_process("me") is mine
    cluster_module._channels[(os.getpid() + 1, "me", None)] = mine
    del cluster_module._channels[(os.getpid(), "me", None)]
    assert channels_of_this_process("me") is not mine
    assert {pid for pid, _, _ in cluster_module._channels} == {os.getpid()}


def test_planning_tolerates_a_failed_size_sample() -> None:
    partition = ServedPartition(log(10), errors=[ErrorCode.KAFKA_STORAGE_ERROR])
    with ServedCluster({("t", 0): partition}) as served:
        options = parse_batch_options({"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t"})
        [[only]] = plan_tasks(options, Cluster(options))
        assert only.bytes_per_record == 1024.0
        [[only]] = plan_tasks(options, Cluster(options))
        assert 20 < only.bytes_per_record < 100


def test_the_next_response_is_fetched_while_the_last_is_processed() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(2_000))}) as served:
        options = parse_batch_options(
            {"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t", "paceline.fetch.max.bytes": "5000"}
        )
        cluster = Cluster(options)
        [ranges] = plan_tasks(options, cluster)
        before = len(served.fetches)
        answers = prefetched(RangeFetcher(cluster, ranges, options))
        next(answers)
        deadline = time.monotonic() + 60
        while len(served.fetches) < before + 2:
            assert time.monotonic() < deadline, "no second fetch was started"
            time.sleep(0.005)
        answers.close()  # type: ignore[attr-defined]
