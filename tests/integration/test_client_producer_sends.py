"""Sends of a producer: records and their partitions, callbacks, the buffer, and refused arguments and settings."""

import asyncio
import threading
from typing import Any

import pytest

from paceline.model.errors import InvalidRequestError, InvalidTopicError, PacelineError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline_client import AsyncProducer, BufferExhaustedError, Consumer, Producer, RecordMetadata
from paceline_client.partitioner import partition_for_key
from tests.integration.client_clusters import producer_cluster
from tests.integration.fake_cluster import FakeCluster, wait_for

__all__ = ["producer_cluster"]


def test_a_send_returns_partition_and_offset(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        first = producer.send("one", b"a").result(60)
        second = producer.send("one", b"b", key=b"k", headers=[("h", b"1"), ("h", None)]).result(60)
    assert first == RecordMetadata("one", 0, 0, None)
    assert second.offset == 1
    assert cluster.values("one") == {0: [b"a", b"b"]}


def test_headers_may_be_any_sequence_such_as_those_of_a_record_that_was_read(cluster: FakeCluster) -> None:
    headers = (("h", b"1"), ("h", None))
    with Producer(cluster.bootstrap, linger_ms=10_000) as producer:
        sent = [producer.send("one", value, headers=headers) for value in (b"begins", b"joins")]
        producer.flush(60)
        assert [future.result(60).offset for future in sent] == [0, 1]
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([("one", 0)])
        (records,) = consumer.poll(timeout_ms=60_000).values()
    assert [record.headers for record in records] == [headers, headers]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"value": "text"}, "value must be bytes or None, not str"),
        ({"value": b"", "key": 7}, "key must be bytes or None, not int"),
        ({"value": b"", "headers": [("name", "text")]}, "the value of header 'name' must be bytes or None, not str"),
        ({"value": b"", "headers": ["name"]}, "headers must be pairs"),
        ({"value": b"", "timestamp_ms": 1_795_374_049.5}, "timestamp_ms must be an int, milliseconds since 1970"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(cluster: FakeCluster, arguments: dict[str, Any], says: str) -> None:
    with Producer(cluster.bootstrap, linger_ms=10_000) as producer:
        for _ in range(2):  # first into a new batch, then into an open batch
            with pytest.raises(TypeError, match=says):
                producer.send("one", **arguments)
            producer.send("one", b"right")
    assert cluster.values("one") == {0: [b"right", b"right"]}


def test_records_of_a_key_go_to_the_partition_kafka_would_choose(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(50):
            producer.send("t", b"%d" % number, key=b"key-%d" % number)
    values = cluster.values("t")
    for partition in (0, 1):
        expected = [b"%d" % n for n in range(50) if partition_for_key(b"key-%d" % n, 2) == partition]
        assert values[partition] == expected


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_written(cluster: FakeCluster, compression: str | None) -> None:
    with Producer(cluster.bootstrap, compression=compression) as producer:
        producer.send_many("one", [(None, b"value %d" % (n % 7)) for n in range(3_000)]).result(60)
    assert cluster.values("one")[0] == [b"value %d" % (n % 7) for n in range(3_000)]
    smaller = sum(map(len, cluster.logs[TopicPartition("one", 0)].batches)) < 40_000
    assert smaller == (compression is not None)


def test_send_many_keeps_order_over_many_batches_and_requests(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, batch_size=2_000, linger_ms=0) as producer:
        bulk = producer.send_many("one", ((None, b"%06d" % n) for n in range(20_000)))
        assert bulk.result(60) == 20_000
        assert bulk.done()
    assert cluster.values("one")[0] == [b"%06d" % n for n in range(20_000)]
    assert cluster.produce_requests > 20


def test_send_many_partitions_records_with_and_without_keys(cluster: FakeCluster) -> None:
    records = [(b"key %d" % (n % 3) if n % 5 < 2 else None, b"%04d" % n) for n in range(3_000)]
    with Producer(cluster.bootstrap, batch_size=2_000, linger_ms=0) as producer:
        assert producer.send_many("t", records).result(60) == 3_000
    parts = cluster.values("t")
    assert sorted(value for part in parts.values() for value in part) == [value for _, value in records]
    for key in (b"key 0", b"key 1", b"key 2"):
        expected = [value for one, value in records if one == key]
        part = parts[partition_for_key(key, len(parts))]
        assert [value for value in part if value in set(expected)] == expected


def test_callbacks_are_called_once_for_every_record(cluster: FakeCluster) -> None:
    heard: list[tuple[int | None, PacelineError | None]] = []
    with Producer(cluster.bootstrap) as producer:
        for number in range(100):
            producer.send("one", b"%d" % number, on_delivery=lambda at, e: heard.append((at and at.offset, e)))
        producer.flush(60)
        assert heard == [(offset, None) for offset in range(100)]


@pytest.mark.parametrize(
    "raised", [RuntimeError("a user's mistake"), SystemExit(1)], ids=lambda one: type(one).__name__
)
def test_a_callback_that_raises_does_not_stop_the_others(cluster: FakeCluster, raised: BaseException) -> None:
    heard = []

    def callback(at: object, error: object) -> None:
        heard.append(at)
        raise raised

    with Producer(cluster.bootstrap) as producer:
        for _ in range(3):
            producer.send("one", b"x", on_delivery=callback)
        producer.flush(60)
        assert len(heard) == 3
        assert producer.send("one", b"y").result(60).offset == 3


def test_callbacks_come_on_the_senders_thread(cluster: FakeCluster) -> None:
    threads: list[str] = []
    with Producer(cluster.bootstrap, linger_ms=0, client_id="mine") as producer:
        for _ in range(3):
            producer.send("one", b"x", on_delivery=lambda *_: threads.append(threading.current_thread().name)).result(
                60
            )
    assert threads == ["mine-sender"] * 3


def test_a_full_buffer_blocks_and_then_refuses(cluster: FakeCluster) -> None:
    cluster.faults.hold_produce = threading.Event()
    producer = Producer(cluster.bootstrap, buffer_memory=10_000, max_block_ms=2_000, linger_ms=0)
    try:
        with pytest.raises(BufferExhaustedError):
            for _ in range(30):
                producer.send("one", bytes(1_000))
        cluster.faults.hold_produce.set()
        producer.flush(60)
        producer.send("one", b"again").result(60)
    finally:
        cluster.faults.hold_produce.set()
        producer.close()
    assert 10 <= len(cluster.values("one")[0]) <= 12


def test_a_blocked_send_continues_as_soon_as_the_buffer_has_room(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, buffer_memory=5_000, batch_size=1_000, linger_ms=1_000) as producer:
        producer.send_many("one", [(None, bytes(200))] * 500).result(60)
    assert len(cluster.values("one")[0]) == 500


def test_acks_none_returns_no_offset(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, acks="none", linger_ms=0) as producer:
        assert producer.send("one", b"a").result(60).offset is None
    assert cluster.values("one")[0] == [b"a"]


def test_idempotence_needs_acks_all() -> None:
    with pytest.raises(InvalidRequestError):
        Producer("localhost:1", acks="leader", enable_idempotence=True)


def test_a_time_that_no_request_can_carry_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequestError):
        Producer("localhost:1", request_timeout_ms=2**31).close(0)


def test_an_unknown_partition_is_refused(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap) as producer, pytest.raises(UnknownTopicOrPartitionError):
        producer.send("one", b"a", partition=1)


def test_metadata_is_requested_for_an_unknown_partition_before_it_is_refused(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("one", b"a").result(60)
        cluster.grow("one", 3)
        assert producer.send("one", b"b", partition=1).result(60).offset == 0
        cluster.grow("one", 4)
        assert producer.send_many("one", [(None, b"c")], partition=3).result(60) == 1


def test_an_invalid_topic_name_is_refused_at_once_and_delays_no_other_send(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap) as producer:
        with pytest.raises(InvalidTopicError):
            producer.send("\ud800", b"x")
        assert producer.send("one", b"a").result(10).offset == 0


def test_an_unknown_topic_is_refused_after_a_short_wait(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, max_block_ms=3_000) as producer, pytest.raises(UnknownTopicOrPartitionError):
        producer.send("nothing", b"a")


def test_a_topic_created_a_moment_later_is_found(cluster: FakeCluster) -> None:
    timer = threading.Timer(0.5, cluster.topic, ["late"])
    timer.start()
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        assert producer.send("late", b"a").result(60).offset == 0
    timer.join()


def test_many_threads_may_share_a_producer(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, batch_size=1_000) as producer:

        def work(name: int) -> None:
            for number in range(300):
                producer.send("t", b"%d-%03d" % (name, number), key=b"%d" % name)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = [value for partition in cluster.values("t").values() for value in partition]
    for name in range(4):
        assert [value for value in values if value.startswith(b"%d-" % name)] == [
            b"%d-%03d" % (name, number) for number in range(300)
        ]


def test_new_partitions_are_used_after_a_refresh(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("one", b"a").result(60)
        cluster.topic("grown", 1)
        producer.send("grown", b"a").result(60)
        with cluster.lock:
            cluster.logs[TopicPartition("grown", 1)] = type(cluster.logs[TopicPartition("grown", 0)])()
        producer._metadata.request()
        wait_for(lambda: producer.partitions_for("grown") == 2 and producer._routes["grown"].count == 2)
        assert producer.send("grown", b"b", partition=1).result(60).offset == 0


def test_an_async_send_to_a_partition_beyond_the_count_waits_on_another_thread(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for metadata with a new partition; on the event loop it would block all other tasks."""
    threads: list[threading.Thread] = []
    find_route = Producer._find_route

    def find(producer: Producer, topic: str, partition: int | None = None) -> Any:
        threads.append(threading.current_thread())
        return find_route(producer, topic, partition)

    monkeypatch.setattr(Producer, "_find_route", find)

    async def program() -> None:
        async with AsyncProducer(cluster.bootstrap, linger_ms=0) as producer:
            await producer.send_and_wait("one", b"a", partition=0)
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send("one", b"b", partition=1)
            await producer.send_and_wait("one", b"c", partition=0)

    asyncio.run(program())
    assert len(threads) == 2 and threading.current_thread() not in threads
    assert cluster.values("one") == {0: [b"a", b"c"]}
