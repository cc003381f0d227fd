"""The controller's servicers and its calls to brokers over real gRPC.

ZooKeeper is in memory, on the same event loop as the node.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import pytest
import pytest_asyncio

from paceline.controller.node import ControllerNode
from paceline.controller.service.admin_servicer import AdminServicer
from paceline.controller.service.metadata_servicer import MAX_WAITING_CALLS, MetadataServicer, NodeHandle
from paceline.controller.service.servers import ControllerServers
from paceline.controller.service.transport import GrpcControlTransport
from paceline.coordination import znodes
from paceline.coordination.interface import Create, Response
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.internal.v1 import controller_service_pb2, controller_service_pb2_grpc
from paceline.internal.v1 import replica_manager_service_pb2 as control_pb
from paceline.internal.v1 import replica_manager_service_pb2_grpc as control_grpc
from paceline.model.control import (
    ControlledShutdownResponse,
    ControllerStamp,
    ControlResponse,
    Endpoint,
    LiveBroker,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from paceline.model.errors import (
    BrokerNotAvailableError,
    ErrorCode,
    InvalidRequestError,
    NotControllerError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    ShuttingDownError,
    ThrottledError,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.server import Service, ThreadPoolRpcServer
from paceline.rpc.watch.watch_hub import WatchHub
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.metrics import Metrics
from paceline.runtime.settings import load_controller
from paceline.v1 import admin_service_pb2 as admin_pb
from paceline.v1 import admin_service_pb2_grpc, metadata_service_pb2_grpc
from paceline.v1 import metadata_service_pb2 as metadata_pb
from tests.support.no_standbys import NoStandbyTransport
from tests.support.zookeeper.client import MemoryZooKeeper, MemoryZooKeeperServer

T = TypeVar("T")
DEADLINE_S = 60.0


class FakeReplicaManager(control_grpc.ReplicaManagerServiceServicer):
    """A broker's CONTROL listener that accepts every request, and withholds its responses while a test asks for it."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.server = ThreadPoolRpcServer(
            "CONTROL",
            [
                Service(
                    "paceline.internal.v1.ReplicaManagerService",
                    lambda server: control_grpc.add_ReplicaManagerServiceServicer_to_server(self, server),
                )
            ],
        )
        self.port = self.server.bind("127.0.0.1", 0)

    def LeaderAndIsr(self, request: Any, context: Any) -> control_pb.LeaderAndIsrResponse:  # noqa: N802
        self._arrived(request)
        rows = [control_pb.ControlPartitionResult(topic=p.topic, partition=p.partition) for p in request.partitions]
        return control_pb.LeaderAndIsrResponse(partitions=rows)

    def StopReplica(self, request: Any, context: Any) -> control_pb.StopReplicaResponse:  # noqa: N802
        self._arrived(request)
        rows = [control_pb.ControlPartitionResult(topic=p.topic, partition=p.partition) for p in request.partitions]
        rows[-1].error = int(ErrorCode.KAFKA_STORAGE_ERROR)  # type: ignore[assignment]
        return control_pb.StopReplicaResponse(partitions=rows)

    def UpdateMetadata(self, request: Any, context: Any) -> control_pb.UpdateMetadataResponse:  # noqa: N802
        self._arrived(request)
        return control_pb.UpdateMetadataResponse()

    def _arrived(self, request: Any) -> None:
        self.received.append(request)
        self.may_answer.wait(DEADLINE_S)


@dataclass
class Process:
    """One controller with its listeners."""

    node: ControllerNode
    servers: ControllerServers
    transport: GrpcControlTransport
    handle: NodeHandle
    address: str = ""
    control: str = ""
    channels: list[Any] = field(default_factory=list)

    def channel(self, address: str | None = None) -> Any:
        channel = grpc.aio.insecure_channel(address or self.address)
        self.channels.append(channel)
        return channel

    @property
    def admin(self) -> Any:
        return admin_service_pb2_grpc.AdminServiceStub(self.channel())

    @property
    def metadata(self) -> Any:
        return metadata_service_pb2_grpc.MetadataServiceStub(self.channel())

    async def stop(self) -> None:
        for channel in self.channels:
            await channel.close()
        self.node.stop()
        await self.servers.stop(0.1)
        await asyncio.get_running_loop().run_in_executor(None, self.transport.close_all)


class World:
    """ZooKeeper in memory, controllers with real listeners, and fake brokers."""

    def __init__(self) -> None:
        self.scheduler = AsyncioScheduler(asyncio.get_running_loop())
        self.zookeeper = MemoryZooKeeperServer(self.scheduler)
        self.brokers: dict[int, FakeReplicaManager] = {}
        self.sessions: list[MemoryZooKeeper] = []
        self.processes: list[Process] = []

    def client(self) -> MemoryZooKeeper:
        client = MemoryZooKeeper(self.zookeeper, self.scheduler)
        self.sessions.append(client)
        return client

    async def start_controller(self, controller_id: int) -> Process:
        arguments = ["--listeners", "CLIENT://127.0.0.1:0,CONTROL://127.0.0.1:0", "--controller-id", str(controller_id)]
        settings = load_controller([*arguments, "--zookeeper-connect", "unused:1"], {})
        handle = NodeHandle()
        handle.set_loaded(False)
        servers = ControllerServers(settings, handle, self.scheduler, Metrics())
        await servers.start()
        transport = GrpcControlTransport(self.scheduler.post)
        node = ControllerNode(
            settings.config,
            servers.advertised,
            self.scheduler,
            PatientZooKeeper(self.client()),
            transport,
            random.Random(1),
            lambda change: None,
            on_active_change=handle.set_loaded,
            standby_transport=NoStandbyTransport(),
        )
        addresses = {endpoint.listener: endpoint.address for endpoint in servers.advertised}
        process = Process(node, servers, transport, handle, addresses["CLIENT"], addresses["CONTROL"])
        self.processes.append(process)
        with_early_call = process.metadata.DescribeCluster(metadata_pb.DescribeClusterRequest(), timeout=DEADLINE_S)
        with pytest.raises(grpc.aio.AioRpcError) as early:
            await with_early_call
        assert isinstance(from_rpc_error(early.value), ShuttingDownError), "calls before the node exists are refused"
        handle.set(node)
        node.start()
        await self.until(lambda: node.active_controller is not None and not handle.is_loading)
        return process

    async def start_broker(self, broker_id: int, listening: bool = True) -> FakeReplicaManager:
        broker = self.brokers[broker_id] = FakeReplicaManager()
        if listening:
            broker.server.start()
        client = self.client()
        client.start(lambda event: None, lambda event: None)
        endpoints = (Endpoint("CLIENT", "127.0.0.1", 1), Endpoint("CONTROL", "127.0.0.1", broker.port))
        data = znodes.encode_broker(znodes.BrokerRegistration(broker_id, endpoints, 0, f"rack-{broker_id}"))
        done: list[list[Response]] = []
        client.submit([Create(znodes.broker_path(broker_id), data, ephemeral=True)], done.append)
        await self.until(lambda: bool(done))
        assert done[0][0].ok
        return broker

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        for broker in self.brokers.values():
            broker.may_answer.set()
        for process in self.processes:
            await process.stop()
        for client in self.sessions:
            client.close()
        for broker in self.brokers.values():
            await asyncio.get_running_loop().run_in_executor(None, broker.server.stop, 0.1)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.stop()


async def failure_of(call: Any) -> Exception:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


def creation(name: str, partitions: int = 2, timeout_ms: int = 60_000, **fields: Any) -> admin_pb.CreateTopicsRequest:
    topic = admin_pb.NewTopic(name=name, partitions=partitions, replication_factor=2, **fields)
    return admin_pb.CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


async def test_a_topic_is_created_described_and_deleted(world: World) -> None:
    active = await world.start_controller(1_000_001)
    for broker_id in (1, 2):
        await world.start_broker(broker_id)
    await world.until(lambda: len(active.node.describe_cluster().brokers) == 2)
    created = await active.admin.CreateTopics(creation("a", configs={"retention.ms": "60000"}), timeout=DEADLINE_S)
    (result,) = created.topics
    assert not result.HasField("error")
    assert len(result.topic_id) == 22
    assert sorted(result.assignments[0].broker_ids) == [1, 2]
    described = await active.metadata.DescribeTopics(metadata_pb.DescribeTopicsRequest(), timeout=DEADLINE_S)
    (topic,) = described.topics
    assert (topic.name, topic.topic_id) == ("a", result.topic_id)
    assert [(p.partition, p.leader, sorted(p.isr)) for p in topic.partitions] == [
        (number, result.assignments[number].broker_ids[0], [1, 2]) for number in (0, 1)
    ]
    told = [request for request in world.brokers[1].received if isinstance(request, control_pb.LeaderAndIsrRequest)]
    assert [(p.topic, p.topic_id, p.is_new) for p in told[0].partitions] == [("a", result.topic_id, True)] * 2
    unknown = await active.metadata.DescribeTopics(
        metadata_pb.DescribeTopicsRequest(topics=["nosuch"]), timeout=DEADLINE_S
    )
    assert unknown.topics[0].error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """Run a handler that awaits nothing, without giving way to the event loop."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("the handler waits")


async def test_a_new_controller_does_not_describe_topics_and_brokers_before_its_failover_ends(world: World) -> None:
    first = await world.start_controller(1_000_001)
    for broker_id in (1, 2):
        await world.start_broker(broker_id)
    await world.until(lambda: len(first.node.describe_cluster().brokers) == 2)
    await first.admin.CreateTopics(creation("a"), timeout=DEADLINE_S)
    second = await world.start_controller(1_000_002)
    metadata = MetadataServicer(second.handle, "CLIENT", 1_000_002, WatchHub("one"))
    admin = AdminServicer(second.handle, "CLIENT")
    first.node.stop()
    topics = metadata_pb.DescribeTopicsRequest(topics=["a"])
    answers: list[tuple[int, int, int]] = []
    refusals: list[str] = []

    def ask() -> bool:
        if not second.node.is_active:
            return False
        try:
            cluster = at_once(metadata.DescribeCluster(metadata_pb.DescribeClusterRequest(), None))
        except NotControllerError as error:
            refusals.append(str(error))
            with pytest.raises(NotControllerError):
                at_once(metadata.DescribeTopics(topics, None))
            with pytest.raises(NotControllerError):
                admin._live_brokers()
            return False
        (topic,) = at_once(metadata.DescribeTopics(topics, None)).topics
        answers.append((len(cluster.brokers), len(topic.partitions), len(admin._live_brokers())))
        return len(answers) == 5

    async with asyncio.timeout(DEADLINE_S):
        while not ask():
            await asyncio.sleep(0)
    assert answers == [(2, 2, 2)] * 5
    assert set(refusals) == {"this controller is loading the cluster"}


async def test_per_topic_errors_are_in_the_answer(world: World) -> None:
    active = await world.start_controller(1_000_001)
    answer = await active.admin.CreateTopics(creation("a"), timeout=DEADLINE_S)
    assert answer.topics[0].error.code == ErrorCode.INVALID_REPLICATION_FACTOR
    answer = await active.admin.DeleteTopics(admin_pb.DeleteTopicsRequest(topics=["a"]), timeout=DEADLINE_S)
    assert answer.topics[0].error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refused = await failure_of(active.admin.CreateTopics(creation("a", timeout_ms=-1), timeout=DEADLINE_S))
    assert isinstance(refused, InvalidRequestError)


async def test_a_creation_that_is_not_acknowledged_ends_with_its_timeout(world: World) -> None:
    active = await world.start_controller(1_000_001)
    for broker_id in (1, 2):
        broker = await world.start_broker(broker_id)
    await world.until(lambda: len(active.node.describe_cluster().brokers) == 2)
    await world.until(lambda: active.node.gauges()["controller_request_queue_size"] == 0)
    broker.may_answer.clear()
    answer = await active.admin.CreateTopics(creation("a", timeout_ms=300), timeout=DEADLINE_S)
    assert answer.topics[0].error.code == ErrorCode.REQUEST_TIMED_OUT
    assert answer.topics[0].topic_id


async def test_a_standby_names_the_active_controllers_address(world: World) -> None:
    active = await world.start_controller(1_000_001)
    standby = await world.start_controller(1_000_002)
    for call in (
        standby.admin.CreateTopics(creation("a"), timeout=DEADLINE_S),
        standby.admin.DeleteTopics(admin_pb.DeleteTopicsRequest(topics=["a"]), timeout=DEADLINE_S),
        standby.metadata.DescribeTopics(metadata_pb.DescribeTopicsRequest(), timeout=DEADLINE_S),
    ):
        error = await failure_of(call)
        assert isinstance(error, NotControllerError)
        assert error.metadata["address"] == active.address
        assert error.metadata["controller_id"] == "1000001"
    cluster = await standby.metadata.DescribeCluster(metadata_pb.DescribeClusterRequest(), timeout=DEADLINE_S)
    assert (cluster.controller_id, cluster.node_id) == (1_000_001, 1_000_002)
    assert f"{cluster.controller_host}:{cluster.controller_port}" == active.address
    assert cluster.zookeeper_connected and not cluster.HasField("controller_silent_ms")


async def test_the_cluster_is_described_with_the_listeners_addresses(world: World) -> None:
    active = await world.start_controller(1_000_001)
    await world.start_broker(7)
    await world.until(lambda: len(active.node.describe_cluster().brokers) == 1)
    cluster = await active.metadata.DescribeCluster(metadata_pb.DescribeClusterRequest(), timeout=DEADLINE_S)
    assert [(b.id, b.host, b.port, b.rack) for b in cluster.brokers] == [(7, "127.0.0.1", 1, "rack-7")]
    assert (len(cluster.cluster_id), cluster.controller_epoch) == (22, 1)
    error = await failure_of(
        active.metadata.DescribeReplicas(metadata_pb.DescribeReplicasRequest(topic="a"), timeout=DEADLINE_S)
    )
    assert isinstance(error, NotLeaderOrFollowerError)


async def test_a_broker_asks_for_its_shutdown_on_the_control_listener(world: World) -> None:
    active = await world.start_controller(1_000_001)
    await world.start_broker(1)
    await world.until(lambda: len(active.node.describe_cluster().brokers) == 1)
    stub: Any = controller_service_pb2_grpc.ControllerServiceStub(active.channel(active.control))
    epoch = active.node.describe_cluster().brokers[0].broker_epoch
    for asked, expected in ((epoch, None), (0, ErrorCode.STALE_BROKER_EPOCH)):
        answer = await stub.ControlledShutdown(
            controller_service_pb2.ControlledShutdownRequest(broker_id=1, broker_epoch=asked), timeout=DEADLINE_S
        )
        assert (answer.error if answer.HasField("error") else None) == expected
    standby = await world.start_controller(1_000_002)
    other: Any = controller_service_pb2_grpc.ControllerServiceStub(standby.channel(standby.control))
    error = await failure_of(
        other.ControlledShutdown(
            controller_service_pb2.ControlledShutdownRequest(broker_id=1, broker_epoch=epoch), timeout=DEADLINE_S
        )
    )
    assert isinstance(error, NotControllerError)
    assert error.metadata["address"] == active.control, "a broker is sent to the listener it asked on"


async def test_waiting_shutdowns_of_many_brokers_do_not_delay_heartbeats(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = await world.start_controller(1_000_001)
    held: list[Any] = []
    monkeypatch.setattr(active.node, "ask", held.append)
    stub: Any = controller_service_pb2_grpc.ControllerServiceStub(active.channel(active.control))
    shutdown = controller_service_pb2.ControlledShutdownRequest(broker_id=1, broker_epoch=1)
    waiting = [stub.ControlledShutdown(shutdown, timeout=DEADLINE_S) for _ in range(MAX_WAITING_CALLS)]
    await world.until(lambda: len(held) == MAX_WAITING_CALLS)
    surplus = await failure_of(stub.ControlledShutdown(shutdown, timeout=DEADLINE_S))
    assert isinstance(surplus, ThrottledError)
    heartbeat = controller_service_pb2.BrokerHeartbeatRequest(broker_id=1, broker_epoch=1)
    answer = await stub.BrokerHeartbeat(heartbeat, timeout=DEADLINE_S)
    assert answer.error == ErrorCode.BROKER_NOT_AVAILABLE
    assert not any(call.done() for call in waiting)
    for request in held:
        request.reply(ControlledShutdownResponse(ErrorCode.NONE, ()))
    for call in waiting:
        assert not (await call).HasField("error")


async def test_requests_are_repeated_until_a_broker_listens(world: World) -> None:
    active = await world.start_controller(1_000_001)
    broker = await world.start_broker(1, listening=False)
    await world.until(lambda: active.node.gauges()["controller_request_queue_size"] > 0)
    broker.server.start()
    await world.until(lambda: active.node.gauges()["controller_request_queue_size"] == 0)
    assert isinstance(broker.received[0], control_pb.UpdateMetadataRequest)
    assert broker.received[0].stamp.controller_epoch == 1
    assert [e.listener for e in broker.received[0].controller_endpoints] == ["CLIENT", "CONTROL"]


# GrpcControlTransport without a controller


class Calls:
    """Sends requests through a transport and records their outcomes in order."""

    def __init__(self) -> None:
        self.answers: list[ControlResponse | Exception] = []
        self.transport = GrpcControlTransport(AsyncioScheduler(asyncio.get_running_loop()).post)

    async def send(self, broker: LiveBroker, request: Any, timeout_ms: int = 60_000) -> ControlResponse | Exception:
        before = len(self.answers)
        self.transport.send(broker, request, timeout_ms, self.answers.append)
        async with asyncio.timeout(DEADLINE_S):
            while len(self.answers) == before:
                await asyncio.sleep(0.005)
        return self.answers[-1]


def stamp(broker_epoch: int) -> ControllerStamp:
    return ControllerStamp(1_000_001, 3, broker_epoch)


async def test_the_transport_carries_answers_and_failures(world: World) -> None:
    broker = FakeReplicaManager()
    broker.server.start()
    world.brokers[1] = broker
    calls = Calls()
    live = LiveBroker(1, (Endpoint("CONTROL", "127.0.0.1", broker.port),), None, 4)
    partitions = tuple(StopReplicaPartition(TopicPartition("a", p), None, 1, True) for p in (0, 1))
    answer = await calls.send(live, StopReplicaRequest(stamp(4), partitions))
    assert isinstance(answer, ControlResponse)
    assert answer.partition_errors == {
        TopicPartition("a", 0): ErrorCode.NONE,
        TopicPartition("a", 1): ErrorCode.KAFKA_STORAGE_ERROR,
    }
    broker.may_answer.clear()
    slow = await calls.send(live, UpdateMetadataRequest(stamp(4), (live,), ()), timeout_ms=100)
    assert isinstance(slow, RequestTimedOutError)
    broker.may_answer.set()
    nowhere = LiveBroker(2, (Endpoint("CONTROL", "127.0.0.1", 1),), None, 4)
    assert isinstance(await calls.send(nowhere, UpdateMetadataRequest(stamp(4), (), ())), BrokerNotAvailableError)
    without = LiveBroker(3, (), None, 4)
    assert isinstance(await calls.send(without, UpdateMetadataRequest(stamp(4), (), ())), BrokerNotAvailableError)
    await asyncio.get_running_loop().run_in_executor(None, calls.transport.close_all)


async def test_metadata_for_many_brokers_contains_each_brokers_own_epoch(world: World) -> None:
    broker = FakeReplicaManager()
    broker.server.start()
    world.brokers[1] = broker
    calls = Calls()
    live = tuple(LiveBroker(b, (Endpoint("CONTROL", "127.0.0.1", broker.port),), None, b * 10) for b in (1, 2))
    for one in live:
        await calls.send(one, UpdateMetadataRequest(stamp(one.broker_epoch), live, ()))
    await calls.send(live[0], UpdateMetadataRequest(stamp(10), live[:1], ()))
    seen = [(m.stamp.broker_epoch, [b.id for b in m.live_brokers]) for m in broker.received]
    assert seen == [(10, [1, 2]), (20, [1, 2]), (10, [1])]
    await asyncio.get_running_loop().run_in_executor(None, calls.transport.close_all)


async def test_closing_a_broker_ends_its_call_and_its_thread(world: World) -> None:
    broker = FakeReplicaManager()
    broker.server.start()
    world.brokers[1] = broker
    broker.may_answer.clear()
    calls = Calls()
    live = LiveBroker(1, (Endpoint("CONTROL", "127.0.0.1", broker.port),), None, 4)
    calls.transport.send(live, UpdateMetadataRequest(stamp(4), (), ()), 60_000, calls.answers.append)
    await world.until(lambda: bool(broker.received))
    calls.transport.close(1)
    await world.until(lambda: not any(t.name == "control-to-1" for t in threading.enumerate()))
    await asyncio.get_running_loop().run_in_executor(None, calls.transport.close_all)
