import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.log.compression import Codec
from paceline.log.record_batch import NewRecord, encode_batch, iterate_headers
from paceline.model.errors import (
    CorruptMessageError,
    ErrorCode,
    InvalidRequestError,
    InvalidTopicError,
    PacelineError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline_client import ClientClosedError, Consumer, ConsumerRecord, LogTruncatedError, NoOffsetError, Producer
from paceline_client.metadata import ClusterMetadata
from tests.integration.fake_cluster import FakeCluster, wait_for
from tests.integration.tcp_proxy import TcpProxy

ONE = TopicPartition("one", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster().start()
    fake.topic("t", partitions=4)
    fake.topic("one")
    yield fake
    fake.stop()


def write(cluster: FakeCluster, *values: bytes, tp: TopicPartition = ONE, codec: Codec = Codec.NONE) -> None:
    """Append one batch to the partition's log, as another producer would."""
    batch = encode_batch([NewRecord(1_000 + index, None, value) for index, value in enumerate(values)], codec=codec)
    with cluster.lock:
        cluster.logs[tp].append(batch)
        cluster.lock.notify_all()


def read(consumer: Consumer, count: int, timeout_s: float = 60.0) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} records came"
        for records in consumer.poll(timeout_ms=200).values():
            found.extend(records)
    return found


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_a_consumer_reads_the_records_of_a_producer(cluster: FakeCluster, compression: str | None) -> None:
    with Producer(cluster.bootstrap, compression=compression, linger_ms=50) as producer:
        for number in range(200):
            producer.send(
                "one",
                b"value %d" % number if number % 5 else None,
                key=b"key %d" % number if number % 3 else None,
                headers=[("a", b"1"), ("a", None)] if number % 7 == 0 else None,
                timestamp_ms=1_700_000_000_000 + number,
            )
    with Consumer(cluster.bootstrap) as consumer:
        consumer.subscribe(["one"])
        records = read(consumer, 200)
    for number, record in enumerate(records):
        assert record == ConsumerRecord(
            "one",
            0,
            number,
            1_700_000_000_000 + number,
            b"key %d" % number if number % 3 else None,
            b"value %d" % number if number % 5 else None,
            (("a", b"1"), ("a", None)) if number % 7 == 0 else (),
        )


def test_every_partition_of_a_topic_is_read_from_both_brokers(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap) as producer:
        producer.send_many("t", [(b"k%d" % n, b"%d" % n) for n in range(2_000)]).result(60)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.subscribe(["t"])
        records = read(consumer, 2_000)
        assert sorted(int(record.value or b"") for record in records) == list(range(2_000))
        assert {record.partition for record in records} == {0, 1, 2, 3}
        assert [consumer.position(TopicPartition("t", p)) for p in range(4)] == [
            len(cluster.values("t")[p]) for p in range(4)
        ]


def test_new_records_are_returned_before_the_poll_timeout(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, fetch_max_wait_ms=120_000) as consumer:
        consumer.assign([ONE])
        assert consumer.poll(timeout_ms=50) == {}
        threading.Timer(0.2, write, [cluster, b"late"]).start()
        began = time.monotonic()
        (records,) = consumer.poll(timeout_ms=110_000).values()
        assert [record.value for record in records] == [b"late"]
        assert time.monotonic() - began < 60


def test_a_poll_continues_to_fetch_after_empty_responses(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, fetch_max_wait_ms=20) as consumer:
        consumer.assign([ONE])
        found: list[dict[TopicPartition, list[ConsumerRecord]]] = []
        poller = threading.Thread(target=lambda: found.append(consumer.poll(timeout_ms=60_000)))
        poller.start()
        before = len(cluster.fetched_partitions)
        # A consumer that paused after an empty response would send about one fetch per second.
        wait_for(lambda: len(cluster.fetched_partitions) >= before + 30, timeout_s=20.0)
        assert not found
        write(cluster, b"at last")
        poller.join(20.0)
        assert [record.value for record in found[0][ONE]] == [b"at last"]


def test_a_second_thread_that_polls_is_refused(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, fetch_max_wait_ms=20) as consumer:
        consumer.assign([ONE])
        found: list[dict[TopicPartition, list[ConsumerRecord]]] = []
        before = len(cluster.fetched_partitions)
        poller = threading.Thread(target=lambda: found.append(consumer.poll(timeout_ms=60_000)))
        poller.start()
        wait_for(lambda: len(cluster.fetched_partitions) > before, timeout_s=60.0)
        with pytest.raises(InvalidRequestError, match="another thread is in poll"):
            consumer.poll(timeout_ms=0)
        write(cluster, b"for the first")
        poller.join(60.0)
        assert [record.value for record in found[0][ONE]] == [b"for the first"]


def test_poll_ends_at_its_timeout(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        began = time.monotonic()
        assert consumer.poll(timeout_ms=150) == {}
        assert 0.1 < time.monotonic() - began < 60


def test_a_poll_returns_at_most_max_records_and_positions_follow(cluster: FakeCluster) -> None:
    write(cluster, *[b"%d" % n for n in range(10)])
    write(cluster, *[b"%d" % n for n in range(10, 15)])
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        wait_for(lambda: consumer._assignment.state(ONE).chunks)
        seen = []
        for expected in (4, 8, 12, 15):
            (records,) = consumer.poll(timeout_ms=60_000, max_records=4).values()
            seen.extend(record.offset for record in records)
            assert consumer.position(ONE) == expected
        assert seen == list(range(15))


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


def test_a_consumer_follows_the_leader(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        read(consumer, 1)
        cluster.move(ONE, 2)
        write(cluster, b"b")
        assert [record.value for record in read(consumer, 1)] == [b"b"]
        cluster.brokers[2].stop()
        write(cluster, b"c")
        cluster.move(ONE, 1)
        assert [record.value for record in read(consumer, 1)] == [b"c"]


def test_a_broker_with_a_new_address_is_read_while_its_old_address_hangs(cluster: FakeCluster) -> None:
    leader = cluster.brokers[1]
    proxy = TcpProxy("127.0.0.1", leader.port)
    leader.told_port = proxy.port
    write(cluster, b"a")
    with Consumer(cluster.brokers[2].address, client_id="moves") as consumer:
        consumer.assign([ONE])
        read(consumer, 1)
        proxy.cut()
        leader.told_port = None
        write(cluster, b"b")
        consumer._metadata.request()
        assert [record.value for record in read(consumer, 1, timeout_s=15)] == [b"b"]
        proxy.sever()
        wait_for(lambda: sum(thread.name.startswith("moves-fetcher-stream-") for thread in threading.enumerate()) == 1)
    proxy.close()


def test_a_restarted_broker_without_sessions_loses_no_record(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        read(consumer, 1)
        cluster.brokers[1].stop()
        cluster.brokers[1].start()
        write(cluster, b"b")
        assert [record.value for record in read(consumer, 1)] == [b"b"]


def test_a_forgotten_session_is_opened_again(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, fetch_max_wait_ms=50) as consumer:
        consumer.subscribe(["t"])
        wait_for(lambda: 0 in cluster.fetched_partitions, what="an incremental fetch")
        cluster.faults.forget_sessions = 1
        wait_for(lambda: cluster.faults.forget_sessions == 0, what="a fetch that meets no session")
        for partition in range(4):
            write(cluster, b"%d" % partition, tp=TopicPartition("t", partition))
        assert sorted(record.value or b"" for record in read(consumer, 4)) == [b"0", b"1", b"2", b"3"]


def test_an_idle_fetch_names_no_partition(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, fetch_max_wait_ms=20) as consumer:
        consumer.subscribe(["t"])
        wait_for(lambda: cluster.fetched_partitions[-6:] == [0] * 6)
        write(cluster, b"a", tp=TopicPartition("t", 2))
        assert read(consumer, 1)[0].partition == 2


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


def test_positions_skip_records_removed_by_compaction(cluster: FakeCluster) -> None:
    write(cluster, b"a", b"b", b"c")
    write(cluster, b"d")
    with cluster.lock:
        log = cluster.logs[ONE]
        kept = bytearray(encode_batch([NewRecord(1, None, b"a")]))
        # Kafka keeps the last offset delta of a batch even if compaction removed its last records.
        kept[23:27] = (2).to_bytes(4, "big")
        from paceline.log.record_batch import crc_of

        kept[17:21] = crc_of(kept, 0, len(kept)).to_bytes(4, "big")
        log.batches[0] = bytes(kept)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        (records,) = consumer.poll(timeout_ms=60_000, max_records=1).values()
        assert [record.offset for record in records] == [0]
        assert consumer.position(ONE) == 3
        assert [record.offset for record in read(consumer, 1)] == [3]


def test_a_damaged_batch_is_reported_after_the_records_before_it(cluster: FakeCluster) -> None:
    write(cluster, b"good")
    write(cluster, b"bad")
    with cluster.lock:
        damaged = bytearray(cluster.logs[ONE].batches[1])
        damaged[-2] ^= 1
        cluster.logs[ONE].batches[1] = bytes(damaged)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        assert [record.value for record in read(consumer, 1)] == [b"good"]
        with pytest.raises(CorruptMessageError):
            consumer.poll(timeout_ms=60_000)
        assert consumer.position(ONE) == 1
        consumer.seek(ONE, 0)
        assert [record.value for record in read(consumer, 1)] == [b"good"]


def test_raw_batches_are_returned_whole_with_their_offsets(cluster: FakeCluster) -> None:
    for number in range(20):
        write(cluster, b"%d" % number, b"x" * 100)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        consumer.seek(ONE, 5)
        pieces = []
        while consumer.position(ONE) < 40:
            pieces.extend(consumer.poll_batches(timeout_ms=60_000))
        assert (pieces[0].first_offset, pieces[-1].next_offset, pieces[-1].high_watermark) == (5, 40, 40)
        bases = [header.base_offset for piece in pieces for _, header in iterate_headers(piece.data)]
        assert bases == list(range(4, 40, 2))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_raw_batches_are_decoded_from_the_position_on(cluster: FakeCluster, codec: Codec) -> None:
    for number in range(10):
        write(cluster, b"%d" % number, b"x" * 100, codec=codec)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        consumer.seek(ONE, 5)
        records = []
        while consumer.position(ONE) < 20:
            for batches in consumer.poll_batches(timeout_ms=60_000):
                records += batches.records()
    assert [record.offset for record in records] == list(range(5, 20))
    assert [record.value for record in records[:2]] == [b"x" * 100, b"3"]
    assert (records[1].timestamp, records[1].key, list(records[1].headers)) == (1_000, None, [])


def test_a_damaged_raw_batch_is_reported_after_the_records_before_it(cluster: FakeCluster) -> None:
    write(cluster, b"good")
    write(cluster, b"bad")
    with cluster.lock:
        damaged = bytearray(cluster.logs[ONE].batches[1])
        damaged[-2] ^= 1
        cluster.logs[ONE].batches[1] = bytes(damaged)
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        (batches,) = consumer.poll_batches(timeout_ms=60_000)
    records = batches.records()
    assert next(records).value == b"good"
    with pytest.raises(CorruptMessageError):
        next(records)


@pytest.mark.parametrize("streams", [True, False])
def test_fetches_go_over_streams_where_the_broker_has_room_for_them(cluster: FakeCluster, streams: bool) -> None:
    cluster.faults.no_streams = not streams
    write(cluster, b"a")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        assert [record.value for record in read(consumer, 1)] == [b"a"]
        write(cluster, b"b")
        assert [record.value for record in read(consumer, 1)] == [b"b"]
        consumer.seek(ONE, 0)
        assert [record.value for record in read(consumer, 2)] == [b"a", b"b"]
    assert (cluster.streamed_fetches > 0) is streams


def test_a_small_buffer_limits_what_is_fetched_ahead(cluster: FakeCluster) -> None:
    for _ in range(50):
        write(cluster, bytes(1_000))
    with Consumer(cluster.bootstrap, max_partition_fetch_bytes=2_000, max_buffered_bytes=3_000) as consumer:
        consumer.assign([ONE])
        wait_for(lambda: consumer._assignment.buffered_bytes() > 2_000)
        assert len(read(consumer, 50)) == 50
        assert consumer._assignment.buffered_bytes() < 6_000


def test_a_paused_partition_returns_no_records_and_keeps_its_position(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        consumer.pause([ONE])
        assert consumer.poll(timeout_ms=200) == {}
        consumer.resume([ONE])
        assert read(consumer, 1)[0].value == b"a"


def test_records_buffered_for_paused_partitions_do_not_stop_other_partitions(cluster: FakeCluster) -> None:
    resting, reading = TopicPartition("t", 0), TopicPartition("t", 1)
    for _ in range(4):
        write(cluster, bytes(1_000), tp=resting)
    with Consumer(cluster.bootstrap, max_buffered_bytes=3_000) as consumer:
        consumer.assign([resting, reading])
        wait_for(lambda: consumer._assignment.state(resting).buffered_bytes() > 3_000)
        consumer.pause([resting])
        write(cluster, b"a", tp=reading)
        assert [record.value for record in read(consumer, 1, timeout_s=10)] == [b"a"]
        consumer.resume([resting])
        assert len(read(consumer, 4)) == 4


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
        with pytest.raises(Exception, match="one-0 has no leader"):
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
        with pytest.raises(PacelineError, match=r"nothing|late-0 has no leader"):
            call(consumer)
        assert 3.0 < time.monotonic() - began < 6.5


def test_a_position_that_cannot_be_found_ends_in_a_timeout(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        cluster.move(ONE, None)
        consumer.seek_to_end()
        with pytest.raises(RequestTimedOutError):
            consumer.position(ONE, timeout_ms=300)


def test_temporary_fetch_errors_are_retried(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    cluster.faults.fetch_refuse = [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ]
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        assert read(consumer, 1)[0].value == b"a"
    assert cluster.faults.fetch_refuse == []


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
        wait_for(lambda: consumer._metadata.request() or consumer._metadata.topic_id("one") == cluster.topic_id("one"))
        consumer.resume([ONE])
        assert [record.value for record in read(consumer, 3)] == [b"x", b"y", b"z"]


def test_a_topic_re_created_with_fewer_partitions_is_read_without_the_missing_ones(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, default_api_timeout_ms=2_000) as consumer:
        for index in range(4):
            write(cluster, b"%d" % index, tp=TopicPartition("t", index))
        consumer.subscribe(["t"])
        wait_for(lambda: all(state.chunks for state in consumer._assignment.states()))
        cluster.make_anew("t", partitions=1)
        wait_for(lambda: consumer._metadata.partition_count("t") == 1)
        assert len(read(consumer, 4)) == 4  # fetched before the re-creation, and still returned
        assert consumer.assignment() == [TopicPartition("t", 0)]
        quiet_until = time.monotonic() + 4.5
        while time.monotonic() < quiet_until:
            assert consumer.poll(timeout_ms=100) == {}
        write(cluster, b"anew", tp=TopicPartition("t", 0))
        assert [record.value for record in read(consumer, 1)] == [b"anew"]


def test_a_partition_that_is_unreadable_for_long_is_retried_with_pauses(cluster: FakeCluster) -> None:
    resting, reading = TopicPartition("t", 0), TopicPartition("t", 2)
    assert cluster.logs[resting].leader == cluster.logs[reading].leader
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([resting, reading])
        assert [consumer.position(tp) for tp in (resting, reading)] == [0, 0]
        with cluster.lock:
            log = cluster.logs.pop(resting)
        state = consumer._assignment.state(resting)
        wait_for(lambda: state.hindered_since_ms is not None)
        hindered_s = (state.hindered_since_ms or 0) / 1000
        wait_for(lambda: time.monotonic() > hindered_s + 2)
        fetches, begin = cluster.streamed_fetches, time.monotonic()
        wait_for(lambda: cluster.streamed_fetches >= fetches + 10)
        assert time.monotonic() - begin > 1.2
        with cluster.lock:
            cluster.logs[resting] = log
        write(cluster, b"a", tp=resting)
        write(cluster, b"b", tp=reading)
        assert {record.value for record in read(consumer, 2)} == {b"a", b"b"}


def test_an_error_that_is_not_retriable_is_raised(cluster: FakeCluster) -> None:
    cluster.faults.fetch_refuse = [ErrorCode.POLICY_VIOLATION]
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        with pytest.raises(Exception, match="POLICY_VIOLATION on purpose"):
            consumer.poll(timeout_ms=60_000)


def test_an_unreachable_leader_is_reported_after_the_limit_with_its_cause_and_reading_continues(
    cluster: FakeCluster,
) -> None:
    write(cluster, b"a")
    with Consumer(cluster.bootstrap, default_api_timeout_ms=2_000) as consumer:
        consumer.assign([ONE])
        assert read(consumer, 1)[0].value == b"a"
        cluster.brokers[1].stop()
        with pytest.raises(RequestTimedOutError, match=r"one-0 could not be read for 2000 ms: .*broker 1"):
            read(consumer, 1)
        cluster.brokers[1].start()
        write(cluster, b"b")
        assert read_through_hindrances(consumer).value == b"b"


def test_a_partition_without_a_leader_for_long_is_reported(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    cluster.move(ONE, None)
    with Consumer(cluster.bootstrap, default_api_timeout_ms=2_000) as consumer:
        consumer.assign([ONE])
        with pytest.raises(RequestTimedOutError, match="one-0 has no leader"):
            read(consumer, 1)
        cluster.move(ONE, 2)
        assert read_through_hindrances(consumer).value == b"a"


def test_a_refusal_of_a_whole_fetch_that_is_not_retriable_is_raised_at_once(cluster: FakeCluster) -> None:
    cluster.faults.fetch_abort = InvalidRequestError("that is no fetch")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        with pytest.raises(InvalidRequestError, match=r"broker 1 .*that is no fetch"):
            read(consumer, 1)


def test_an_unreachable_partition_is_reported_with_its_own_cause(cluster: FakeCluster) -> None:
    leader = cluster.brokers[1]
    proxy = TcpProxy("127.0.0.1", leader.port)
    leader.told_port = proxy.port
    write(cluster, b"a")
    with Consumer(
        cluster.brokers[2].address, request_timeout_ms=1_000, fetch_max_wait_ms=100, default_api_timeout_ms=4_000
    ) as consumer:
        cluster.faults.fetch_refuse = [ErrorCode.KAFKA_STORAGE_ERROR]
        consumer.assign([ONE])
        assert read(consumer, 1)[0].value == b"a"
        proxy.cut()
        with pytest.raises(RequestTimedOutError, match="one-0 could not be read for 4000 ms: broker 1 ") as told:
            read(consumer, 1)
        assert "KAFKA_STORAGE_ERROR" not in str(told.value)
    proxy.close()


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


def read_through_hindrances(consumer: Consumer) -> ConsumerRecord:
    """Return the next record; retry when a busy machine makes the partition appear unreachable."""
    deadline = time.monotonic() + 60.0
    while True:
        try:
            return read(consumer, 1, timeout_s=60.0)[0]
        except RequestTimedOutError:
            assert time.monotonic() < deadline


def test_metadata_is_requested_again_after_an_unexpected_failure(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [ZeroDivisionError("a bug"), ZeroDivisionError("the same bug")]
    update = ClusterMetadata.update_cluster

    def fails_at_first(self: ClusterMetadata, answer: Any) -> None:
        if failures:
            raise failures.pop()
        update(self, answer)

    monkeypatch.setattr(ClusterMetadata, "update_cluster", fails_at_first)
    write(cluster, b"a")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.subscribe(["one"])
        assert read(consumer, 1)[0].value == b"a"
    assert not failures
    assert "the same bug" in caplog.text


def test_iteration_yields_records_until_the_caller_stops(cluster: FakeCluster) -> None:
    write(cluster, *[b"%d" % n for n in range(5)])
    with Consumer(cluster.bootstrap) as consumer:
        consumer.subscribe(["one"])
        seen = []
        for record in consumer:
            seen.append(record.value)
            if len(seen) == 5:
                break
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


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


def test_a_consumer_refuses_calls_in_a_forked_child(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    held, let_go = threading.Event(), threading.Event()

    def hold(lock: Any) -> None:
        with lock:  # as the fetcher thread may do during a fork
            held.set()
            let_go.wait(60)

    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        holder = threading.Thread(target=hold, args=(consumer._lock,))
        holder.start()
        assert held.wait(60)
        child = os.fork()
        if child == 0:
            refused = 0
            for act in (consumer.poll, consumer.poll_batches, lambda: consumer.position(ONE)):
                try:
                    act()
                except ClientClosedError:
                    refused += 1
            consumer.close()
            os._exit(refused)
        try:
            deadline = time.monotonic() + 30
            while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
                let_go.wait(0.01)
            if not ended[0]:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        finally:
            let_go.set()
            holder.join(60)
        assert (ended[0], os.waitstatus_to_exitcode(ended[1])) == (child, 3)
        assert [record.value for record in read(consumer, 1)] == [b"a"]


def test_misuse_is_refused(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, default_api_timeout_ms=3_000) as consumer:
        with pytest.raises(InvalidRequestError, match="nothing is assigned"):
            consumer.poll()
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.seek(ONE, 0)
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7"):
            consumer.assign([TopicPartition("one", 7)])
        with pytest.raises(UnknownTopicOrPartitionError):
            consumer.subscribe(["nothing"])
        with pytest.raises(InvalidTopicError):
            consumer.subscribe(["\ud800"])
        consumer.assign([ONE])
        for offset in (-1, 2**63):
            with pytest.raises(InvalidRequestError, match=f"not {offset}"):
                consumer.seek(ONE, offset)
        with pytest.raises(InvalidRequestError, match="cannot be sent"):
            consumer.offsets_for_times({ONE: 2**63})
    with pytest.raises(ClientClosedError):
        consumer.poll()
    with pytest.raises(InvalidRequestError):
        Consumer(cluster.bootstrap, auto_offset_reset="sometimes")


@pytest.mark.parametrize(
    "setting",
    [
        {"fetch_min_bytes": -1},
        {"fetch_min_bytes": 2**31},
        {"fetch_max_wait_ms": -1},
        {"fetch_max_bytes": 2**31},
        {"max_partition_fetch_bytes": 2**31},
        {"request_timeout_ms": -1},
        {"client_rack": "\ud800"},
    ],
    ids=str,
)
def test_a_setting_that_no_fetch_can_carry_is_refused_at_once(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Consumer("localhost:1", **setting).close()


def test_close_joins_every_thread_even_while_a_fetch_waits(cluster: FakeCluster) -> None:
    consumer = Consumer(cluster.bootstrap, fetch_max_wait_ms=120_000, client_id="to-be-joined")
    consumer.assign([ONE])
    consumer.poll(timeout_ms=100)
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 60
    assert not any("to-be-joined" in thread.name for thread in threading.enumerate())
