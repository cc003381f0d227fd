"""Events reach the topic as soon as the cluster accepts them; until then they delay nothing and memory is bounded."""

import asyncio
from collections.abc import Sequence

import pytest

from paceline.model.errors import BrokerNotAvailableError
from paceline.model.event_ring import EventRing
from paceline.model.state_change import StateChange
from paceline.rpc.convert.events import event_from_proto
from paceline.rpc.watch import event_publisher
from paceline.rpc.watch.event_publisher import EventPublisher
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.v1 import cluster_event_pb2, record_pb2


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
    while len(publisher.values) < 2:
        await asyncio.sleep(0.001)
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


async def test_without_a_known_broker_the_publisher_waits_and_delays_nothing() -> None:
    hub = WatchHub("x")
    publisher = EventPublisher(hub, list, lambda _address: None, 3)
    say(hub, "a")
    running = asyncio.create_task(publisher.run())
    await asyncio.sleep(0.05)
    assert not running.done() and publisher.published == 0
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
