"""Positions of a consumer: seeks, resets, look-ups, truncated logs and re-created topics."""

import threading
import time
from collections.abc import Callable

import pytest

from paceline.model.errors import (
    InvalidRequestError,
    PacelineError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline_client import Consumer, LogTruncatedError, NoOffsetError
from tests.integration.client_clusters import ONE, consumer_cluster, read, write
from tests.integration.fake_cluster import FakeCluster, wait_for

__all__ = ["consumer_cluster"]


def test_seek_goes_back_and_forth_even_within_a_batch(cluster: FakeCluster) -> None:
    write(cluster, *[b"%d" % n for n in range(10)])
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        assert len(read(consumer, 10)) == 10
        consumer.seek(ONE, 7)
        assert [record.offset for record in read(consumer, 3)] == [7, 8, 9]
        consumer.seek_to_beginning()
        assert read(consumer, 10)[0].offset == 0
        consumer.seek_to_end()
        assert consumer.position(ONE) == 10
        with pytest.raises(InvalidRequestError):
            consumer.seek(ONE, -1)


def test_a_seek_ends_a_waiting_fetch(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap, fetch_max_wait_ms=120_000) as consumer:
        consumer.assign([ONE])
        read(consumer, 1)
        assert consumer.poll(timeout_ms=100) == {}
        consumer.seek(ONE, 0)
        began = time.monotonic()
        assert read(consumer, 1)[0].offset == 0
        assert time.monotonic() - began < 60


def test_latest_begins_at_the_end(cluster: FakeCluster) -> None:
    write(cluster, b"old")
    with Consumer(cluster.bootstrap, auto_offset_reset="latest") as consumer:
        consumer.assign([ONE])
        assert consumer.position(ONE) == 1
        write(cluster, b"new")
        assert [record.value for record in read(consumer, 1)] == [b"new"]


def test_without_a_reset_policy_a_position_must_be_given(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap, auto_offset_reset="error") as consumer:
        consumer.assign([ONE])
        with pytest.raises(NoOffsetError):
            consumer.poll(timeout_ms=60_000)
        consumer.seek(ONE, 0)
        assert read(consumer, 1)[0].value == b"a"


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 5), ("latest", 10)])
def test_out_of_range_follows_the_reset_policy(cluster: FakeCluster, policy: str, expected: int) -> None:
    write(cluster, *[b"%d" % n for n in range(5)])
    write(cluster, *[b"%d" % n for n in range(5, 10)])
    with cluster.lock:
        cluster.logs[ONE].start = 5
        del cluster.logs[ONE].batches[0]
    with Consumer(cluster.bootstrap, auto_offset_reset=policy) as consumer:
        consumer.assign([ONE])
        consumer.seek(ONE, 2)
        if policy == "earliest":
            assert [record.offset for record in read(consumer, 5)] == [5, 6, 7, 8, 9]
        else:
            wait_for(lambda: consumer.position(ONE) == expected)


def test_out_of_range_without_a_reset_policy_is_an_error_with_the_range(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap, auto_offset_reset="error") as consumer:
        consumer.assign([ONE])
        consumer.seek(ONE, 99)
        with pytest.raises(NoOffsetError, match=r"99 .*\[0, 1\)"):
            consumer.poll(timeout_ms=60_000)


def test_truncation_of_records_already_read_is_reported_once_and_reading_continues(cluster: FakeCluster) -> None:
    write(cluster, b"a0", b"a1")
    write(cluster, b"b2", b"b3")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        read(consumer, 4)
        with cluster.lock:
            cluster.logs[ONE].truncate(2)
        cluster.move(ONE, 2)
        write(cluster, b"c2", b"c3", b"c4")
        with pytest.raises(LogTruncatedError) as raised:
            read(consumer, 1)
        assert (raised.value.position, raised.value.divergent_offset) == (4, 2)
        assert [record.value for record in read(consumer, 3)] == [b"c2", b"c3", b"c4"]


def test_a_leader_without_the_epoch_of_the_last_record_is_reported_and_reading_continues(cluster: FakeCluster) -> None:
    write(cluster, b"a0")
    cluster.move(ONE, 2)
    write(cluster, b"b1")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        read(consumer, 2)
        with cluster.lock:  # an unclean election: the new leader's log has only three records of epoch 0
            log = cluster.logs[ONE]
            log.truncate(1)
            log.epoch, log.epochs = 0, [(0, 0)]
        write(cluster, b"c1", b"c2")
        with cluster.lock:
            log.epoch = 1
        cluster.move(ONE, 1)
        with pytest.raises(LogTruncatedError) as raised:
            read(consumer, 1)
        assert (raised.value.position, raised.value.divergent_offset) == (2, 2)
        assert [record.value for record in read(consumer, 1)] == [b"c2"]


def test_truncation_of_records_only_fetched_ahead_is_not_reported(cluster: FakeCluster) -> None:
    write(cluster, b"a0", b"a1")
    write(cluster, b"b2", b"b3")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        wait_for(lambda: consumer._assignment.state(ONE).fetch_offset == 4)
        assert [r.value for r in next(iter(consumer.poll(max_records=2).values()))] == [b"a0", b"a1"]
        with cluster.lock:
            cluster.logs[ONE].truncate(2)
        cluster.move(ONE, 2)
        write(cluster, b"c2")
        wait_for(lambda: consumer._assignment.state(ONE).fetch_offset == 3, what="the new batch")
        assert [record.value for record in read(consumer, 1)] == [b"c2"]


def test_offsets_are_looked_up_by_end_and_time(cluster: FakeCluster) -> None:
    write(cluster, b"a", b"b")
    write(cluster, b"c")
    with Consumer(cluster.bootstrap) as consumer:
        assert consumer.beginning_offsets([ONE]) == {ONE: 0}
        assert consumer.end_offsets([ONE, TopicPartition("t", 3)]) == {ONE: 3, TopicPartition("t", 3): 0}
        found = consumer.offsets_for_times({ONE: 1_001, TopicPartition("t", 0): 5})
        assert found[TopicPartition("t", 0)] is None
        assert found[ONE] is not None
        assert (found[ONE].offset, found[ONE].timestamp_ms) == (0, 1_001)


def test_looking_up_offsets_waits_for_a_leader_and_then_reports_the_cause(cluster: FakeCluster) -> None:
    cluster.move(ONE, None)
    with Consumer(cluster.bootstrap) as consumer:
        with pytest.raises(Exception, match="one/0 has no leader"):
            consumer.end_offsets([ONE], timeout_ms=3_000)
        threading.Timer(0.3, cluster.move, [ONE, 2]).start()
        assert consumer.end_offsets([ONE], timeout_ms=60_000) == {ONE: 0}


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.subscribe(["late", "nothing"]),
        lambda consumer: consumer.assign([("late", 0), ("nothing", 0)]),
        lambda consumer: consumer.end_offsets([TopicPartition("late", 0)], timeout_ms=4_000),
    ],
    ids=["subscribe", "assign", "end_offsets"],
)
def test_consecutive_waits_for_topics_share_one_timeout(
    cluster: FakeCluster, call: Callable[[Consumer], object]
) -> None:
    def create() -> None:
        cluster.topic("late")
        cluster.move(TopicPartition("late", 0), None)

    with Consumer(cluster.bootstrap, default_api_timeout_ms=4_000) as consumer:
        consumer.subscribe(["one"])
        began = time.monotonic()
        threading.Timer(3.0, create).start()
        with pytest.raises(PacelineError, match=r"nothing|late/0 has no leader"):
            call(consumer)
        assert 3.0 < time.monotonic() - began < 6.5


def test_a_position_that_cannot_be_found_ends_in_a_timeout(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        cluster.move(ONE, None)
        consumer.seek_to_end()
        with pytest.raises(RequestTimedOutError):
            consumer.position(ONE, timeout_ms=300)


@pytest.mark.parametrize("policy", ["earliest", "error"])
def test_a_re_created_topic_is_read_from_the_offset_of_the_reset_policy(cluster: FakeCluster, policy: str) -> None:
    write(cluster, b"a", b"b")
    with Consumer(cluster.bootstrap, auto_offset_reset=policy) as consumer:
        consumer.assign([ONE])
        consumer.seek(ONE, 0)
        read(consumer, 2)
        with cluster.lock:  # the consumer's next offset also exists in the new topic
            cluster.make_anew("one", partitions=1)
            write(cluster, b"x", b"y", b"z")
        if policy == "error":
            with pytest.raises(NoOffsetError):
                read(consumer, 1)
            consumer.seek(ONE, 0)
        assert [record.value for record in read(consumer, 3)] == [b"x", b"y", b"z"]


def test_a_re_created_topic_found_in_the_metadata_is_read_from_its_beginning(cluster: FakeCluster) -> None:
    write(cluster, b"a", b"b")
    with Consumer(cluster.bootstrap, fetch_max_wait_ms=50) as consumer:
        consumer.assign([ONE])
        read(consumer, 2)
        consumer.pause([ONE])
        wait_for(lambda: not consumer._fetcher._outstanding)
        with cluster.lock:
            cluster.make_anew("one", partitions=1)
            write(cluster, b"x", b"y", b"z")
        metadata = consumer._metadata
        wait_for(lambda: metadata.request() or metadata.cluster.topic_id("one") == cluster.topic_id("one"))
        consumer.resume([ONE])
        assert [record.value for record in read(consumer, 3)] == [b"x", b"y", b"z"]


def test_a_topic_re_created_with_fewer_partitions_is_read_without_the_missing_ones(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, default_api_timeout_ms=2_000) as consumer:
        for index in range(4):
            write(cluster, b"%d" % index, tp=TopicPartition("t", index))
        consumer.subscribe(["t"])
        wait_for(lambda: all(state.chunks for state in consumer._assignment.states()))
        cluster.make_anew("t", partitions=1)
        wait_for(lambda: consumer._metadata.cluster.partition_count("t") == 1)
        assert len(read(consumer, 4)) == 4  # fetched before the re-creation, and still returned
        assert consumer.assignment() == [TopicPartition("t", 0)]
        quiet_until = time.monotonic() + 4.5
        while time.monotonic() < quiet_until:
            assert consumer.poll(timeout_ms=100) == {}
        write(cluster, b"anew", tp=TopicPartition("t", 0))
        assert [record.value for record in read(consumer, 1)] == [b"anew"]


def test_a_wait_for_a_position_ends_with_an_error_when_the_fetcher_fails(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Consumer(cluster.bootstrap) as consumer:

        def fails(now_ms: int) -> int:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(consumer._fetcher._positions, "look_up", fails)
        consumer.assign([ONE])
        with pytest.raises(UnknownServerError, match="a bug"):
            consumer.position(ONE, timeout_ms=30_000)


def test_partitions_added_later_are_read_from_their_beginning(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, auto_offset_reset="latest") as consumer:
        consumer.subscribe(["one"])
        added = TopicPartition("one", 1)
        with cluster.lock:
            cluster.logs[added] = type(cluster.logs[ONE])()
        write(cluster, b"first", tp=added)
        consumer._metadata.request()
        assert [(r.partition, r.value) for r in read(consumer, 1)] == [(1, b"first")]


def test_metadata_is_requested_for_a_partition_that_is_not_known_yet(cluster: FakeCluster) -> None:
    added = TopicPartition("one", 1)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        cluster.grow("one", 2)
        write(cluster, b"a", tp=added)
        consumer.assign([ONE, added])
        assert [record.value for record in read(consumer, 1)] == [b"a"]
        cluster.grow("one", 3)
        assert consumer.end_offsets([TopicPartition("one", 2)]) == {TopicPartition("one", 2): 0}


def test_offsets_of_a_partition_that_does_not_exist_are_refused_soon(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap) as consumer:
        for asked in (-1, 7):
            with pytest.raises(UnknownTopicOrPartitionError, match=f"no partition {asked}"):
                consumer.end_offsets([ONE, TopicPartition("one", asked)], timeout_ms=20_000)
