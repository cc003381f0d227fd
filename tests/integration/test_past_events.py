"""`Admin.past_events` returns the events that a process still has; an open watch names its partitions to the broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from paceline.model.errors import BrokerNotAvailableError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChange, StateChangeKind
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.rpc.watch.watch_servicer import WatchServicer
from paceline.v1 import metadata_service_pb2 as pb
from paceline.v1.metadata_service_pb2_grpc import add_MetadataServiceServicer_to_server
from paceline_client import Admin
from tests.support.waiting import until

TP = TopicPartition("orders", 0)


class Process(WatchServicer):
    """Broker 1 and active controller; ``ends_past`` False is a process of an earlier version, without ``past_only``."""

    def __init__(self) -> None:
        super().__init__(WatchHub("run1"))
        self.hub = self._hub
        self.port = 0
        self.ends_past = True

    async def DescribeCluster(self, request: Any, context: Any) -> Any:  # noqa: N802
        me = {"host": "127.0.0.1", "port": self.port}
        controller = {"controller_id": 1, "controller_host": me["host"], "controller_port": self.port}
        return pb.DescribeClusterResponse(brokers=[pb.BrokerInfo(id=1, **me)], **controller)  # type: ignore[arg-type]

    async def DescribeTopics(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def DescribeReplicas(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    async def WatchEvents(self, request: Any, context: Any) -> AsyncIterator[Any]:  # type: ignore[override]  # noqa: N802
        request.past_only = request.past_only and self.ends_past
        async for message in super().WatchEvents(request, context):
            yield message

    def _check_active(self) -> None:
        """This process is the active controller."""


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    server, process = grpc.aio.server(), Process()
    add_MetadataServiceServicer_to_server(process, server)  # type: ignore[no-untyped-call]
    process.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for cause, kind in (("1", StateChangeKind.ISR_SHRUNK), ("2", StateChangeKind.BECAME_LEADER)):
        process.hub.put(StateChange(who="broker-1", wall_ms=1_000, kind=kind, topic_partition=TP, cause=cause))
    yield process
    process.hub.close()
    await server.stop(None)


async def test_past_events_end_with_the_last_event(process: Process) -> None:
    with Admin(f"127.0.0.1:{process.port}") as admin:
        for broker_id in (None, 1):
            found = await asyncio.to_thread(admin.past_events, topics=["orders"], broker_id=broker_id)
            assert [change.cause for change in found] == ["1", "2"]
        shrunk = await asyncio.to_thread(admin.past_events, kinds=[StateChangeKind.ISR_SHRUNK], topics=["orders"])
        assert [change.cause for change in shrunk] == ["1"]
        with pytest.raises(BrokerNotAvailableError):
            await asyncio.to_thread(admin.past_events, broker_id=7, timeout_ms=200)
        process.ends_past = False
        with pytest.raises(RequestTimedOutError):
            await asyncio.to_thread(admin.past_events, topics=["orders"], timeout_ms=200)


async def test_an_open_watch_names_its_partitions_and_a_closed_watch_does_not(process: Process) -> None:
    with Admin(f"127.0.0.1:{process.port}") as admin:
        watch = admin.watch_events(partitions=[TP], broker_id=1, since_ms=0)
        (first, second) = (await asyncio.to_thread(next, watch)).events
        assert (first.cause, second.cause) == ("1", "2")
        assert set(process.hub.watched) == {TP}
        await asyncio.to_thread(watch.close)  # type: ignore[attr-defined]
        await until(lambda: not process.hub.watched)
