"""Events reach the topic as soon as the cluster accepts them; until then they delay nothing and memory is bounded."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio
import pytest

from paceline.model.errors import BrokerNotAvailableError, ErrorCode
from paceline.model.event_ring import EventRing
from paceline.model.state_change import StateChange
from paceline.rpc.convert.events import event_from_proto
from paceline.rpc.watch import event_publisher
from paceline.rpc.watch.event_publisher import CLUSTER_EVENTS_TOPIC, EventPublisher
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.v1 import admin_service_pb2, cluster_event_pb2, log_service_pb2, metadata_service_pb2, record_pb2
from tests.support.waiting import until

PORT = 9092


class RecordingPublisher(EventPublisher):
    """Records produced events; fails the first ``failures`` attempts."""

    def __init__(self, hub: WatchHub, failures: int = 0) -> None:
        super().__init__(hub, list, lambda _address: None, 1)
        self.failures = failures
        self.attempts: list[list[bytes]] = []
        self.values: list[str] = []
        self.closes_after = 0

    async def _publish(self, records: Sequence[record_pb2.Record]) -> None:
        self.attempts.append([record.headers[0].value for record in records])
        if self.failures:
            self.failures -= 1
            raise BrokerNotAvailableError("planned")
        for record in records:
            change = event_from_proto(cluster_event_pb2.ClusterEvent.FromString(record.value))
            self.values.append(change.cause or "")
        if len(self.values) >= self.closes_after:
            self._hub.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_publisher, "LINGER_S", 0.0)
    monkeypatch.setattr(
        event_publisher, "_RETRY", event_publisher.RetryPolicy(1, 1, deadline_ms=None, max_attempts=100)
    )


def say(hub: WatchHub, *causes: str) -> None:
    for cause in causes:
        hub.put(StateChange(who="broker-1", wall_ms=1, cause=cause))


async def run(publisher: RecordingPublisher, expected: int) -> None:
    publisher.closes_after = expected
    await asyncio.wait_for(publisher.run(), 10)


async def test_events_from_before_and_after_the_start_are_published_in_order() -> None:
    hub = WatchHub("x")
    say(hub, "a", "b")
    publisher = RecordingPublisher(hub)
    running = asyncio.create_task(run(publisher, 3))
    await until(lambda: len(publisher.values) == 2)
    say(hub, "c")
    await running
    assert publisher.values == ["a", "b", "c"] and publisher.published == 3


async def test_a_repeated_attempt_has_the_same_event_ids() -> None:
    hub = WatchHub("x")
    say(hub, "a", "b")
    publisher = RecordingPublisher(hub, failures=3)
    await run(publisher, 2)
    assert publisher.attempts == [[b"x.0", b"x.1"]] * 4 and publisher.values == ["a", "b"]


async def test_events_that_left_the_ring_are_counted_and_later_ones_keep_their_ids() -> None:
    hub = WatchHub("x", EventRing(3))
    say(hub, *"abc")
    publisher = RecordingPublisher(hub, failures=1)
    say(hub, *"de")
    await run(publisher, 3)
    assert publisher.values == ["c", "d", "e"] and publisher.lost == 0
    assert publisher.attempts[0] == [b"x.2", b"x.3", b"x.4"]


async def test_events_lost_while_the_cluster_refused_them_are_counted() -> None:
    hub = WatchHub("x", EventRing(2))
    say(hub, "a")
    publisher = RecordingPublisher(hub)

    async def slow(records: Sequence[record_pb2.Record]) -> None:
        if not publisher.values:
            say(hub, *"bcde")
        await RecordingPublisher._publish(publisher, records)

    publisher._publish = slow  # type: ignore[method-assign]
    await run(publisher, 3)
    assert publisher.values == ["a", "d", "e"] and publisher.lost == 2


class Broker:
    """A broker and controller that answers the requests of a publisher; the topic is missing while it has no leader."""

    def __init__(self, host: str, leader: str | None = None, is_dead: bool = False) -> None:
        self.host = host
        self.leader = leader
        self.is_dead = is_dead
        self.called: list[str] = []

    def answer(self, method: str) -> Any:
        self.called.append(method)
        if self.is_dead:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        if method == "DescribeCluster":
            broker = metadata_service_pb2.BrokerInfo(id=1, host=self.leader or self.host, port=PORT)
            return metadata_service_pb2.DescribeClusterResponse(
                brokers=[broker], controller_host=self.host, controller_port=PORT
            )
        if method == "DescribeTopics":
            topic = metadata_service_pb2.TopicDescription(name=CLUSTER_EVENTS_TOPIC)
            if self.leader is None:
                topic.error.code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                topic.partitions.add(partition=0, leader=1)
            return metadata_service_pb2.DescribeTopicsResponse(topics=[topic])
        if method == "CreateTopics":
            self.leader = self.host
            return admin_service_pb2.CreateTopicsResponse()
        return log_service_pb2.ProduceResponse(partitions=[log_service_pb2.ProducePartitionResult()])


class Channel:
    """A channel to a broker of a test."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def unary_unary(self, method: str, **_: Any) -> Any:
        async def call(_request: Any, timeout: float) -> Any:
            return self._broker.answer(method.rpartition("/")[2])

        return call

    unary_stream = stream_unary = stream_stream = unary_unary

    async def close(self) -> None:
        pass


async def publish_an_event(open_channel: Callable[[str], Channel], *asked: str) -> None:
    """Publish an event to a cluster of which the process knows the addresses ``asked``."""
    hub = WatchHub("x")
    say(hub, "a")
    publisher = EventPublisher(hub, lambda: asked, open_channel, 1)
    running = asyncio.create_task(publisher.run())
    try:
        await until(lambda: publisher.published or running.done())
    finally:
        hub.close()
        await running
    assert publisher.published == 1


async def test_another_broker_is_asked_for_the_leader_while_the_first_broker_returns_a_dead_leader() -> None:
    dead, stale, fresh = Broker("dead", is_dead=True), Broker("a", leader="dead"), Broker("b", leader="b")
    brokers = {"dead:9092": dead, "a:9092": stale, "b:9092": fresh}
    await publish_an_event(lambda address: Channel(brokers[address]), "a:9092", "b:9092")
    assert dead.called == ["Produce"] and fresh.called == ["DescribeCluster", "DescribeTopics", "Produce"]


async def test_controller_and_leader_are_reached_at_ipv6_addresses() -> None:
    broker = Broker("::1")
    brokers = {"[::1]:9092": broker}
    await publish_an_event(lambda address: Channel(brokers[address]), "[::1]:9092")
    assert broker.called[2:] == ["CreateTopics", "DescribeCluster", "DescribeTopics", "Produce"]


async def test_without_a_known_broker_the_publisher_waits_and_delays_nothing() -> None:
    hub = WatchHub("x")
    publisher = EventPublisher(hub, list, lambda _address: None, 3)
    say(hub, "a")
    running = asyncio.create_task(publisher.run())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not running.done() and publisher.published == 0
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_failed_call_is_repeated_on_a_new_channel_with_the_certificates_of_that_time() -> None:
    broker = Broker("b", leader="b", is_dead=True)
    certificates = ["expired"]
    opened: list[str] = []

    def open_channel(_address: str) -> Channel:
        opened.append(certificates[0])
        broker.is_dead = certificates[0] == "expired"
        certificates[0] = "renewed"
        return Channel(broker)

    await publish_an_event(open_channel, "b:9092")
    assert opened == ["expired", "renewed"]
