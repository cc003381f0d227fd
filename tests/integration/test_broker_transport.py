"""A broker's calls to leaders and controllers over real connections: each call has exactly one outcome."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from paceline.broker.service.transport import GrpcBrokerTransport
from paceline.internal.v1 import (
    controller_service_pb2,
    controller_service_pb2_grpc,
    replication_service_pb2,
    replication_service_pb2_grpc,
)
from paceline.model.control import ControlledShutdownRequest, ControlledShutdownResponse, Endpoint, LiveBroker
from paceline.model.errors import (
    BrokerNotAvailableError,
    ErrorCode,
    InvalidRequestError,
    RequestTimedOutError,
    UnknownServerError,
)
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import (
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.v1 import log_service_pb2
from tests.support.waiting import eventually

TP = TopicPartition("t", 0)
REQUEST = ReplicaFetchRequest(2, 9, 100, 1, 1000, 0, 0, [FetchPosition(TP, None, 0, 1000, 3, None, 0)], [])


class Leader(
    replication_service_pb2_grpc.ReplicationServiceServicer, controller_service_pb2_grpc.ControllerServiceServicer
):
    """A leader and a controller that return prepared responses."""

    def __init__(self) -> None:
        self.peers: list[str] = []
        self.hold = threading.Event()
        self.hold.set()

    def FetchStream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        for _ in requests:
            self.peers.append(context.peer())
            self.hold.wait(120)
            result = replication_service_pb2.FetchPartitionResult(topic="t", high_watermark=4, batches=b"\x01" * 5_000)
            yield replication_service_pb2.FetchResponse(session_id=7, partitions=[result])

    def OffsetsForLeaderEpoch(self, request: Any, context: Any) -> Any:  # noqa: N802
        end = log_service_pb2.EpochEndOffset(epoch=request.partitions[0].leader_epoch, end_offset=12)
        return replication_service_pb2.OffsetsForLeaderEpochResponse(
            partitions=[log_service_pb2.EpochPartitionResult(topic="t", end=end)]
        )

    def ControlledShutdown(self, request: Any, context: Any) -> Any:  # noqa: N802
        return controller_service_pb2.ControlledShutdownResponse(
            remaining=[controller_service_pb2.RemainingPartition(topic="t", partition=request.broker_id)]
        )


@pytest.fixture
def leader() -> Iterator[tuple[Leader, int]]:
    servicer = Leader()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    replication_service_pb2_grpc.add_ReplicationServiceServicer_to_server(servicer, server)
    controller_service_pb2_grpc.add_ControllerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, port
    servicer.hold.set()
    server.stop(0).wait(60)


@pytest.fixture
async def transport() -> AsyncIterator[GrpcBrokerTransport]:
    made = GrpcBrokerTransport(AsyncioScheduler(asyncio.get_running_loop()).post)
    yield made
    await asyncio.to_thread(made.close)


def broker(port: int, broker_id: int = 1) -> LiveBroker:
    return LiveBroker(broker_id, (Endpoint("REPLICATION", "127.0.0.1", port),))


async def outcome(start: Callable[[Callable[[Any], None]], None]) -> Any:
    """Return the result or error of the call; its callback must run on the event loop's thread."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    loop_thread = threading.get_ident()

    def done(value: Any) -> None:
        assert threading.get_ident() == loop_thread
        future.set_result(value)

    start(done)
    return await asyncio.wait_for(future, 120)


async def test_fetches_and_shutdowns_are_answered(transport: GrpcBrokerTransport, leader: tuple[Leader, int]) -> None:
    _, port = leader
    fetched = await outcome(lambda done: transport.replica_fetch(broker(port), 0, REQUEST, 60_000, done))
    assert isinstance(fetched, ReplicaFetchResponse)
    assert (fetched.session_id, fetched.error, fetched.results[0].high_watermark) == (7, ErrorCode.NONE, 4)
    assert fetched.results[0].batches == b"\x01" * 5_000
    controller, request = Endpoint("CONTROL", "127.0.0.1", port), ControlledShutdownRequest(2, 9)
    moved = await outcome(lambda done: transport.controlled_shutdown(controller, request, 60_000, done))
    assert moved == ControlledShutdownResponse(ErrorCode.NONE, (TopicPartition("t", 2),))


async def test_each_fetcher_has_its_own_connection(transport: GrpcBrokerTransport, leader: tuple[Leader, int]) -> None:
    servicer, port = leader
    for fetcher_id in (0, 1, 0, 1):
        await outcome(
            lambda done, number=fetcher_id: transport.replica_fetch(broker(port), number, REQUEST, 60_000, done)
        )  # type: ignore[misc]
    assert len(set(servicer.peers)) == 2
    assert servicer.peers[:2] == servicer.peers[2:]


async def test_an_unreachable_leader_is_an_error_and_is_found_when_it_returns(
    transport: GrpcBrokerTransport, leader: tuple[Leader, int]
) -> None:
    gone = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    port = gone.add_insecure_port("127.0.0.1:0")
    gone.stop(0).wait(60)
    error = await outcome(lambda done: transport.replica_fetch(broker(port), 0, REQUEST, 60_000, done))
    assert isinstance(error, BrokerNotAvailableError)
    _, new_port = leader
    answer = await outcome(lambda done: transport.replica_fetch(broker(new_port), 0, REQUEST, 60_000, done))
    assert isinstance(answer, ReplicaFetchResponse), "the leader has moved to another address"


async def test_a_slow_leader_ends_with_the_deadline(transport: GrpcBrokerTransport, leader: tuple[Leader, int]) -> None:
    servicer, port = leader
    servicer.hold.clear()
    error = await outcome(lambda done: transport.replica_fetch(broker(port), 0, REQUEST, 200, done))
    assert isinstance(error, RequestTimedOutError)


async def test_closing_a_fetcher_ends_its_call_in_flight_and_queued_calls(
    transport: GrpcBrokerTransport, leader: tuple[Leader, int]
) -> None:
    servicer, port = leader
    servicer.hold.clear()

    def start_two_and_close(done: Callable[[Any], None]) -> None:
        outcomes: list[Any] = []

        def collect(value: Any) -> None:
            outcomes.append(value)
            if len(outcomes) == 2:
                done(outcomes)

        transport.replica_fetch(broker(port), 0, REQUEST, 60_000, collect)
        transport.replica_fetch(broker(port), 0, REQUEST, 60_000, collect)
        transport.close_fetcher(1, 0)

    first, second = await outcome(start_two_and_close)
    assert isinstance(first, BrokerNotAvailableError | UnknownServerError)
    assert isinstance(second, BrokerNotAvailableError | UnknownServerError)


async def test_a_leader_without_a_replication_listener_is_an_error(transport: GrpcBrokerTransport) -> None:
    nowhere = LiveBroker(1, (Endpoint("CLIENT", "127.0.0.1", 1),))
    error = await outcome(lambda done: transport.replica_fetch(nowhere, 0, REQUEST, 60_000, done))
    assert isinstance(error, InvalidRequestError)


async def test_calls_to_a_controller_at_a_new_address_close_the_earlier_connection(
    transport: GrpcBrokerTransport, leader: tuple[Leader, int]
) -> None:
    """Otherwise each address that a controller ever had would keep a thread and a connection."""
    _, port = leader
    request, earlier = ControlledShutdownRequest(2, 9), set(threading.enumerate())
    for host in ("127.0.0.1", "localhost", "127.0.0.1"):
        controller = Endpoint("CONTROL", host, port)
        moved = await outcome(
            lambda done, address=controller: transport.controlled_shutdown(address, request, 60_000, done)  # type: ignore[misc]
        )
        assert isinstance(moved, ControlledShutdownResponse)

    def callers() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "controller-calls" and one not in earlier]

    await asyncio.to_thread(eventually, lambda: len(callers()) == 1, 60, "one thread for calls to the controller")
