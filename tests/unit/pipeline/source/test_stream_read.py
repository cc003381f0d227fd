"""The streaming reader against brokers over real gRPC, without Spark: offsets, limits, topics that come and go."""

import json
import pickle
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from paceline.model.errors import ErrorCode, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.errors import DataLossError, InvalidOptionError, UnsupportedOperationError
from paceline.pipeline.source.options import parse_stream_options
from paceline.pipeline.source.stream_offset import StreamOffset
from paceline.pipeline.source.stream_planner import IDLE_POLL_MS, SIZES_VALID_MS, StreamPlanner
from paceline.pipeline.source.stream_reader import PacelineStreamReader
from paceline_client.cluster_view import ClusterView
from paceline_client.process_channels import close_channels
from tests.unit.pipeline.batches import encode, simple_records
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition


@pytest.fixture(autouse=True)
def _fresh_channels() -> Iterator[None]:
    yield
    close_channels()


def log(count: int, first: int = 0, per_batch: int = 10) -> bytes:
    records = simple_records(count, first)
    return b"".join(encode(records[at : at + per_batch]) for at in range(0, count, per_batch))


def part(count: int, first: int = 0, **more: Any) -> ServedPartition:
    return ServedPartition(log(count, first), **more)


def grow(served: ServedCluster, topic: str, partition: int, count: int) -> None:
    """Replace the partition's log by a longer one."""
    served.partitions[topic, partition] = part(count)


def reader(served: ServedCluster, **more: str) -> PacelineStreamReader:
    options = {
        "paceline.bootstrap.servers": served.bootstrap,
        "startingOffsets": "earliest",
        "metadataRefreshMs": "1",
    } | more
    if not {"subscribe", "subscribePattern", "assign"} & set(options):
        options["subscribe"] = "t"
    source = PacelineDataSource(options)
    return source.streamReader(source.schema())


def through_checkpoint(offset: dict[str, Any]) -> dict[str, Any]:
    """Return the offset as Spark hands it back: through JSON text."""
    copy: dict[str, Any] = json.loads(json.dumps(offset))
    return copy


def next_batch(made: PacelineStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Ask for the end of a batch as Spark does and read its tasks through pickle; return the end and what was read."""
    end = made.latestOffset(through_checkpoint(start), made.getDefaultReadLimit())
    return end, read_between(made, start, end)


def read_between(made: PacelineStreamReader, start: dict[str, Any], end: dict[str, Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for task in made.partitions(through_checkpoint(start), through_checkpoint(end)):
        copy: PacelineStreamReader = pickle.loads(pickle.dumps(made))
        for batch in copy.read(pickle.loads(pickle.dumps(task))):
            for topic, partition, offset in zip(
                batch["topic"].to_pylist(), batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True
            ):
                found.setdefault(f"{topic}-{partition}", []).append(offset)
    return found


def ends(offset: dict[str, Any]) -> dict[str, list[int]]:
    return {topic: [at for key, at in by.items() if key != "topicId"] for topic, by in offset.items()}


# --- offsets


def test_offsets_have_kafkas_shape_sorted_and_name_the_topic() -> None:
    partitions = {("t", number): part(10) for number in range(12)} | {("a", 0): part(3)}
    with ServedCluster(partitions) as served:
        made = reader(served, subscribe="t,a")
        end = made.latestOffset(made.initialOffset(), ReadAllAvailable())
        assert list(end) == ["a", "t"]
        assert list(end["t"]) == [*map(str, range(12)), "topicId"]
        assert end["a"] == {"0": 3, "topicId": served.topic_ids["a"]}


def test_an_offset_of_another_source_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="no offsets of the paceline source"):
        StreamOffset.from_json({"logOffset": 3})  # type: ignore[dict-item]


def test_offsets_of_a_progress_can_be_given_as_starting_offsets() -> None:
    with ServedCluster({("t", 0): part(30)}) as served:
        made = reader(served, startingOffsets='{"t": {"0": 12, "topicId": "any"}}')
        assert ends(made.initialOffset()) == {"t": [12]}


# --- where a query starts


def test_initial_offset_is_answered_once_however_often_spark_asks() -> None:
    with ServedCluster({("t", 0): part(10)}) as served:
        made = reader(served, startingOffsets="latest")
        first = made.initialOffset()
        grow(served, "t", 0, 40)
        assert made.initialOffset() == first
        assert ends(first) == {"t": [10]}


def test_a_stream_starts_at_the_end_by_default() -> None:
    with ServedCluster({("t", 0): part(10)}) as served:
        source = PacelineDataSource({"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t"})
        made = source.streamReader(source.schema())
        assert ends(made.initialOffset()) == {"t": [10]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", [4, 0]),
        ("latest", [20, 10]),
        ('{"t": {"0": -1, "1": 3}}', [20, 3]),
        ('{"t": {"0": -2, "1": -1}}', [4, 10]),
    ],
)
def test_starting_offsets_and_marks(text: str, expected: list[int]) -> None:
    with ServedCluster({("t", 0): part(20, log_start_offset=4), ("t", 1): part(10)}) as served:
        assert ends(reader(served, startingOffsets=text).initialOffset()) == {"t": expected}


def test_a_stream_can_start_at_a_time() -> None:
    with ServedCluster({("t", 0): part(30)}) as served:
        time_ms = simple_records(30)[17].timestamp_ms
        assert ends(reader(served, startingTimestamp=str(time_ms)).initialOffset()) == {"t": [17]}


def test_a_start_outside_the_log_is_data_loss_or_the_nearest_place() -> None:
    with ServedCluster({("t", 0): part(30, log_start_offset=10)}) as served:
        text = '{"t": {"0": 3}}'
        with pytest.raises(DataLossError, match="the log has 10 to 30"):
            reader(served, startingOffsets=text).initialOffset()
        assert ends(reader(served, startingOffsets=text, failOnDataLoss="false").initialOffset()) == {"t": [10]}


def test_a_topic_that_does_not_exist_fails_the_start() -> None:
    with ServedCluster({("t", 0): part(1)}) as served, pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        reader(served, subscribe="t,nowhere").initialOffset()


def test_constructors_open_no_connection() -> None:
    source = PacelineDataSource({"paceline.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    pickle.loads(pickle.dumps(source.streamReader(source.schema())))


# --- batches


def test_batches_follow_one_another_without_gap_or_repeat() -> None:
    with ServedCluster({("t", 0): part(10), ("t", 1): part(25)}) as served:
        made = reader(served)
        start = made.initialOffset()
        end, found = next_batch(made, start)
        assert found == {"t-0": list(range(10)), "t-1": list(range(25))}
        grow(served, "t", 0, 40)
        end, found = next_batch(made, end)
        assert found == {"t-0": list(range(10, 40))}
        assert made.latestOffset(end, ReadAllAvailable()) == end


def test_a_batch_of_the_run_before_is_read_again_from_the_checkpoint_alone() -> None:
    with ServedCluster({("t", 0): part(30)}) as served:
        made = reader(served)
        start = made.initialOffset()
        end = made.latestOffset(start, ReadAllAvailable())
        assert read_between(reader(served), start, end) == {"t-0": list(range(30))}


def test_a_batch_of_the_run_before_that_the_log_has_lost_is_data_loss() -> None:
    with ServedCluster({("t", 0): part(30)}) as served:
        made = reader(served)
        start = made.initialOffset()
        end = made.latestOffset(start, ReadAllAvailable())
        grow(served, "t", 0, 20)
        with pytest.raises(DataLossError, match="the batch ends at 30, the log ends at 20"):
            reader(served).partitions(start, end)
        assert read_between(reader(served, failOnDataLoss="false"), start, end) == {"t-0": list(range(20))}


def test_an_empty_batch_has_no_tasks() -> None:
    with ServedCluster({("t", 0): part(30)}) as served:
        made = reader(served, startingOffsets="latest")
        start = made.initialOffset()
        assert made.partitions(start, start) == []


def test_many_partitions_share_few_tasks() -> None:
    with ServedCluster({("t", number): part(10) for number in range(200)}) as served:
        made = reader(served)
        start = made.initialOffset()
        end = made.latestOffset(start, ReadAllAvailable())
        assert len(made.partitions(start, end)) == 1
        assert len(reader(served, minPartitions="5").partitions(start, end)) == 5
        assert len(reader(served, maxRecordsPerPartition="100").partitions(start, end)) == 20


# --- limits


def test_a_maximum_is_shared_in_proportion_and_no_partition_starves() -> None:
    with ServedCluster({("t", 0): part(1_000), ("t", 1): part(100), ("t", 2): part(1)}) as served:
        made = reader(served, maxOffsetsPerTrigger="110")
        limit = made.getDefaultReadLimit()
        assert limit == ReadMaxRows(110)
        assert ends(made.latestOffset(made.initialOffset(), limit)) == {"t": [99, 9, 1]}


def test_a_trigger_that_asks_for_everything_beats_the_options() -> None:
    with ServedCluster({("t", 0): part(100)}) as served:
        made = reader(served, maxOffsetsPerTrigger="7", minOffsetsPerTrigger="5")
        assert ends(made.latestOffset(made.initialOffset(), ReadAllAvailable())) == {"t": [100]}


def test_bytes_limit_a_batch_by_the_size_of_the_records() -> None:
    with ServedCluster({("t", 0): part(1_000)}) as served:
        half = str(len(log(1_000)) // 2)
        made = reader(served, maxBytesPerTrigger=half)
        assert made.getDefaultReadLimit() == ReadMaxBytes(int(half))
        [end] = ends(made.latestOffset(made.initialOffset(), made.getDefaultReadLimit()))["t"]
        assert 450 <= end <= 550


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0
        self.slept_s: list[float] = []

    def __call__(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_ms += round(seconds * 1000)


def planner(served: ServedCluster, clock: Clock, **more: str) -> StreamPlanner:
    options = {"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t", "startingOffsets": "earliest"} | more
    parsed = parse_stream_options(options)
    return StreamPlanner(parsed, parsed.view(), clock, clock.sleep)


def test_bytes_limit_a_batch_with_a_fixed_end_after_leaders_have_moved_too() -> None:
    """No other look-up describes topics then, and a guessed size made the batches of small records far too small."""
    with ServedCluster({("t", 0): part(1_000)}, brokers=2) as served:
        clock = Clock()
        made = planner(served, clock)
        made.prepare_available_now()
        start = made.initial()
        size = len(log(1_000)) // 10
        first = made.latest(start, None, size, None)
        served.partitions["t", 0].leader = 2
        clock.now_ms += SIZES_VALID_MS
        second = made.latest(first, None, size, None)
        served.partitions["t", 0].leader = None
        clock.now_ms += SIZES_VALID_MS
        third = made.latest(second, None, size, None)
    tp = TopicPartition("t", 0)
    counts = [end.offsets[tp] - begin.offsets[tp] for begin, end in pairwise((start, first, second, third))]
    assert all(80 <= count <= 120 for count in counts), counts


def test_too_few_records_wait_for_more_or_for_the_delay() -> None:
    with ServedCluster({("t", 0): part(10)}) as served:
        clock = Clock()
        made = planner(served, clock, minOffsetsPerTrigger="20", maxTriggerDelay="10s")
        start = made.initial()
        first = made.latest(start, None, None, 20)
        assert first.offsets == {("t", 0): 10}
        grow(served, "t", 0, 25)
        clock.now_ms += 9_000
        assert made.latest(first, None, None, 20) is first
        clock.now_ms += 1_000
        second = made.latest(first, None, None, 20)
        assert second.offsets == {("t", 0): 25}
        grow(served, "t", 0, 45)
        clock.now_ms += 500
        assert made.latest(second, None, None, 20).offsets == {("t", 0): 45}


def test_minimum_and_maximum_together() -> None:
    with ServedCluster({("t", 0): part(10)}) as served:
        made = reader(served, minOffsetsPerTrigger="20", maxOffsetsPerTrigger="30")
        assert made.getDefaultReadLimit() == ReadMaxRows(30)
        start, _ = next_batch(made, made.initialOffset())
        grow(served, "t", 0, 25)
        assert next_batch(made, start) == (start, {})
        grow(served, "t", 0, 100)
        assert next_batch(made, start)[1] == {"t-0": list(range(10, 40))}
        assert reader(served, minOffsetsPerTrigger="2").getDefaultReadLimit() == ReadMinRows(2)


def test_an_idle_query_asks_the_brokers_ten_times_a_second() -> None:
    with ServedCluster({("t", 0): part(10)}) as served:
        clock = Clock()
        made = planner(served, clock)
        at = made.latest(made.initial(), None, None, None)
        for _ in range(5):
            at = made.latest(at, None, None, None)
        assert clock.slept_s == [IDLE_POLL_MS / 1000] * 4
        grow(served, "t", 0, 20)
        assert made.latest(at, None, None, None).offsets == {("t", 0): 20}


# --- available now


def test_available_now_ends_at_the_offsets_of_the_start_of_the_query() -> None:
    with ServedCluster({("t", 0): part(100)}) as served:
        made = reader(served, maxOffsetsPerTrigger="40", minOffsetsPerTrigger="30")
        start = made.initialOffset()
        made.prepareForTriggerAvailableNow()
        grow(served, "t", 0, 500)
        sizes = []
        while (end := made.latestOffset(start, made.getDefaultReadLimit())) != start:
            sizes.append(sum(len(each) for each in read_between(made, start, end).values()))
            start = end
        assert sizes == [40, 40, 20]


def test_available_now_reads_nothing_when_records_arrive_before_spark_asks_for_the_start() -> None:
    with ServedCluster({("t", 0): part(100)}) as served:
        made = reader(served, startingOffsets="latest")
        made.prepareForTriggerAvailableNow()  # Spark calls it before initialOffset.
        grow(served, "t", 0, 500)
        start = made.initialOffset()
        assert ends(start) == {"t": [500]}
        assert made.latestOffset(through_checkpoint(start), ReadAllAvailable()) == start


def test_available_now_begins_with_a_partition_that_was_added_before_spark_asks_for_the_start() -> None:
    with ServedCluster({("t", 0): part(10)}) as served:
        made = reader(served, startingOffsets="earliest")
        made.prepareForTriggerAvailableNow()
        served.partitions["t", 1] = part(20)
        start = made.initialOffset()
        assert ends(start) == {"t": [0, 0]}
        assert ends(made.latestOffset(through_checkpoint(start), ReadAllAvailable())) == {"t": [10, 0]}


# --- lag


def test_the_latest_offset_is_reported_whatever_the_limit() -> None:
    with ServedCluster({("t", 0): part(100)}) as served:
        made = reader(served, maxOffsetsPerTrigger="10")
        assert made.reportLatestOffset() is None
        made.latestOffset(made.initialOffset(), made.getDefaultReadLimit())
        latest = made.reportLatestOffset()
        assert latest is not None
        assert ends(latest) == {"t": [100]}


# --- topics and partitions that come and go


def test_a_batch_without_a_limit_has_one_json_form_for_its_end_and_the_latest_offset() -> None:
    with ServedCluster({("t", 0): part(20), ("t", 1): part(10)}) as served:
        made = reader(served)
        end = made.latestOffset(made.initialOffset(), ReadAllAvailable())
        assert made.reportLatestOffset() is end


def test_new_partitions_and_topics_are_read_from_their_beginning() -> None:
    with ServedCluster({("log-a", 0): part(10)}) as served:
        made = reader(served, subscribePattern="log-.*", startingOffsets="latest")
        start = made.initialOffset()
        served.partitions["log-a", 1] = part(7)
        served.topic_ids["log-b"] = "id-of-log-b".ljust(22, "0")
        served.partitions["log-b", 0] = part(5)
        served.topic_ids["other"] = "id-of-other".ljust(22, "0")
        served.partitions["other", 0] = part(5)
        _, found = next_batch(made, start)
        assert found == {"log-a-1": list(range(7)), "log-b-0": list(range(5))}


def test_a_moved_leader_is_found_while_topics_are_not_described_again() -> None:
    partitions = {("t", number): part(10, leader=1) for number in range(3)}
    with ServedCluster(partitions, brokers=2) as served:
        made = reader(served, metadataRefreshMs="3600000")
        start, found = next_batch(made, made.initialOffset())
        assert sum(map(len, found.values())) == 30
        described = len(served.described)
        served.partitions["t", 1] = part(15, leader=2)
        start, found = next_batch(made, start)
        assert found == {"t-1": list(range(10, 15))}
        assert len(served.described) == described + 1
        served.partitions["t", 1] = part(17, leader=2)
        _, found = next_batch(made, start)
        assert found == {"t-1": [15, 16]} and len(served.described) == described + 1


def test_describing_topics_takes_at_most_a_tenth_of_the_time_unless_an_option_says_otherwise() -> None:
    class Clock:
        now_ms = 0

    class SlowView(ClusterView):
        def refresh(self, names: Any, seconds: float | None = None) -> Any:
            Clock.now_ms += 700
            return super().refresh(names, seconds)

    with ServedCluster({("t", 0): part(10)}) as served:
        given = {"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
        for option, after_ms, expected in (("", 6_900, 1), ("", 7_100, 2), ("500", 499, 1), ("500", 501, 2)):
            Clock.now_ms, before = 0, len(served.described)
            options = parse_stream_options(given | ({"metadataRefreshMs": option} if option else {}))
            planner = StreamPlanner(
                options, SlowView(options.bootstrap_servers, client_id="test"), lambda: Clock.now_ms
            )
            start = planner.initial()
            Clock.now_ms += after_ms
            planner.latest(start, None, None, None)
            assert len(served.described) - before == expected, (option, after_ms)


def test_a_new_partition_that_has_lost_its_first_records_is_data_loss() -> None:
    with ServedCluster({("t", 0): part(10)}) as served:
        strict, lenient = reader(served), reader(served, failOnDataLoss="false")
        start, _ = next_batch(strict, strict.initialOffset())
        served.partitions["t", 1] = part(20, log_start_offset=8)
        with pytest.raises(DataLossError, match="starts at offset 8 instead of 0"):
            next_batch(strict, start)
        assert next_batch(lenient, start)[1] == {"t-1": list(range(8, 20))}


@pytest.mark.parametrize("size", [5, 40])
def test_a_re_created_topic_is_data_loss_or_read_from_its_beginning(size: int) -> None:
    with ServedCluster({("t", 0): part(20)}) as served:
        strict, lenient = reader(served), reader(served, failOnDataLoss="false")
        start, _ = next_batch(strict, strict.initialOffset())
        served.topic_ids["t"] = "another-id".ljust(22, "0")
        grow(served, "t", 0, size)
        with pytest.raises(DataLossError, match="deleted and re-created"):
            next_batch(strict, start)
        end, found = next_batch(lenient, start)
        assert found == {"t-0": list(range(size))}
        assert next_batch(lenient, end) == (end, {})


def test_a_deleted_topic_is_data_loss_or_waited_for() -> None:
    with ServedCluster({("t", 0): part(20), ("u", 0): part(5)}) as served:
        strict, lenient = (reader(served, subscribe="t,u", failOnDataLoss=flag) for flag in ("true", "false"))
        start, _ = next_batch(strict, strict.initialOffset())
        kept = served.partitions.pop(("t", 0))
        with pytest.raises(DataLossError, match="t/0 no longer exists"):
            next_batch(strict, start)
        grow(served, "u", 0, 9)
        end, found = next_batch(lenient, start)
        assert found == {"u-0": list(range(5, 9))}
        served.partitions["t", 0] = kept
        assert next_batch(lenient, end) == (end, {})


def test_a_wrong_option_is_raised_by_the_reader_and_not_by_its_creation() -> None:
    """PySpark stops the reader even when none was created, and that hides the error (test_spark_stream_read)."""
    source = PacelineDataSource({"paceline.bootstrap.servers": "a:1", "subscribe": "t", "endingOffsets": "latest"})
    made = source.streamReader(source.schema())
    limit = made.getDefaultReadLimit()
    for call in (made.initialOffset, lambda: made.latestOffset({}, limit), lambda: made.partitions({}, {})):
        with pytest.raises(InvalidOptionError, match="option endingOffsets is refused"):
            call()
    made.stop()


def test_a_partition_that_is_not_subscribed_any_more_is_named_so() -> None:
    with ServedCluster({("t", 0): part(20), ("u", 0): part(5)}) as served:
        start = reader(served, subscribe="t,u").initialOffset()
        with pytest.raises(DataLossError, match="t/0 is not subscribed any more"):
            next_batch(reader(served, subscribe="u"), start)


def test_a_shorter_log_is_data_loss_or_read_from_its_end() -> None:
    with ServedCluster({("t", 0): part(20)}) as served:
        strict, lenient = reader(served), reader(served, failOnDataLoss="false")
        start, _ = next_batch(strict, strict.initialOffset())
        grow(served, "t", 0, 12)
        with pytest.raises(DataLossError, match="read up to 20, the log ends at 12"):
            next_batch(strict, start)
        end, found = next_batch(lenient, start)
        assert (ends(end), found) == ({"t": [12]}, {})
        grow(served, "t", 0, 15)
        assert next_batch(lenient, end)[1] == {"t-0": [12, 13, 14]}


def test_records_deleted_before_they_are_read_are_data_loss_or_skipped() -> None:
    with ServedCluster({("t", 0): part(20)}) as served:
        strict, lenient = reader(served), reader(served, failOnDataLoss="false")
        start = strict.initialOffset()
        served.partitions["t", 0] = part(20, log_start_offset=6)
        with pytest.raises(DataLossError, match="the log starts at 6"):
            next_batch(strict, start)
        assert next_batch(lenient, start)[1] == {"t-0": list(range(6, 20))}


def test_a_moved_leader_is_followed_between_batches() -> None:
    with ServedCluster({("t", 0): part(20)}, brokers=2) as served:
        made = reader(served)
        end, _ = next_batch(made, made.initialOffset())
        served.partitions["t", 0] = part(30, leader=2)
        assert next_batch(made, end)[1] == {"t-0": list(range(20, 30))}


def test_an_error_of_the_broker_is_retried() -> None:
    with ServedCluster({("t", 0): part(20)}) as served:
        made = reader(served)
        start = made.initialOffset()
        end = made.latestOffset(start, ReadAllAvailable())
        tasks = made.partitions(start, end)
        served.partitions["t", 0].errors.append(ErrorCode.LEADER_NOT_AVAILABLE)
        assert sum(batch.num_rows for task in tasks for batch in made.read(task)) == 20


def test_the_driver_is_never_asked_to_read_records_itself() -> None:
    source = PacelineDataSource({"paceline.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    with pytest.raises(UnsupportedOperationError, match="Spark uses streamReader"):
        source.simpleStreamReader(source.schema())
