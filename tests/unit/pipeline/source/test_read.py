"""Reading without Spark, against real gRPC servers that serve the real contract; traps of the data source API."""

import os
import pickle
import threading
import time

import pytest
from pyspark.sql.datasource import InputPartition

from paceline.model.errors import CorruptMessageError, ErrorCode
from paceline.pipeline.data_source import PacelineDataSource
from paceline.pipeline.source.options import parse_batch_options
from paceline.pipeline.source.planning import plan_tasks
from paceline.pipeline.source.range_fetcher import MAX_LEADERS, prefetched
from paceline.pipeline.source.reader import OffsetRangesPartition
from paceline.rpc.memory import keep_freed_memory
from paceline_client import process_channels
from paceline_client.process_channels import channels_of_this_process, close_channels
from tests.support.waiting import eventually
from tests.unit.pipeline import golden
from tests.unit.pipeline.batches import simple_records, to_records
from tests.unit.pipeline.served_log import ServedCluster, ServedPartition
from tests.unit.pipeline.source.reads import fresh_channels, log, offsets, read_all, reader

__all__ = ["fresh_channels"]


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


def test_a_process_that_reads_keeps_the_memory_of_responses() -> None:
    keep_freed_memory.cache_clear()
    with ServedCluster({("t", 0): ServedPartition(log(1))}) as served:
        read_all(reader(served))
    assert keep_freed_memory.cache_info().misses == 1


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
        pytest.raises(CorruptMessageError, match="t/0, batch at offset 10: the checksum differs"),
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
    view = parse_batch_options(source.options).view()
    pickle.loads(pickle.dumps((source, made, view)))
    assert process_channels._channels == {}


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
    process_channels._channels[(os.getpid() + 1, "me", None)] = mine
    del process_channels._channels[(os.getpid(), "me", None)]
    assert channels_of_this_process("me") is not mine
    assert {pid for pid, _, _ in process_channels._channels} == {os.getpid()}


def test_planning_tolerates_a_failed_size_sample() -> None:
    partition = ServedPartition(log(10), errors=[ErrorCode.KAFKA_STORAGE_ERROR])
    with ServedCluster({("t", 0): partition}) as served:
        options = parse_batch_options({"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t"})
        [[only]] = plan_tasks(options, options.view())
        assert only.bytes_per_record == 1024.0
        [[only]] = plan_tasks(options, options.view())
        assert 20 < only.bytes_per_record < 100


def test_the_next_response_is_fetched_while_the_last_is_processed() -> None:
    with ServedCluster({("t", 0): ServedPartition(log(2_000))}) as served:
        options = parse_batch_options(
            {"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t", "paceline.fetch.max.bytes": "5000"}
        )
        cluster = options.view()
        [ranges] = plan_tasks(options, cluster)
        before = len(served.fetches)
        answers = prefetched(cluster, ranges, options)
        next(answers)
        eventually(lambda: len(served.fetches) >= before + 2, 60, "a second fetch was started", pause_s=0.005)
        answers.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("leaders", [2, MAX_LEADERS + 2])
def test_a_task_fetches_from_its_leaders_at_the_same_time(leaders: int) -> None:
    partitions = {("t", number): ServedPartition(log(20), leader=1 + number % leaders) for number in range(12)}
    at_once = min(leaders, MAX_LEADERS)
    with ServedCluster(partitions, brokers=leaders) as served:
        options = parse_batch_options({"paceline.bootstrap.servers": served.bootstrap, "subscribe": "t"})
        cluster = options.view()
        [ranges] = plan_tasks(options, cluster)
        before = len(served.fetches)
        served.hold_fetches = threading.Event()
        answers = prefetched(cluster, ranges, options)
        found: list[int] = []
        reading = threading.Thread(target=lambda: found.extend(int(index.count.sum()) for index in answers))
        reading.start()
        eventually(lambda: len(served.fetches) == before + at_once, 60, "leaders are asked before one has answered")
        served.hold_fetches.set()
        reading.join(60)
        assert len(served.fetches) == before + leaders
        assert found == [240 // leaders] * leaders
