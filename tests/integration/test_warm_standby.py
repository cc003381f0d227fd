"""A standby controller: its stream over real gRPC, and a failover between real processes."""

import asyncio
import random
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from paceline.controller.node import ControllerNode
from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.controller.service.servers import ControllerServers
from paceline.controller.service.standby_transport import GrpcStandbyTransport
from paceline.controller.service.transport import GrpcControlTransport
from paceline.controller.standby.takeover import Takeover, TakeoverKind
from paceline.coordination import znodes
from paceline.coordination.interface import Create, Response
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.dev.local_cluster import CONFIG_FILE, LocalCluster
from paceline.dev.ports import free_plan
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import Endpoint
from paceline.model.errors import NotControllerError
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.standby import StateUpdate
from paceline.runtime.asyncio_scheduler import AsyncioScheduler
from paceline.runtime.metrics import Metrics
from paceline.runtime.settings import load_controller
from paceline_client import Admin
from tests.support.waiting import eventually
from tests.support.zookeeper.client import MemoryZooKeeper, MemoryZooKeeperServer

DEADLINE_S = 60.0
LONG_S = 120.0
PARTITIONS = 12_000
"""More partitions than one message of the snapshot holds."""


class Process:
    """One controller with real listeners and a real standby stream."""

    def __init__(self, world: "World", controller_id: int) -> None:
        arguments = ["--listeners", "CLIENT://127.0.0.1:0,CONTROL://127.0.0.1:0", "--controller-id", str(controller_id)]
        self.settings = load_controller([*arguments, "--zookeeper-connect", "unused:1"], {})
        self.handle = NodeHandle()
        self.servers = ControllerServers(self.settings, self.handle, world.scheduler, Metrics())
        self.transport = GrpcControlTransport(world.scheduler.post)
        self.streams = GrpcStandbyTransport(world.scheduler.post)
        self.takeovers: list[Takeover] = []
        self.world = world
        self.client = MemoryZooKeeper(world.zookeeper, world.scheduler)
        self.node: ControllerNode

    async def start(self) -> None:
        await self.servers.start()
        self.node = ControllerNode(
            self.settings.config,
            self.servers.advertised,
            self.world.scheduler,
            PatientZooKeeper(self.client),
            self.transport,
            random.Random(1),
            lambda change: None,
            standby_transport=self.streams,
            on_takeover=self.takeovers.append,
        )
        self.handle.set(self.node)
        self.node.start()
        await self.world.until(lambda: self.node.active_controller is not None)

    @property
    def control(self) -> Endpoint:
        return next(endpoint for endpoint in self.servers.advertised if endpoint.listener == "CONTROL")

    async def stop(self) -> None:
        self.node.stop()
        await self.servers.stop(0.1)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.transport.close_all)
        await loop.run_in_executor(None, self.streams.close_all)


class World:
    """ZooKeeper in memory, on the event loop of the controllers."""

    def __init__(self) -> None:
        self.scheduler = AsyncioScheduler(asyncio.get_running_loop())
        self.zookeeper = MemoryZooKeeperServer(self.scheduler)
        self.processes: list[Process] = []

    async def start_controller(self, controller_id: int) -> Process:
        process = Process(self, controller_id)
        self.processes.append(process)
        await process.start()
        return process

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def write_topic(self, topic: str, partitions: int) -> None:
        """Write a topic to ZooKeeper as an earlier controller would have left it."""
        client = MemoryZooKeeper(self.zookeeper, self.scheduler)
        client.start(lambda _: None, lambda _: None)
        assignment = {number: ReplicaAssignment((1, 2, 3)) for number in range(partitions)}
        paths = [step for path in znodes.PERSISTENT_NODES for step in [*znodes.parent_paths(path), path]]
        requests = [Create(path, None) for path in paths]
        data = znodes.encode_topic_assignment(znodes.TopicAssignment(assignment, "t" * 22))
        requests += [Create(znodes.topic_path(topic), data), Create(znodes.topic_partitions_path(topic), None)]
        for number in range(partitions):
            partition = TopicPartition(topic, number)
            state = LeaderAndIsr(1 + number % 3, 4, (1, 2, 3)[: 1 + number % 3], 0, 0)
            extra = {"mood": f"good {number}"} if number % 1_000 == 0 else None
            requests.append(Create(znodes.partition_path(partition), None))
            requests.append(Create(znodes.partition_state_path(partition), znodes.encode_partition_state(state, extra)))
        done: list[list[Response]] = []
        client.submit(requests, done.append)
        await self.until(lambda: bool(done))
        client.close()

    async def stop(self) -> None:
        for process in self.processes:
            await process.stop()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.stop()


async def test_a_standby_receives_every_state_and_uses_it_at_its_failover(world: World) -> None:
    await world.write_topic("t", PARTITIONS)
    active = await world.start_controller(1_000_001)
    await world.until(lambda: bool(active.takeovers))
    standby = await world.start_controller(1_000_002)
    await world.until(lambda: standby.node.is_warm)
    # No broker is registered, so the first controller removes every leader and streams the new states.
    known = dict(active.node._components.context.leadership)
    extras = dict(active.node._components.context.state_extras)
    assert len(known) == PARTITIONS and len(extras) >= PARTITIONS // 1_000
    await active.stop()
    world.processes.remove(active)
    await world.until(lambda: bool(standby.takeovers))
    takeover = standby.takeovers[0]
    assert (takeover.states.kind, takeover.states.states_read) == (TakeoverKind.WARM, 0)
    context = standby.node._components.context
    assert set(context.leadership) == set(known)
    assert all(context.leadership[p].isr == state.isr for p, state in known.items())
    assert context.state_extras == extras


class Listener:
    """Records the updates and ends of a standby stream, without a controller."""

    def __init__(self) -> None:
        self.updates: list[StateUpdate] = []
        self.ends: list[Exception | None] = []


async def test_a_controller_that_is_not_active_refuses_standby_streams(world: World) -> None:
    active = await world.start_controller(1_000_001)
    await world.until(lambda: bool(active.takeovers))
    standby = await world.start_controller(1_000_002)
    transport, listener = GrpcStandbyTransport(world.scheduler.post), Listener()
    transport.follow(standby.control, 7, listener.updates.append, listener.ends.append)
    await world.until(lambda: bool(listener.ends))
    assert isinstance(listener.ends[0], NotControllerError)
    assert listener.updates == []
    transport.close_all()


async def test_a_standby_stream_ends_with_the_controller_epoch_and_with_the_process(world: World) -> None:
    active = await world.start_controller(1_000_001)
    await world.until(lambda: bool(active.takeovers))
    transport, listener = GrpcStandbyTransport(world.scheduler.post), Listener()
    transport.follow(active.control, 7, listener.updates.append, listener.ends.append)
    await world.until(lambda: len(listener.updates) > 1)
    assert [update.number for update in listener.updates] == list(range(1, len(listener.updates) + 1))
    assert listener.updates[0].sequence is not None, "an empty cluster's snapshot is one message"
    active.node._event_handler.resign("a test wants it")
    await world.until(lambda: listener.ends == [None])
    await active.stop()
    world.processes.remove(active)
    transport.follow(active.control, 7, listener.updates.append, listener.ends.append)
    await world.until(lambda: len(listener.ends) == 2)
    assert listener.ends[1] is not None
    transport.close_all()


async def test_closing_a_stream_frees_the_thread_at_either_end(world: World) -> None:
    active = await world.start_controller(1_000_001)
    await world.until(lambda: bool(active.takeovers))
    publisher = active.node._components.publisher
    for number in range(20):
        # One after the other, the test opens more streams than the listener has threads.
        transport, listener = GrpcStandbyTransport(world.scheduler.post), Listener()
        close = transport.follow(active.control, 100 + number, listener.updates.append, listener.ends.append)
        await world.until(lambda heard=listener: bool(heard.updates))  # type: ignore[misc]
        close()
        await world.until(lambda: not publisher._followers)
        transport.close_all()
        assert not any(reader.is_alive for reader in transport._readers)
        assert listener.ends == []


def metric(address: str, name: str) -> float:
    """Return the value of a metric, 0 if the process does not serve the metric."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


@pytest.mark.cluster
@pytest.mark.zookeeper
def test_the_standby_of_a_killed_controller_takes_over_warm(tmp_path: Path) -> None:
    plan = free_plan(2, 2)
    settings = {"zookeeper.session.timeout.ms": "6000", "controller.broker.lease.ms": "60000"}
    cluster = LocalCluster(tmp_path, CONFIG_FILE, brokers=2, controllers=2, settings=settings, ports=plan, heap_mib=64)
    addresses = [f"127.0.0.1:{ports.metrics}" for ports in plan.controllers]
    warm = 'paceline_controller_takeover_seconds_count{kind="warm"}'
    try:
        cluster.start()
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({"followed": (20, 2, {})})
        active_now: list[int] = []

        def look() -> bool:
            active_now[:] = [index for index in (0, 1) if metric(addresses[index], "paceline_active_controller") == 1]
            return len(active_now) == 1

        eventually(look, LONG_S, "one controller is active")
        (active,) = active_now
        standby = 1 - active
        eventually(
            lambda: metric(addresses[standby], "paceline_standby_in_sync") == 1,
            LONG_S,
            "the standby has the complete state",
        )
        assert metric(addresses[active], "paceline_zk_request_seconds_count") > 0
        cluster.kill(cluster.controller(active))
        eventually(
            lambda: metric(addresses[standby], "paceline_active_controller") == 1, LONG_S, "the standby has taken over"
        )
        eventually(lambda: metric(addresses[standby], warm) == 1, LONG_S, "the takeover was warm")
        said = (tmp_path / f"controller-{cluster.controller(standby).node_id}" / "service.log").read_text()
        assert re.search(r"failover completed: kind=warm epoch=2 elapsed_ms=\d+ states_read=0 states=20\b", said)
        # The new active controller creates topics, and the old controller becomes its standby.
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics({"created-after": (4, 2, {})})
        cluster.restart(cluster.controller(active))
        eventually(
            lambda: metric(addresses[active], "paceline_standby_in_sync") == 1,
            LONG_S,
            "the restarted controller follows as standby",
        )
    finally:
        cluster.stop()
