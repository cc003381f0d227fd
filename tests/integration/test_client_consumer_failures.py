"""A consumer whose brokers move, restart, refuse, or do not answer."""

import threading
import time
from typing import Any

import pytest

from paceline.model.errors import ErrorCode, InvalidRequestError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline_client import Consumer, ConsumerRecord, broker_streams
from paceline_client.metadata import ClusterMetadata
from tests.integration.client_clusters import ONE, consumer_cluster, read, write
from tests.integration.fake_cluster import FakeCluster, wait_for
from tests.integration.tcp_proxy import TcpProxy

__all__ = ["consumer_cluster"]


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


def test_a_broker_with_a_new_address_is_read_while_its_old_address_hangs(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_streams, "IDLE_S", 1.0)
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


def test_a_partition_that_is_unreadable_for_long_is_retried_with_pauses(cluster: FakeCluster) -> None:
    resting, reading = TopicPartition("t", 0), TopicPartition("t", 2)
    assert cluster.logs[resting].leader == cluster.logs[reading].leader
    with Consumer(cluster.bootstrap) as consumer:
        consumer.assign([resting, reading])
        assert [consumer.position(tp) for tp in (resting, reading)] == [0, 0]
        with cluster.lock:
            log = cluster.logs.pop(resting)
        state = consumer._assignment.state(resting)
        wait_for(lambda: state.failing_since_ms is not None)
        failing_s = (state.failing_since_ms or 0) / 1000
        wait_for(lambda: time.monotonic() > failing_s + 2)
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
        with pytest.raises(RequestTimedOutError, match=r"one/0 could not be read for 2000 ms: .*broker 1"):
            read(consumer, 1)
        cluster.brokers[1].start()
        write(cluster, b"b")
        assert read_through_hindrances(consumer).value == b"b"


def test_a_partition_without_a_leader_for_long_is_reported(cluster: FakeCluster) -> None:
    write(cluster, b"a")
    cluster.move(ONE, None)
    with Consumer(cluster.bootstrap, default_api_timeout_ms=2_000) as consumer:
        consumer.assign([ONE])
        with pytest.raises(RequestTimedOutError, match="one/0 has no leader"):
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
        with pytest.raises(RequestTimedOutError, match="one/0 could not be read for 4000 ms: broker 1 ") as told:
            read(consumer, 1)
        assert "KAFKA_STORAGE_ERROR" not in str(told.value)
    proxy.close()


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
