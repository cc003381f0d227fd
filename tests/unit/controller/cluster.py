"""A cluster around controllers under test: an in-memory ZooKeeper, registered brokers that answer, virtual time."""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.controller.admin.admin_requests import CreateTopics, DeleteTopics
from paceline.controller.errors import ActiveControllerDeadError
from paceline.controller.events import ControlledShutdown
from paceline.controller.node import ControllerNode
from paceline.controller.standby.takeover import Takeover
from paceline.coordination import znodes
from paceline.coordination.interface import (
    ANY_VERSION,
    Create,
    Delete,
    GetChildren,
    GetData,
    Request,
    Response,
    SetData,
)
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.model.admin import NewTopic, ReassignmentResult, TopicResult
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControlRequest,
    ControlResponse,
    Endpoint,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from paceline.model.errors import NOT_REGISTERED, BrokerNotAvailableError, ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.scheduler import Scheduler
from paceline.model.settings import ControllerConfig
from paceline.model.standby import StateUpdate
from paceline.model.state_change import StateChange
from tests.support.reassignments import start_reassignments
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import AppliedWrite, Link, MemoryZooKeeper, MemoryZooKeeperServer

CONTROLLER_ID = 1_000_000
SESSION_TIMEOUT_MS = 6_000


def tp(text: str) -> TopicPartition:
    """``a-0`` as a partition."""
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


def short(topic_partition: TopicPartition) -> str:
    """Return a partition as the text that `tp` reads."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


@dataclass
class FakeBrokers:
    """The brokers' side of `ControlTransport`: records requests and answers as a replica manager would."""

    scheduler: Scheduler
    received: list[tuple[int, ControlRequest]] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)
    """Brokers that do not answer; their requests wait in `held`."""
    unreachable: set[int] = field(default_factory=set)
    unregistered: set[int] = field(default_factory=set)
    """Brokers whose process says that it is not registered."""
    failed_dirs: dict[int, set[TopicPartition]] = field(default_factory=lambda: defaultdict(set))
    undeletable: dict[int, set[TopicPartition]] = field(default_factory=lambda: defaultdict(set))
    foreign: dict[int, set[TopicPartition]] = field(default_factory=lambda: defaultdict(set))
    """Partitions whose topic id a broker refuses."""
    held: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    epochs: dict[int, dict[TopicPartition, int]] = field(default_factory=lambda: defaultdict(dict))
    topic_ids: dict[int, dict[TopicPartition, str]] = field(default_factory=lambda: defaultdict(dict))
    """Topic ids of the logs, from the first LeaderAndIsr that named one."""

    def send(
        self,
        broker: LiveBroker,
        request: ControlRequest,
        timeout_ms: int,
        on_done: Callable[[ControlResponse | Exception], None],
    ) -> None:
        broker_id = broker.broker_id
        if broker_id in self.unreachable:
            self.scheduler.call_soon(lambda: on_done(ConnectionError(f"broker {broker_id} cannot be reached")))
            return
        if broker_id in self.unregistered:
            error = BrokerNotAvailableError("not registered").with_metadata(**NOT_REGISTERED)
            self.scheduler.call_soon(lambda: on_done(error))
            return
        self.received.append((broker_id, request))

        def answer() -> None:
            on_done(self._answer(broker_id, request))

        if broker_id in self.silent:
            self.held.append((broker_id, answer))
        else:
            self.scheduler.call_soon(answer)

    def close(self, broker_id: int) -> None:
        self.closed.append(broker_id)

    def release(self, broker_id: int) -> None:
        """Let a silent broker answer."""
        self.silent.discard(broker_id)
        held, self.held = self.held, []
        for other, answer in held:
            if other == broker_id:
                self.scheduler.call_soon(answer)
            else:
                self.held.append((other, answer))

    def _answer(self, broker_id: int, request: ControlRequest) -> ControlResponse:
        epochs, known_ids = self.epochs[broker_id], self.topic_ids[broker_id]
        topic_ids: dict[TopicPartition, str] = {}
        errors: dict[TopicPartition, ErrorCode] = {}
        if isinstance(request, LeaderAndIsrRequest):
            for state in request.partitions:
                partition = state.topic_partition
                if state.topic_id is not None:
                    known_ids.setdefault(partition, state.topic_id)
                elif partition in known_ids:
                    topic_ids[partition] = known_ids[partition]
                if partition in self.failed_dirs[broker_id]:
                    errors[partition] = ErrorCode.KAFKA_STORAGE_ERROR
                elif partition in self.foreign[broker_id]:
                    errors[partition] = ErrorCode.INCONSISTENT_TOPIC_ID
                elif state.leader_epoch > epochs.get(partition, -1):
                    epochs[partition] = state.leader_epoch
                    errors[partition] = ErrorCode.NONE
                else:
                    errors[partition] = ErrorCode.STALE_CONTROLLER_EPOCH
        elif isinstance(request, UpdateMetadataRequest) and request.is_initial:
            for shown in request.partitions:
                partition = shown.topic_partition
                if broker_id not in shown.replicas and epochs.get(partition, shown.leader_epoch) < shown.leader_epoch:
                    del epochs[partition]  # a stray log, set aside
        elif isinstance(request, StopReplicaRequest):
            for stop in request.partitions:
                refused = stop.delete_partition and stop.topic_partition in self.undeletable[broker_id]
                errors[stop.topic_partition] = ErrorCode.KAFKA_STORAGE_ERROR if refused else ErrorCode.NONE
                if stop.delete_partition and not refused:
                    epochs.pop(stop.topic_partition, None)
                    known_ids.pop(stop.topic_partition, None)
        return ControlResponse(ErrorCode.NONE, errors, topic_ids)


class Streams:
    """`StandbyTransport` between the controllers of one cluster: delivers at once, in order, while both live."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self.opened: list[int] = []
        """Ids of the standbys that opened a stream, in order."""
        self.cut = False
        """Whether every new stream fails, and nothing arrives on those that are open."""
        self.open: list[tuple[int, Sink]] = []
        """Id of the followed controller and receiving end, of every stream that was opened."""

    def follow(
        self,
        controller: Endpoint,
        standby_id: int,
        on_update: Callable[[StateUpdate], None],
        on_end: Callable[[Exception | None], None],
    ) -> Callable[[], None]:
        time = self._cluster.time
        node = self._cluster.controllers.get(int(controller.host[1:]))
        sink = Sink(self, on_update, on_end)
        try:
            if node is None or self.cut:
                raise ConnectionError(f"{controller.host} cannot be reached")
            node.follow_state(standby_id, sink)
        except Exception as error:
            failure = error
            time.call_soon(lambda: on_end(failure))
            return lambda: None
        self.opened.append(standby_id)
        self.open.append((int(controller.host[1:]), sink))
        return sink.close

    def refuse(self, controller_id: int) -> None:
        """End the streams that follow a controller, as after a refused connect to its address."""
        for followed, sink in self.open:
            if followed == controller_id and not sink.closed:
                sink.on_end(ActiveControllerDeadError("two connects were refused"))


class Sink:
    """One stream: the controller's end and the standby's."""

    def __init__(
        self, streams: Streams, on_update: Callable[[StateUpdate], None], on_end: Callable[[Exception | None], None]
    ) -> None:
        self._streams = streams
        self._on_update = on_update
        self.on_end = on_end
        self.closed = False

    def put(self, update: StateUpdate) -> bool:
        if self.closed:
            return False
        if not self._streams.cut:
            self._streams._cluster.time.call_soon(lambda: None if self.closed else self._on_update(update))
        return True

    def end(self) -> None:
        if not self._streams.cut:
            self._streams._cluster.time.call_soon(lambda: None if self.closed else self.on_end(None))

    def close(self) -> None:
        self.closed = True


class Cluster:
    """One ensemble, any number of brokers and controllers."""

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.config = config or ControllerConfig(CONTROLLER_ID, auto_leader_rebalance_enable=False)
        self.lease_ms = 0
        self.suspect_ms = 100
        """No lease: these brokers send heartbeats only where a test does (`heartbeat`)."""
        self.time = VirtualTime()
        self.writes: list[AppliedWrite] = []
        self.server = MemoryZooKeeperServer(self.time, on_write=self.writes.append)
        self.brokers = FakeBrokers(self.time)
        self.broker_sessions: dict[int, MemoryZooKeeper] = {}
        self.controllers: dict[int, ControllerNode] = {}
        self.controller_clients: dict[int, MemoryZooKeeper] = {}
        self.state_changes: list[StateChange] = []
        self.streams = Streams(self)
        self.takeovers: list[Takeover] = []
        self.tool = MemoryZooKeeper(self.server, self.time, session_timeout_ms=3_600_000)
        self.tool.start(lambda _: None, lambda _: None)
        self.settle()
        for path in znodes.PERSISTENT_NODES:
            for step in [*znodes.parent_paths(path), path]:
                self.zk(Create(step), must_succeed=False)

    # ZooKeeper

    def zk(self, request: Request, must_succeed: bool = True) -> Response:
        """Run one request as a tool."""
        answers: list[list[Response]] = []
        self.tool.submit([request], answers.append)
        self.time.run_until(lambda: bool(answers), max_ms=1_000)
        response = answers[0][0]
        assert response.ok or not must_succeed, f"{request}: {response.code}"
        return response

    def data(self, path: str) -> Any:
        """JSON of a node."""
        return json.loads(self.zk(GetData(path)).data or b"null")

    def exists(self, path: str) -> bool:
        return self.zk(GetData(path), must_succeed=False).ok

    def children(self, path: str) -> tuple[str, ...]:
        return self.zk(GetChildren(path)).children

    def state(self, partition: str) -> str:
        """``leader/epoch isr [..] ce n vn`` of a partition, None when it has no state node."""
        response = self.zk(GetData(znodes.partition_state_path(tp(partition))))
        value = json.loads(response.data or b"")
        assert response.stat is not None
        return (
            f"{value['leader']}/{value['leader_epoch']} isr {value['isr']} "
            f"ce {value['controller_epoch']} v{response.stat.version}"
        )

    def write_state(
        self, partition: str, state: LeaderAndIsr, version: int = ANY_VERSION, must_succeed: bool = True
    ) -> Response:
        """Write a state as a leader would."""
        path = znodes.partition_state_path(tp(partition))
        return self.zk(SetData(path, znodes.encode_partition_state(state), version), must_succeed)

    def create_topic_node(
        self, topic: str, partitions: Iterable[Iterable[int]], topic_id: str | None = "given"
    ) -> None:
        assignments = {p: ReplicaAssignment(tuple(replicas)) for p, replicas in enumerate(partitions)}
        known_id = f"{topic:_<22}" if topic_id == "given" else topic_id
        data = znodes.encode_topic_assignment(znodes.TopicAssignment(assignments, known_id))
        self.zk(Create(znodes.topic_path(topic), data))

    def change_isr(self, partition: str, isr: list[int], notify: bool = True) -> None:
        """Change an ISR as a leader does: write the state, keep its other fields, and create a notification."""
        path = znodes.partition_state_path(tp(partition))
        response = self.zk(GetData(path))
        value = json.loads(response.data or b"")
        value["isr"] = isr
        self.zk(SetData(path, json.dumps(value).encode()))
        if notify:
            data = znodes.encode_partition_set([tp(partition)])
            self.zk(Create(znodes.ISR_CHANGE_PREFIX, data, sequential=True))

    # processes

    def start_broker(self, *broker_ids: int, rack: str | None = None, unclean: bool = False) -> None:
        for broker_id in broker_ids:
            client = MemoryZooKeeper(self.server, self.time, session_timeout_ms=SESSION_TIMEOUT_MS)
            client.start(lambda _: None, lambda _: None)
            self.broker_sessions[broker_id] = client
            registration = znodes.BrokerRegistration(
                broker_id, (Endpoint("CONTROL", f"b{broker_id}", 9094),), self.time.wall_ms(), rack, unclean
            )
            request = Create(znodes.broker_path(broker_id), znodes.encode_broker(registration), ephemeral=True)
            answers: list[list[Response]] = []
            client.submit([request], answers.append)
            self.time.run_until(lambda got=answers: bool(got), max_ms=1_000)  # type: ignore[misc]
            assert answers[0][0].ok, answers
            self.brokers.epochs[broker_id].clear()
            self.brokers.failed_dirs[broker_id].clear()

    def kill_broker(self, *broker_ids: int) -> None:
        """End the session as if it had timed out."""
        for broker_id in broker_ids:
            client = self.broker_sessions.pop(broker_id)
            session_id = client.session_id
            client.crash()
            self.server.expire(session_id)

    def bounce_broker(self, broker_id: int) -> None:
        """End one registration and make the next before the controller reads the registrations."""
        client = self.broker_sessions[broker_id]
        path = znodes.broker_path(broker_id)
        data = self.zk(GetData(path)).data or b""
        answers: list[list[Response]] = []
        client.submit([Delete(path), Create(path, data, ephemeral=True)], answers.append)
        self.brokers.epochs[broker_id].clear()

    def start_controller(
        self, controller_id: int = CONTROLLER_ID, settle: bool = True, link: Link | None = None
    ) -> ControllerNode:
        client = MemoryZooKeeper(self.server, self.time, session_timeout_ms=SESSION_TIMEOUT_MS, link=link)
        node = ControllerNode(
            replace(
                self.config,
                controller_id=controller_id,
                controller_broker_lease_ms=self.lease_ms,
                broker_suspect_ms=self.suspect_ms,
            ),
            [Endpoint("CLIENT", f"c{controller_id}", 9082), Endpoint("CONTROL", f"c{controller_id}", 9084)],
            self.time,
            PatientZooKeeper(client),
            self.brokers,
            random.Random(controller_id),
            self.state_changes.append,
            standby_transport=self.streams,
            on_takeover=self.takeovers.append,
        )
        self.controllers[controller_id] = node
        self.controller_clients[controller_id] = client
        node.start()
        if settle:
            self.settle()
        return node

    @property
    def controller(self) -> ControllerNode:
        """The active controller."""
        (active,) = [node for node in self.controllers.values() if node.is_active]
        return active

    # time

    def settle(self) -> None:
        """Run all callbacks that are due now."""
        self.time.run_due()

    # requests

    def create(self, *topics: NewTopic, timeout_ms: int = 5_000, validate_only: bool = False) -> list[TopicResult]:
        answers: list[Any] = []
        self.controller.ask(CreateTopics(tuple(topics), timeout_ms, validate_only, reply=answers.append))
        self.time.run_until(lambda: bool(answers), max_ms=timeout_ms + 1_000)
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def delete(self, *topics: str, timeout_ms: int = 5_000) -> list[TopicResult]:
        answers: list[Any] = []
        self.controller.ask(DeleteTopics(tuple(topics), timeout_ms, reply=answers.append))
        self.time.run_until(lambda: bool(answers), max_ms=timeout_ms + 1_000)
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def broker_epoch(self, broker_id: int) -> int:
        """Return the epoch of a broker's registration."""
        stat = self.zk(GetData(znodes.broker_path(broker_id))).stat
        assert stat is not None
        return stat.czxid

    def controlled_shutdown(self, broker_id: int, broker_epoch: int | None = None) -> ControlledShutdownResponse:
        stat = self.zk(GetData(znodes.broker_path(broker_id))).stat
        assert stat is not None
        request = ControlledShutdownRequest(broker_id, stat.czxid if broker_epoch is None else broker_epoch)
        answers: list[Any] = []
        self.controller.ask(ControlledShutdown(request, reply=answers.append))
        self.time.run_until(lambda: bool(answers), max_ms=1_000)
        assert isinstance(answers[0], ControlledShutdownResponse), answers
        return answers[0]

    def heartbeat(
        self,
        *broker_ids: int,
        broker_epoch: int | None = None,
        broken_leaders: tuple[int, ...] = (),
        unreachable: tuple[int, ...] = (),
        reached: tuple[int, ...] = (),
        shutting_down: bool | None = None,
    ) -> list[BrokerHeartbeatResponse]:
        answers = []
        for broker_id in broker_ids:
            stat = self.zk(GetData(znodes.broker_path(broker_id))).stat
            assert stat is not None
            epoch = stat.czxid if broker_epoch is None else broker_epoch
            request = BrokerHeartbeatRequest(broker_id, epoch, broken_leaders, unreachable, reached, shutting_down)
            answers.append(self.controller.broker_heartbeat(request))
        return answers

    def reassign(self, targets: dict[TopicPartition, tuple[int, ...] | None]) -> list[ReassignmentResult]:
        answers: list[Any] = []
        start_reassignments(self.controller, targets, answers.append)
        self.time.run_until(lambda: bool(answers), max_ms=1_000)
        assert not isinstance(answers[0], Exception), answers
        return list(answers[0])

    def told(self) -> dict[int, list[str]]:
        """Return what each broker has received since the last call, in order, as text (see `describe`)."""
        taken, self.brokers.received = self.brokers.received, []
        found: dict[int, list[str]] = {}
        for broker_id, request in taken:
            found.setdefault(broker_id, []).append(describe(request))
        return found


def describe(request: ControlRequest) -> str:
    """One request as one line: ``LAI a-0 1/0 [1, 2] new`` is a LeaderAndIsr; ``UM`` and ``SR`` likewise."""
    if isinstance(request, LeaderAndIsrRequest):
        components = [
            f"{short(p.topic_partition)} {p.leader}/{p.leader_epoch} {list(p.isr)}{' new' if p.is_new else ''}"
            for p in sorted(request.partitions, key=lambda p: p.topic_partition)
        ]
        return f"LAI {', '.join(components)}"
    if isinstance(request, UpdateMetadataRequest):
        rows = [
            f"{short(m.topic_partition)} {m.leader}/{m.leader_epoch} {list(m.isr)}"
            + (f" offline {list(m.offline_replicas)}" if m.offline_replicas else "")
            for m in sorted(request.partitions, key=lambda m: m.topic_partition)
        ]
        return f"UM {{{', '.join(rows)}}}"
    stops = [
        f"{short(s.topic_partition)} {s.leader_epoch}{' delete' if s.delete_partition else ''}"
        for s in sorted(request.partitions, key=lambda s: s.topic_partition)
    ]
    return f"SR {', '.join(stops)}"


def started(*topics: tuple[str, tuple[int, ...]], config: ControllerConfig | None = None, lease_ms: int = 0) -> Cluster:
    """Return a cluster with three brokers, an active controller and these one-partition topics; `told` starts empty."""
    cluster = Cluster(config)
    cluster.lease_ms = lease_ms
    cluster.start_broker(1, 2, 3)
    cluster.start_controller()
    if topics:
        cluster.create(*(NewTopic(name, assignments=(replicas,)) for name, replicas in topics))
    cluster.told()
    return cluster
