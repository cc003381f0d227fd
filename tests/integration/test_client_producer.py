import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from paceline.model.errors import (
    ErrorCode,
    InvalidRequestError,
    InvalidTopicError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
    PacelineError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline_client import (
    AsyncProducer,
    BootstrapError,
    BufferExhaustedError,
    Consumer,
    DeliveryFailedError,
    Producer,
    ProducerClosedError,
    ProducerFatalError,
    RecordMetadata,
)
from paceline_client.partitioner import partition_for_key
from tests.integration.fake_cluster import ALWAYS, FakeCluster, wait_for
from tests.integration.tcp_proxy import TcpProxy


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster().start()
    fake.topic("t", partitions=2)
    fake.topic("one")
    yield fake
    fake.stop()


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


@pytest.mark.parametrize("fault", ["drop_before", "drop_after"])
def test_a_broken_connection_neither_loses_nor_duplicates_records(cluster: FakeCluster, fault: str) -> None:
    setattr(cluster.faults, fault, 6)
    with Producer(cluster.bootstrap, batch_size=500, linger_ms=0, retry_backoff_ms=5) as producer:
        producer.send_many("one", [(None, b"%05d" % n) for n in range(1_000)]).result(60)
    assert cluster.values("one")[0] == [b"%05d" % n for n in range(1_000)]
    assert getattr(cluster.faults, fault) == 0


def test_a_leader_hint_is_followed_at_once(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as producer:
        producer.send("one", b"a").result(60)
        cluster.move(TopicPartition("one", 0), 2)
        assert producer.send("one", b"b").result(60).offset == 1


def test_a_broker_with_a_new_address_is_written_to_while_its_old_address_hangs(cluster: FakeCluster) -> None:
    leader = cluster.brokers[1]
    proxy = TcpProxy("127.0.0.1", leader.port)
    leader.told_port = proxy.port
    with Producer(cluster.brokers[2].address, linger_ms=0, max_in_flight=1, client_id="moves") as producer:
        producer.send("one", b"a").result(60)
        producer.send("t", b"a", partition=0).result(60)
        proxy.cut()
        hanging = producer.send("one", b"b")
        leader.told_port = None
        producer._metadata.request()
        assert producer.send("t", b"b", partition=0).result(15).offset == 1
        proxy.sever()
        assert hanging.result(60).offset == 1
        wait_for(lambda: sum(thread.name.startswith("moves-sender-stream-") for thread in threading.enumerate()) == 1)
    proxy.close()


def test_without_a_hint_the_new_leader_is_read_from_metadata(cluster: FakeCluster) -> None:
    cluster.hide_leader_changes = True
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("one", b"a").result(60)
        cluster.move(TopicPartition("one", 0), 2)
        assert producer.send("one", b"b").result(60).offset == 1


def test_killing_the_leader_under_load_neither_loses_nor_duplicates_records(cluster: FakeCluster) -> None:
    tp = TopicPartition("one", 0)
    with Producer(cluster.bootstrap, batch_size=400, linger_ms=1) as producer:
        futures = []
        for number in range(4_000):
            futures.append(producer.send("one", b"%05d" % number))
            if number == 1_500:
                cluster.brokers[1].stop()
            if number == 2_500:
                cluster.move(tp, 2)
        offsets = [future.result(60).offset for future in futures]
    assert offsets == list(range(4_000))
    assert cluster.values("one")[0] == [b"%05d" % number for number in range(4_000)]


def test_a_partition_without_leader_waits_and_its_error_names_the_cause(cluster: FakeCluster) -> None:
    cluster.move(TopicPartition("one", 0), None)
    with Producer(cluster.bootstrap, delivery_timeout_ms=3_000) as producer:
        error = producer.send("one", b"a").exception(60)
    assert isinstance(error, DeliveryFailedError)
    assert error.cause.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert not error.maybe_appended


@pytest.mark.parametrize("kind", [Producer, Consumer])
def test_a_wait_for_a_leader_requests_metadata_with_pauses(
    cluster: FakeCluster, kind: type[Producer] | type[Consumer]
) -> None:
    one = TopicPartition("one", 0)
    with kind(cluster.bootstrap) as client:
        client.partitions_for("one")
        cluster.move(one, None)
        if isinstance(client, Consumer):
            client.assign([one])
        else:
            future = client.send("one", b"a")
        wait_for(lambda: client._metadata.leader_of(one) is None)
        asked, begin = cluster.metadata_requests, time.monotonic()
        wait_for(lambda: cluster.metadata_requests >= asked + 12)
        assert time.monotonic() - begin > 1.2
        cluster.move(one, 2)
        wait_for(lambda: client._metadata.leader_of(one) is not None)
        if isinstance(client, Producer):
            assert future.result(60).offset == 0


def test_the_delivery_timeout_raises_the_last_cause_with_the_broker(cluster: FakeCluster) -> None:
    cluster.faults.refuse_always = ErrorCode.NOT_ENOUGH_REPLICAS
    with Producer(cluster.bootstrap, delivery_timeout_ms=3_000) as producer:
        began = time.monotonic()
        with pytest.raises(DeliveryFailedError, match=r"broker 1 .*NOT_ENOUGH_REPLICAS on purpose") as raised:
            producer.send("one", b"a").result(60)
    assert isinstance(raised.value.cause, NotEnoughReplicasError)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("streams", [True, False])
def test_requests_go_over_streams_where_the_broker_knows_them(cluster: FakeCluster, streams: bool) -> None:
    cluster.faults.no_streams = not streams
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(5):
            producer.send("one", b"%d" % number).result(60)
    assert cluster.values("one")[0] == [b"0", b"1", b"2", b"3", b"4"]
    assert cluster.produce_requests == 5
    assert cluster.streamed_requests == (5 if streams else 0)


def test_a_request_on_a_stream_ends_with_its_deadline_and_is_sent_again(cluster: FakeCluster) -> None:
    held = cluster.faults.hold_produce = threading.Event()
    with Producer(cluster.bootstrap, linger_ms=0, request_timeout_ms=300) as producer:
        future = producer.send("one", b"once")
        wait_for(lambda: cluster.streamed_requests >= 2, what="the second attempt")
        held.set()
        future.result(60)
    assert cluster.values("one")[0] == [b"once"]


def test_callbacks_come_on_the_senders_thread(cluster: FakeCluster) -> None:
    threads: list[str] = []
    with Producer(cluster.bootstrap, linger_ms=0, client_id="mine") as producer:
        for _ in range(3):
            producer.send("one", b"x", on_delivery=lambda *_: threads.append(threading.current_thread().name)).result(
                60
            )
    assert threads == ["mine-sender"] * 3


def test_a_refused_batch_fails_alone(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0, batch_size=100) as producer:
        producer.send("one", b"first").result(60)
        cluster.faults.refuse = [ErrorCode.MESSAGE_TOO_LARGE]
        futures = [producer.send("one", bytes(80)) for _ in range(5)]
        errors = [future.exception(60) for future in futures]
    assert [type(error) for error in errors] == [MessageTooLargeError] + [type(None)] * 4
    assert len(cluster.values("one")[0]) == 5


def test_a_lost_sequence_is_fatal_and_later_sends_raise_it(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("one", b"a").result(60)
        cluster.faults.refuse_always = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        error = producer.send("one", b"b").exception(60)
        assert isinstance(error, ProducerFatalError)
        assert isinstance(error.cause, OutOfOrderSequenceNumberError)
        with pytest.raises(ProducerFatalError):
            producer.send("one", b"c")


def test_a_batch_in_the_same_request_as_a_fatal_one_is_acknowledged(cluster: FakeCluster) -> None:
    cluster.topic("many", partitions=4)
    partitions = (0, 2)  # of the same leader
    with Producer(cluster.bootstrap, linger_ms=60_000) as producer:
        for partition in partitions:
            producer.send("many", b"first", partition=partition)
        producer.flush(60)
        cluster.faults.refuse = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        with producer._lock:  # so that one request carries both batches
            futures = {partition: producer.send("many", b"second", partition=partition) for partition in partitions}
            producer._accumulator.flushing += 1
        producer._sender.wake()
        errors = {partition: future.exception(60) for partition, future in futures.items()}
    told = [partition for partition, error in errors.items() if error is None]
    assert [partition for partition in partitions if cluster.values("many")[partition] == [b"first", b"second"]] == told
    assert len(told) == 1


def test_brokers_that_give_no_producer_id_are_asked_in_growing_intervals(cluster: FakeCluster) -> None:
    asked_s = cluster.producer_id_requests_s
    cluster.faults.no_producer_ids = True
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        waiting = producer.send("one", b"a")
        wait_for(lambda: len(asked_s) >= 6)
        cluster.faults.no_producer_ids = False
        assert asked_s[5] - asked_s[4] > 0.5
        assert waiting.result(60).offset == 0


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


@pytest.mark.parametrize("bootstrap", ["", "localhost", "localhost:no", ["a:1", "b"]])
def test_addresses_that_make_no_sense_are_refused(bootstrap: str | list[str]) -> None:
    with pytest.raises(InvalidRequestError):
        Producer(bootstrap)


def test_a_dead_bootstrap_address_is_skipped(cluster: FakeCluster) -> None:
    with Producer(["127.0.0.1:1", cluster.bootstrap], linger_ms=0) as producer:
        assert producer.send("one", b"a").result(60).offset == 0


def test_a_bootstrap_broker_without_metadata_is_skipped(cluster: FakeCluster) -> None:
    cluster.faults.knows_nobody = 1
    bootstrap = [cluster.brokers[1].address, cluster.brokers[2].address]
    with Producer(bootstrap, linger_ms=0, max_block_ms=10_000) as producer:
        assert producer.send("one", b"a").result(60).offset == 0


def test_when_no_address_answers_the_error_names_them() -> None:
    with (
        Producer("127.0.0.1:1,127.0.0.1:2", max_block_ms=500) as producer,
        pytest.raises(BootstrapError, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"),
    ):
        producer.send("one", b"a")


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


def test_close_delivers_what_is_waiting(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap, linger_ms=60_000)
    future = producer.send("one", b"a")
    producer.close()
    assert future.result(0).offset == 0
    with pytest.raises(ProducerClosedError):
        producer.send("one", b"b")


def test_close_ends_at_its_timeout(cluster: FakeCluster) -> None:
    cluster.faults.refuse = [ErrorCode.NOT_ENOUGH_REPLICAS] * 1_000
    producer = Producer(cluster.bootstrap)
    future = producer.send("one", b"a")
    began = time.monotonic()
    producer.close(timeout_s=0.5)
    assert time.monotonic() - began < 60
    assert isinstance(future.exception(0), ProducerClosedError)


@pytest.mark.parametrize("how", ["close", "flush", "send"])
def test_a_timeout_names_the_cause_that_delayed_the_records(cluster: FakeCluster, how: str) -> None:
    cluster.faults.refuse_always = ErrorCode.NOT_ENOUGH_REPLICAS
    producer = Producer(cluster.bootstrap, buffer_memory=1)
    future = producer.send("one", b"a")
    producer._max_block_s = 0.1
    wait_for(lambda: cluster.produce_requests >= 2)
    if how == "flush":
        with pytest.raises(RequestTimedOutError, match=r"broker 1 .* one-0: NOT_ENOUGH_REPLICAS on purpose"):
            producer.flush(0.1)
    if how == "send":
        with pytest.raises(BufferExhaustedError, match=r"broker 1 .* one-0: NOT_ENOUGH_REPLICAS on purpose"):
            producer.send("one", b"b")
    producer.close(timeout_s=0)
    error = future.exception(0)
    assert isinstance(error, ProducerClosedError) and isinstance(error.__cause__, NotEnoughReplicasError)
    assert "broker 1 " in str(error)


def test_close_joins_every_thread(cluster: FakeCluster) -> None:
    producer = Producer(cluster.bootstrap, client_id="to-be-joined")
    producer.send("one", b"a").result(60)
    assert any("to-be-joined" in thread.name for thread in threading.enumerate())
    producer.close()
    assert not any("to-be-joined" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("kind", [Producer, Consumer])
def test_close_does_not_wait_for_a_broker_that_hangs(
    cluster: FakeCluster, kind: type[Producer] | type[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline_client.metadata_refresher.ONE_BROKER_TIMEOUT_S", 40.0)
    go_on = cluster.faults.hold_metadata = threading.Event()
    client = kind(cluster.bootstrap)
    client._metadata.request()
    wait_for(lambda: cluster.metadata_requests > 0)
    begin = time.monotonic()
    client.close()
    took_s = time.monotonic() - begin
    go_on.set()
    assert took_s < 20
    assert not client._metadata._thread.is_alive()


def test_flush_ends_at_its_timeout(cluster: FakeCluster) -> None:
    cluster.faults.drop_before = ALWAYS
    producer = Producer(cluster.bootstrap)
    producer.send("one", b"a")
    with pytest.raises(RequestTimedOutError):
        producer.flush(0.3)
    producer.close(0)


def test_a_flush_waits_for_callbacks_of_records_whose_outcome_is_known(cluster: FakeCluster) -> None:
    began, go_on = threading.Event(), threading.Event()
    heard: list[RecordMetadata | None] = []

    def slowly(at: RecordMetadata | None, _error: PacelineError | None) -> None:
        began.set()
        go_on.wait(60)
        heard.append(at)

    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        try:
            future = producer.send("one", b"a", on_delivery=slowly)
            assert began.wait(60)
            assert future.done()
            with pytest.raises(RequestTimedOutError):
                producer.flush(timeout_s=0.1)
        finally:
            go_on.set()
        producer.flush(timeout_s=60)
        assert heard == [RecordMetadata("one", 0, 0, None)]


def test_flush_in_a_callback_is_refused_instead_of_waiting_for_itself(cluster: FakeCluster) -> None:
    raised: list[BaseException] = []

    with Producer(cluster.bootstrap) as producer:

        def callback(at: object, error: object) -> None:
            try:
                producer.flush()
            except InvalidRequestError as refused:
                raised.append(refused)

        producer.send("one", b"a", on_delivery=callback)
        wait_for(lambda: raised)


def test_a_producer_refuses_calls_in_a_forked_child(cluster: FakeCluster) -> None:
    held, let_go = threading.Event(), threading.Event()

    def hold(lock: threading.RLock) -> None:
        with lock:  # as the sender thread may do during a fork
            held.set()
            let_go.wait(60)

    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("one", b"a").result(60)
        holder = threading.Thread(target=hold, args=(producer._lock,))
        holder.start()
        assert held.wait(60)
        child = os.fork()
        if child == 0:
            refused = 0
            one, many = partial(producer.send, "one", b"b"), partial(producer.send_many, "one", [(None, b"b")])
            for act in (one, many, producer.flush):
                try:
                    act()
                except ProducerClosedError:
                    refused += 1
            producer.close()
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
        assert producer.send("one", b"c").result(60).offset == 1


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


def test_a_topic_re_created_with_fewer_partitions_gets_every_record(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0, delivery_timeout_ms=5_000) as producer:
        keys = [b"key %d" % number for number in range(20)]
        for key in keys:
            producer.send("t", b"before", key=key).result(60)
        cluster.make_anew("t", partitions=1)
        producer._metadata.request()
        wait_for(lambda: producer._routes["t"].count == 1)
        assert sorted(producer.send("t", b"after", key=key).result(60).offset or 0 for key in keys) == list(range(20))
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("t", b"nowhere", partition=1)


@pytest.mark.parametrize("known", [False, True], ids=["the producer hears of it later", "the producer has heard of it"])
def test_a_re_created_topic_gets_the_records_in_flight_in_order(cluster: FakeCluster, known: bool) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("one", b"before").result(60)
        hold = cluster.faults.hold_produce = threading.Event()
        under_way = [] if known else [producer.send("one", b"%d" % number) for number in range(4)]
        # The first request arrives before the leader has the log of the new topic.
        cluster.faults.refuse = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        cluster.make_anew("one", partitions=1)
        if known:
            producer._metadata.request()
            wait_for(lambda: producer._metadata.topic_id("one") == "another-id-of-one")
            under_way = [producer.send("one", b"%d" % number) for number in range(4)]
        hold.set()
        assert [future.result(60).offset for future in under_way] == [0, 1, 2, 3]
    assert cluster.values("one") == {0: [b"0", b"1", b"2", b"3"]}


def test_no_record_is_written_to_a_deleted_topic_that_was_re_created(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("one", b"before").result(60)
        cluster.topic_ids["one"] = "the-next-id"
        producer._metadata.request()
        wait_for(lambda: producer._metadata.topic_id("one") == "the-next-id")
        cluster.topic_ids["one"] = "id-of-one"  # the leader does not have the new topic id yet
        cluster.faults.hold_metadata = threading.Event()
        late = producer.send("one", b"late")
        wait_for(lambda: cluster.produce_requests >= 3)
        assert cluster.values("one") == {0: [b"before"]}
        cluster.topic_ids["one"] = "the-next-id"
        assert late.result(60).offset == 1
        cluster.faults.hold_metadata.set()


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
