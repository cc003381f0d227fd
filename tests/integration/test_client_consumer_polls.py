"""Polls and iteration of a consumer: the records they return, their waits and their limits."""

import os
import signal
import threading
import time
from typing import Any

import pytest

from paceline.log.compression import Codec
from paceline.log.record_batch import NewRecord, encode_batch, iterate_headers
from paceline.model.errors import (
    CorruptMessageError,
    InvalidRequestError,
    InvalidTopicError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.streams.stream_call import StreamCall
from paceline_client import ClientClosedError, Consumer, ConsumerRecord, Producer
from tests.integration.client_clusters import ONE, consumer_cluster, read, write
from tests.integration.fake_cluster import FakeCluster, wait_for

__all__ = ["consumer_cluster"]


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


def test_an_idle_fetch_names_no_partition(cluster: FakeCluster) -> None:
    with Consumer(cluster.bootstrap, fetch_max_wait_ms=20) as consumer:
        consumer.subscribe(["t"])
        wait_for(lambda: cluster.fetched_partitions[-6:] == [0] * 6)
        write(cluster, b"a", tp=TopicPartition("t", 2))
        assert read(consumer, 1)[0].partition == 2


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


@pytest.mark.parametrize("lacking", ["nothing", "room for streams", "gRPC's internals"])
def test_fetches_go_over_streams_where_the_broker_has_room_for_them(
    cluster: FakeCluster, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.faults.no_streams = lacking == "room for streams"
    if lacking == "gRPC's internals":
        monkeypatch.delattr(StreamCall, "_begin")
    write(cluster, b"a")
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([ONE])
        assert [record.value for record in read(consumer, 1)] == [b"a"]
        write(cluster, b"b")
        assert [record.value for record in read(consumer, 1)] == [b"b"]
        consumer.seek(ONE, 0)
        assert [record.value for record in read(consumer, 2)] == [b"a", b"b"]
    assert (cluster.streamed_fetches > 0) is (lacking == "nothing")


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
