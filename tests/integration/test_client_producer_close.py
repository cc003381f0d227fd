"""Close and flush of a producer, and a producer in a forked child."""

import os
import signal
import threading
import time
from functools import partial

import pytest

from paceline.model.errors import (
    ErrorCode,
    InvalidRequestError,
    NotEnoughReplicasError,
    PacelineError,
    RequestTimedOutError,
)
from paceline.model.identifiers import TopicPartition
from paceline_client import BufferExhaustedError, Connections, Consumer, Producer, ProducerClosedError, RecordMetadata
from tests.integration.client_clusters import producer_cluster
from tests.integration.fake_cluster import ALWAYS, FakeCluster, wait_for

__all__ = ["producer_cluster"]


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
        with pytest.raises(RequestTimedOutError, match=r"broker 1 .* one/0: NOT_ENOUGH_REPLICAS on purpose"):
            producer.flush(0.1)
    if how == "send":
        with pytest.raises(BufferExhaustedError, match=r"broker 1 .* one/0: NOT_ENOUGH_REPLICAS on purpose"):
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


def test_close_leaves_a_call_on_shared_connections_to_its_timeout(cluster: FakeCluster) -> None:
    with Connections(cluster.bootstrap) as connections:
        producer, consumer = Producer(connections), Consumer(connections)
        assert producer.partitions_for("one") == consumer.partitions_for("one") == 1
        with cluster.lock:  # no broker answers InitProducerId and ListOffsets
            producer.send("one", b"a")
            consumer.assign([("one", 0)])
            with pytest.raises(RequestTimedOutError):
                consumer.position(TopicPartition("one", 0), timeout_ms=300)
            begin = time.monotonic()
            producer.close(timeout_s=0)
            consumer.close()
            assert time.monotonic() - begin < 2
        assert not producer._sender.thread.is_alive() and not consumer._fetcher.thread.is_alive()


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
