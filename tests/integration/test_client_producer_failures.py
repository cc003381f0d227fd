"""A producer whose brokers move, die, refuse, or do not answer, and topics that are re-created."""

import threading
import time

import pytest

from paceline.model.errors import (
    ErrorCode,
    InvalidProducerEpochError,
    InvalidRequestError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.streams.stream_call import StreamCall
from paceline_client import BootstrapError, Consumer, DeliveryFailedError, Producer, ProducerFatalError, broker_streams
from tests.integration.client_clusters import producer_cluster
from tests.integration.fake_cluster import FakeCluster, wait_for
from tests.integration.tcp_proxy import TcpProxy

__all__ = ["producer_cluster"]


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


def test_a_broker_with_a_new_address_is_written_to_while_its_old_address_hangs(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_streams, "IDLE_S", 1.0)
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
        wait_for(lambda: sum(thread.name.startswith("moves-sender-stream-") for thread in threading.enumerate()) <= 1)
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
        wait_for(lambda: client._metadata.cluster.leader_of(one) is None)
        asked, begin = cluster.metadata_requests, time.monotonic()
        wait_for(lambda: cluster.metadata_requests >= asked + 12)
        assert time.monotonic() - begin > 1.2
        cluster.move(one, 2)
        wait_for(lambda: client._metadata.cluster.leader_of(one) is not None)
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


@pytest.mark.parametrize("lacking", ["nothing", "the method", "gRPC's internals"])
def test_requests_go_over_streams_where_the_broker_knows_them(
    cluster: FakeCluster, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.faults.no_streams = lacking == "the method"
    if lacking == "gRPC's internals":
        monkeypatch.delattr(StreamCall, "_begin")
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(5):
            producer.send("one", b"%d" % number).result(60)
    assert cluster.values("one")[0] == [b"0", b"1", b"2", b"3", b"4"]
    assert cluster.produce_requests == 5
    assert cluster.streamed_requests == (5 if lacking == "nothing" else 0)


def test_a_request_on_a_stream_ends_with_its_deadline_and_is_sent_again(cluster: FakeCluster) -> None:
    held = cluster.faults.hold_produce = threading.Event()
    with Producer(cluster.bootstrap, linger_ms=0, request_timeout_ms=300) as producer:
        future = producer.send("one", b"once")
        wait_for(lambda: cluster.streamed_requests >= 2, what="the second attempt")
        held.set()
        future.result(60)
    assert cluster.values("one")[0] == [b"once"]


def test_a_refused_batch_fails_alone(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0, batch_size=100) as producer:
        producer.send("one", b"first").result(60)
        cluster.faults.refuse = [ErrorCode.MESSAGE_TOO_LARGE]
        futures = [producer.send("one", bytes(80)) for _ in range(5)]
        errors = [future.exception(60) for future in futures]
    assert [type(error) for error in errors] == [MessageTooLargeError] + [type(None)] * 4
    assert len(cluster.values("one")[0]) == 5


def test_a_newer_producer_epoch_is_fatal_and_later_sends_raise_it(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("one", b"a").result(60)
        cluster.faults.refuse_always = ErrorCode.INVALID_PRODUCER_EPOCH
        error = producer.send("one", b"b").exception(60)
        assert isinstance(error, ProducerFatalError)
        assert isinstance(error.cause, InvalidProducerEpochError)
        with pytest.raises(ProducerFatalError):
            producer.send("one", b"c")


def test_a_leader_that_lost_records_gets_those_that_were_not_acknowledged_once_and_in_order(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    log = cluster.logs[TopicPartition("one", 0)]
    values = [b"%03d" % number + bytes(60) for number in range(15)]
    with Producer(cluster.bootstrap, linger_ms=0, batch_size=100, retry_backoff_ms=30_000) as producer:
        for value in values[:10]:
            producer.send("one", value).result(60)
        producer.send("t", b"before", partition=0).result(60)
        cluster.faults.drop_after = 1
        waiting = [producer.send("one", values[10])]  # appended, without a response
        wait_for(lambda: cluster.faults.drop_after == 0)
        hold = cluster.faults.hold_metadata = threading.Event()
        waiting += [producer.send("one", value) for value in values[11:]]
        with cluster.lock:
            assert log.end == 11
            log.lose(7, leader=2)
        hold.set()
        cluster.faults.hold_metadata = None
        producer._metadata.request()
        assert [future.result(60).offset for future in waiting] == [7, 8, 9, 10, 11]
        assert producer.send("t", b"after", partition=0).result(60).offset == 1
    assert cluster.values("one")[0] == values[:7] + values[10:]
    assert len(cluster.producer_id_requests_s) == 2
    assert [record.message for record in caplog.records if "lost acknowledged records" in record.message] == [
        "leader lost acknowledged records: partition=one/0 "
        f"error=broker 2 (127.0.0.1:{cluster.brokers[2].port}): one/0: OUT_OF_ORDER_SEQUENCE_NUMBER on purpose"
    ]


def test_a_leader_that_refuses_every_sequence_fails_only_its_partition_with_the_cause(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0, delivery_timeout_ms=3_000) as producer:
        producer.send("one", b"a").result(60)
        cluster.faults.refuse = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 1_000
        error = producer.send("one", b"b").exception(60)
        assert isinstance(error, DeliveryFailedError) and error.definite
        assert isinstance(error.cause, OutOfOrderSequenceNumberError)
        assert len(cluster.producer_id_requests_s) < 10
        cluster.faults.refuse = []
        assert producer.send("one", b"c").result(60).offset == 1


def test_a_batch_in_the_same_request_as_a_fatal_one_is_acknowledged(cluster: FakeCluster) -> None:
    cluster.topic("many", partitions=4)
    partitions = (0, 2)  # of the same leader
    with Producer(cluster.bootstrap, linger_ms=60_000) as producer:
        for partition in partitions:
            producer.send("many", b"first", partition=partition)
        producer.flush(60)
        cluster.faults.refuse = [ErrorCode.INVALID_PRODUCER_EPOCH]
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
            wait_for(lambda: producer._metadata.cluster.topic_id("one") == "another-id-of-one")
            under_way = [producer.send("one", b"%d" % number) for number in range(4)]
        hold.set()
        assert [future.result(60).offset for future in under_way] == [0, 1, 2, 3]
    assert cluster.values("one") == {0: [b"0", b"1", b"2", b"3"]}


def test_no_record_is_written_to_a_deleted_topic_that_was_re_created(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap, linger_ms=0) as producer:
        producer.send("one", b"before").result(60)
        cluster.topic_ids["one"] = "the-next-id"
        producer._metadata.request()
        wait_for(lambda: producer._metadata.cluster.topic_id("one") == "the-next-id")
        cluster.topic_ids["one"] = "id-of-one"  # the leader does not have the new topic id yet
        cluster.faults.hold_metadata = threading.Event()
        late = producer.send("one", b"late")
        wait_for(lambda: cluster.produce_requests >= 3)
        assert cluster.values("one") == {0: [b"before"]}
        cluster.topic_ids["one"] = "the-next-id"
        assert late.result(60).offset == 1
        cluster.faults.hold_metadata.set()
