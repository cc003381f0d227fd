"""Planning of a read: subscriptions, offsets, lost data and filters."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from paceline.model.errors import ErrorCode, UnknownTopicOrPartitionError
from paceline.pipeline.errors import DataLossError, InvalidOptionError
from paceline.pipeline.source.reader import PacelineReader, PushdownReader
from tests.unit.pipeline.batches import simple_records, to_records
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition
from tests.unit.pipeline.source.reads import fresh_channels, log, offsets, read_all, reader

__all__ = ["fresh_channels"]


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
        with pytest.raises(UnknownTopicOrPartitionError, match="orders/5, but orders has 2 partitions"):
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
            InvalidOptionError, match=r"t/0 has no record at or after.*startingOffsetsByTimestampStrategy"
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
        with pytest.raises(InvalidOptionError, match="missing: orders/1"):
            reader(served, subscribe="orders", startingOffsets='{"orders": {"0": 1}}').partitions()
        with pytest.raises(InvalidOptionError, match="not read: orders/2"):
            reader(served, subscribe="orders", endingOffsets='{"orders": {"0": 1, "1": 1, "2": 1}}').partitions()


def test_an_end_before_the_start_is_refused() -> None:
    with (
        ServedCluster({("t", 0): ServedPartition(log(10))}) as served,
        pytest.raises(InvalidOptionError, match="t/0: endingOffsets 3 lies before startingOffsets 5"),
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
        with pytest.raises(DataLossError, match=f"t/0: {says}; set failOnDataLoss to false"):
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
                with pytest.raises(DataLossError, match=f"t/0: {says}"):
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
