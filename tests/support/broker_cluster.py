"""Real broker cores in one thread: virtual time, the in-memory ZooKeeper, logs on a memory disk, a direct transport.

There is no controller: the test acts as controller with `BrokerCluster.decide`, `update_metadata` and `stop_replica`.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from paceline.broker.control.request_fence import ControlRequestDeferredError
from paceline.broker.membership.topic_configs import parsed_settings
from paceline.broker.node import BrokerNode
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.interface import Create, Delete, GetData, SetData
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.log.record_batch import NewRecord, encode_batch
from paceline.model.client_io import (
    EpochAnswer,
    EpochQuery,
    FetchRequest,
    FetchResponse,
    OffsetAnswer,
    OffsetQuery,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.control import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControllerStamp,
    ControlRequest,
    ControlResponse,
    Endpoint,
    InternalTopic,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveBroker,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from paceline.model.errors import BrokerNotAvailableError, ErrorCode, PacelineError, RequestTimedOutError
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse
from paceline.model.settings import BrokerConfig
from paceline.model.state_change import StateChange, StateChangeKind
from tests.support.batches import decode_records
from tests.support.inline_work import InlineWork
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.data_tree import DataTree
from tests.unit.log.memory_files import MemoryFiles

TP = TopicPartition("orders", 0)
CONTROLLER_ID = 1_000_000
CONTROL_ADDRESS = Endpoint("CONTROL", "controller", 9084)


def batch(*values: bytes) -> bytes:
    """Return a batch with these values."""
    return encode_batch([NewRecord(1000 + i, None, value) for i, value in enumerate(values)])


def settings_in(tree: DataTree, defaults: LogConfig) -> Callable[[str], LogConfig | None]:
    """Read topic settings like a starting broker, before it loads its logs."""

    def settings_of(topic: str) -> LogConfig | None:
        path = znodes.topic_config_path(topic)
        node = tree.get(path)
        if tree.get(znodes.topic_path(topic)) is None:
            return None
        try:
            config, problem = parsed_settings({} if node is None else znodes.decode_config(path, node.data), defaults)
        except MalformedZnodeError:
            return None
        return config if problem is None else None

    return settings_of


class DirectTransport:
    """Delivers requests to other cores after a delay; links can be cut, responses held back."""

    def __init__(self, cluster: "BrokerCluster", broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self.delay_ms = 1.0
        self.fetches: list[tuple[int, ReplicaFetchRequest]] = []
        """Every fetch sent: leader id and request."""
        self.answers: list[tuple[int, ReplicaFetchResponse | Exception]] = []
        """Every answer delivered: leader id and answer."""
        self.broken: set[int] = set()
        """Leaders to which fetch connections break."""
        self.closed: list[tuple[int, int]] = []
        self.hold: Callable[[int, ReplicaFetchResponse | Exception], bool] = lambda _leader, _answer: False
        """Whether a response is stored in `held` instead of being delivered."""
        self.held: list[Callable[[], None]] = []
        self.created_topics: list[InternalTopic] = []
        self.shutdown_requests: list[ControlledShutdownRequest] = []
        self.shutdown_answers: list[ControlledShutdownResponse | Exception] = []
        self.heartbeats: list[tuple[Endpoint, BrokerHeartbeatRequest]] = []
        self.heartbeat_answer: BrokerHeartbeatResponse | Exception | None = None
        """None: a controller of the present epoch accepts every heartbeat."""

    def replica_fetch(
        self,
        leader: LiveBroker,
        fetcher_id: int,
        request: ReplicaFetchRequest,
        timeout_ms: int,
        on_done: Callable[[ReplicaFetchResponse | Exception], None],
    ) -> None:
        leader_id = leader.broker_id
        self.fetches.append((leader_id, request))
        time = self._cluster.time
        over = False

        def finish(answer: ReplicaFetchResponse | Exception) -> None:
            nonlocal over
            if over:
                return
            over = True

            def deliver() -> None:
                self.answers.append((leader_id, answer))
                on_done(answer)

            if self.hold(leader_id, answer):
                self.held.append(deliver)
            else:
                time.call_later(self.delay_ms, deliver)

        def arrive() -> None:
            broker = self._cluster.brokers.get(leader_id)
            if broker is not None and broker.up and self._reaches(leader_id):
                broker.node.handle_replica_fetch(
                    request, lambda answer: finish(answer) if self._reaches(leader_id) else None
                )

        if leader_id in self.broken:
            finish(BrokerNotAvailableError("the connection broke"))
        time.call_later(self.delay_ms, arrive)
        time.call_later(timeout_ms, lambda: finish(RequestTimedOutError("no answer")))

    def _reaches(self, other: int) -> bool:
        return (self._broker_id, other) not in self._cluster.cuts

    def close_fetcher(self, leader_id: int, fetcher_id: int) -> None:
        self.closed.append((leader_id, fetcher_id))

    def controlled_shutdown(
        self,
        controller: Endpoint,
        request: ControlledShutdownRequest,
        timeout_ms: int,
        on_done: Callable[[ControlledShutdownResponse | Exception], None],
    ) -> None:
        assert controller == CONTROL_ADDRESS
        self.shutdown_requests.append(request)
        answer = self.shutdown_answers.pop(0) if self.shutdown_answers else ControlledShutdownResponse()
        self._cluster.time.call_later(self.delay_ms, lambda: on_done(answer))

    def create_internal_topic(
        self,
        controller: Endpoint,
        topic: InternalTopic,
        timeout_ms: int,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        self.created_topics.append(topic)
        self._cluster.time.call_later(self.delay_ms, lambda: on_done(None))

    def broker_heartbeat(
        self,
        controller: Endpoint,
        request: BrokerHeartbeatRequest,
        timeout_ms: int,
        on_done: Callable[[BrokerHeartbeatResponse | Exception], None],
    ) -> None:
        self.heartbeats.append((controller, request))
        accepted = BrokerHeartbeatResponse(ErrorCode.NONE, self._cluster.controller_epoch)
        answer = accepted if self.heartbeat_answer is None else self.heartbeat_answer
        self._cluster.time.call_later(self.delay_ms, lambda: on_done(answer))


class BrokerUnderTest:
    """A broker with its core, disk, session and state changes."""

    def __init__(
        self,
        cluster: "BrokerCluster",
        config: BrokerConfig,
        log_config: LogConfig,
        files: MemoryFiles,
        dirs: Sequence[str],
    ) -> None:
        self.cluster = cluster
        self.config = config
        self.files = files
        self.changes: list[StateChange] = []
        self.watched: set[TopicPartition] = set()
        """Partitions that a watcher names."""
        self.fatal: list[Exception] = []
        self.directory_work = InlineWork(cluster.time)
        self.up = True
        self.logs = LogManager(
            files,
            dirs,
            log_config,
            on_dir_failure=lambda _path, _error: None,
            boot_id="boot",
            min_free_bytes=None,
        )
        report = self.logs.load(cluster.time.wall_ms(), settings_in(cluster.server.tree, log_config))
        self.transport = DirectTransport(cluster, config.broker_id)
        self.zookeeper = MemoryZooKeeper(
            cluster.server, cluster.time, session_timeout_ms=config.zookeeper_session_timeout_ms
        )
        self.endpoints = tuple(
            Endpoint(listener, f"broker{config.broker_id}", port)
            for listener, port in (("CLIENT", 9092), ("REPLICATION", 9093), ("CONTROL", 9094))
        )
        self.node = BrokerNode(
            config,
            self.endpoints,
            cluster.time,
            self.zookeeper,
            self.logs,
            self.transport,
            random.Random(config.broker_id),
            self.changes.append,
            self.fatal.append,
            InlineWork(cluster.time),
            InlineWork(cluster.time),
            self.directory_work,
            unclean_restart=report.is_unclean_restart("boot"),
            watched=self.watched,
        )

    @property
    def broker_id(self) -> int:
        return self.config.broker_id

    def log(self, tp: TopicPartition = TP) -> PartitionLog:
        """The replica's log."""
        log = self.logs.get(tp)
        assert log is not None
        return log

    def retry_log_dir(self, path: str) -> PacelineError | None:
        """Ask as the controller does, until the directory is loaded; return the error."""
        try:
            loading = self.node.retry_log_dir(path, is_repeated=False)
            while loading:
                self.cluster.time.run_for(10)
                loading = self.node.retry_log_dir(path, is_repeated=True)
        except PacelineError as error:
            return error
        return None

    def values(self, tp: TopicPartition = TP) -> list[bytes]:
        """Values of all records in the log."""
        log = self.log(tp)
        found: list[bytes] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            records = list(decode_records(log.read(offset, 1 << 20, log.log_end_offset)))
            found += [record.value or b"" for record in records if record.offset >= offset]
            offset = records[-1].offset + 1
        return found

    def epochs(self, tp: TopicPartition = TP) -> list[tuple[int, int]]:
        """Entries of the leader epoch cache."""
        return [(entry.epoch, entry.start_offset) for entry in self.log(tp).epochs.entries]

    def said(self, *kinds: StateChangeKind) -> list[StateChange]:
        """Return the state changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]

    def produce(
        self,
        *values: bytes,
        tp: TopicPartition = TP,
        acks: RequiredAcks = RequiredAcks.ALL,
        timeout_ms: int = 30_000,
        producer: Hashable = None,
    ) -> list[ProduceResult]:
        """Send a batch; the returned list stays empty until the response arrives."""
        answers: list[ProduceResult] = []
        data = [ProduceData(tp, None, batch(*values))]
        self.node.produce(acks, timeout_ms, data, answers.extend, producer=producer)
        return answers

    def list_offsets(self, *queries: OffsetQuery) -> list[OffsetAnswer]:
        """Look up offsets; the returned list stays empty until the response arrives."""
        answers: list[OffsetAnswer] = []
        self.node.proved_calls.list_offsets(queries, 30_000, answers.extend)
        return answers

    def epoch_ends(self, *queries: EpochQuery) -> list[EpochAnswer]:
        """Look up the ends of leader epochs as a client; the returned list stays empty until the response arrives."""
        answers: list[EpochAnswer] = []
        self.node.proved_calls.offsets_for_leader_epoch(queries, 30_000, answers.extend)
        return answers

    def consume(
        self,
        offset: int,
        tp: TopicPartition = TP,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        rack: str = "",
        leader_epoch: int | None = None,
        last_epoch: int | None = None,
    ) -> list[FetchResponse]:
        """Send a client fetch without a session; the returned list stays empty until the response arrives."""
        answers: list[FetchResponse] = []
        request = FetchRequest(
            max_wait_ms,
            min_bytes,
            max_bytes,
            [FetchPosition(tp, None, offset, max_bytes, leader_epoch, last_epoch)],
            rack=rack,
        )
        self.node.fetch(request, answers.append)
        return answers

    def crash(self) -> None:
        """Kill the process: it answers no request, its session ends by timeout, its files remain."""
        self.up = False
        self.zookeeper.crash()
        self.files.locked.clear()
        # The dead process's timers still run in virtual time; they must have no effect.
        self.node.replica_manager.hosted.stopped = True
        self.node.replica_manager.fetchers.close()
        self.node._stopped = True


class BrokerCluster:
    """Brokers that know each other; the test acts as their controller."""

    def __init__(
        self, broker_ids: Iterable[int] = (1, 2, 3), log_config: LogConfig | None = None, **config: object
    ) -> None:
        self.time = VirtualTime()
        self.server = MemoryZooKeeperServer(self.time)
        self.cuts: set[tuple[int, int]] = set()
        """Pairs (from, to) of cut links."""
        self.controller_epoch = 1
        self.shutting_down: set[int] = set()
        self.brokers: dict[int, BrokerUnderTest] = {}
        self._config = {"replica_socket_timeout_ms": 1_000, **config}
        # Records of tests are as old as their timestamps, of 1970 for the most part.
        self._log_config = log_config or LogConfig()
        if self._log_config.retention_ms == LogConfig().retention_ms:
            self._log_config = replace(self._log_config, retention_ms=-1)
        self._decisions: dict[TopicPartition, LeaderAndIsrPartition] = {}
        self._zk = MemoryZooKeeper(self.server, self.time, session_timeout_ms=3_600_000)
        self._zk.start(lambda _event: None, lambda _event: None)
        self.set_controller_epoch(self.controller_epoch)
        for broker_id in broker_ids:
            self.boot(broker_id)
        self.time.run_until(lambda: all(broker.node.ready for broker in self.brokers.values()), 10_000)
        self.update_metadata()

    def boot(
        self, broker_id: int, files: MemoryFiles | None = None, dirs: Sequence[str] = ("/data",), **overrides: object
    ) -> BrokerUnderTest:
        """Start a broker process, on the disk of an earlier process if given."""
        config = replace(BrokerConfig(broker_id), **{**self._config, **overrides})  # type: ignore[arg-type]
        broker = BrokerUnderTest(self, config, self._log_config, files or MemoryFiles(), dirs)
        self.brokers[broker_id] = broker
        broker.node.start(lambda: None)
        return broker

    def restart(self, broker_id: int, wipe: bool = False) -> BrokerUnderTest:
        """Crash a broker and start it again immediately with a new session, on its old disk or an empty disk."""
        old = self.brokers[broker_id]
        session_id = old.zookeeper.session_id
        old.crash()
        self.server.expire(session_id)
        broker = self.boot(broker_id, None if wipe else old.files, old.logs.log_dirs)
        self.time.run_until(lambda: broker.node.ready, 10_000)
        return broker

    def __getitem__(self, broker_id: int) -> BrokerUnderTest:
        return self.brokers[broker_id]

    # ZooKeeper

    def zk(self, request: object) -> object:
        """Execute a ZooKeeper request now."""
        answers: list[object] = []
        self._zk.submit([request], answers.extend)  # type: ignore[list-item]
        self.time.run_until(lambda: bool(answers), 5_000)
        return answers[0]

    def set_controller_epoch(self, epoch: int) -> None:
        """Write ``/controller_epoch``."""
        self.controller_epoch = epoch
        data = znodes.encode_controller_epoch(epoch)
        self.zk(Create(znodes.CONTROLLER_EPOCH, data))
        self.zk(SetData(znodes.CONTROLLER_EPOCH, data))

    def state(self, tp: TopicPartition = TP) -> LeaderAndIsr:
        """The partition's state in ZooKeeper."""
        path = znodes.partition_state_path(tp)
        response = self.zk(GetData(path))
        return znodes.decode_partition_state(path, response.data, response.stat.version).leader_and_isr  # type: ignore[attr-defined]

    def write_state(self, state: LeaderAndIsr, tp: TopicPartition = TP) -> int:
        """Write a partition's state as a controller would; return its version."""
        path = znodes.partition_state_path(tp)
        for parent in (*znodes.parent_paths(path), path):
            self.zk(Create(parent))
        response = self.zk(SetData(path, znodes.encode_partition_state(state)))
        return response.stat.version  # type: ignore[attr-defined, no-any-return]

    def paths(self) -> list[str]:
        """Return the paths of all nodes."""
        return self.server.tree.paths()

    def delete(self, path: str) -> None:
        """Delete a node."""
        self.zk(Delete(path))

    # Requests of the controller

    def live(self, broker_ids: Iterable[int] | None = None) -> tuple[LiveBroker, ...]:
        """Return live brokers for a controller's request."""
        chosen = self.brokers if broker_ids is None else broker_ids
        return tuple(
            LiveBroker(
                one,
                self.brokers[one].endpoints,
                self.brokers[one].config.broker_rack,
                self.brokers[one].node.broker_epoch,
            )
            for one in sorted(chosen)
            if self.brokers[one].up
        )

    def stamp(self, broker_id: int, controller_epoch: int | None = None) -> ControllerStamp:
        """Return the stamp of the controller's requests to a broker."""
        epoch = self.controller_epoch if controller_epoch is None else controller_epoch
        return ControllerStamp(CONTROLLER_ID, epoch, self.brokers[broker_id].node.broker_epoch)

    def partition(
        self,
        leader: int,
        leader_epoch: int,
        isr: Sequence[int],
        replicas: Sequence[int] | None = None,
        tp: TopicPartition = TP,
        zk_version: int = 0,
        is_new: bool = False,
        topic_id: str | None = "topic-id-of-orders-one",
    ) -> LeaderAndIsrPartition:
        """Return a partition of a LeaderAndIsr request."""
        return LeaderAndIsrPartition(
            tp,
            topic_id,
            self.controller_epoch,
            leader,
            leader_epoch,
            tuple(isr),
            zk_version,
            tuple(replicas if replicas is not None else sorted(self.brokers)),
            is_new=is_new,
        )

    def send(
        self, broker_id: int, *partitions: LeaderAndIsrPartition, live_leaders: tuple[LiveBroker, ...] = ()
    ) -> ControlResponse:
        """Send a LeaderAndIsr."""
        request = LeaderAndIsrRequest(self.stamp(broker_id), live_leaders, partitions)
        return self.handle(broker_id, request)

    def handle(self, broker_id: int, request: ControlRequest) -> ControlResponse:
        """Let a broker handle a request; retry a request that ZooKeeper had to confirm first."""
        node = self.brokers[broker_id].node
        try:
            return node.handle_control(request)
        except ControlRequestDeferredError:
            read: list[bool] = []
            node.when_epochs_read(lambda: read.append(True))
            self.time.run_until(lambda: bool(read), 5_000)
            return node.handle_control(request)

    def decide(
        self,
        leader: int,
        leader_epoch: int,
        isr: Sequence[int],
        replicas: Sequence[int] | None = None,
        tp: TopicPartition = TP,
        to: Iterable[int] | None = None,
        is_new: bool = False,
    ) -> LeaderAndIsrPartition:
        """Write a decision to ZooKeeper, then send it to the running replicas (or only those in ``to``)."""
        decision = self.partition(leader, leader_epoch, isr, replicas, tp, is_new=is_new)
        version = self.write_state(LeaderAndIsr(leader, leader_epoch, decision.isr, 0, decision.controller_epoch), tp)
        decision = replace(decision, zk_version=version)
        self._decisions[tp] = decision
        for broker_id in decision.replicas if to is None else to:
            if self.brokers[broker_id].up:
                self.send(broker_id, decision)
        self.update_metadata()
        self.time.run_due()
        return decision

    def update_metadata(self, live: Iterable[int] | None = None, to: Iterable[int] | None = None) -> None:
        """Send all live brokers and decisions to brokers."""
        alive = self.live(live)
        up = {broker.broker_id for broker in alive}
        partitions = tuple(
            UpdateMetadataPartition(
                one.topic_partition,
                one.topic_id,
                one.controller_epoch,
                one.leader,
                one.leader_epoch,
                one.isr,
                one.zk_version,
                one.replicas,
                tuple(r for r in one.replicas if r not in up or r in self.shutting_down),
            )
            for one in self._decisions.values()
        )
        for broker_id in sorted(self.brokers) if to is None else to:
            if self.brokers[broker_id].up:
                request = UpdateMetadataRequest(self.stamp(broker_id), alive, partitions)
                self.handle(broker_id, request)

    def stop_replica(
        self,
        broker_id: int,
        leader_epoch: int,
        delete: bool,
        tp: TopicPartition = TP,
        topic_id: str | None = "topic-id-of-orders-one",
    ) -> ControlResponse:
        """Send a StopReplica."""
        state = StopReplicaPartition(tp, topic_id, leader_epoch, delete)
        return self.handle(broker_id, StopReplicaRequest(self.stamp(broker_id), (state,)))

    # Conditions that tests wait for

    def until_in_sync(self, *broker_ids: int, tp: TopicPartition = TP, max_ms: float = 20_000) -> None:
        """Wait until these brokers have the same log, and its leader's high watermark is at the end."""
        self.time.run_until(lambda: self._in_sync(broker_ids, tp), max_ms)

    def _in_sync(self, broker_ids: Sequence[int], tp: TopicPartition) -> bool:
        logs = [self.brokers[one].log(tp) for one in broker_ids]
        ends = {log.log_end_offset for log in logs}
        leaders = [
            self.brokers[one].log(tp)
            for one in broker_ids
            if (hosted := self.brokers[one].node.replica_manager.hosted.online.get(tp)) is not None and hosted.is_leader
        ]
        if len(ends) != 1 or not all(log.high_watermark == log.log_end_offset for log in leaders):
            return False
        return all(self.brokers[one].values(tp) == self.brokers[broker_ids[0]].values(tp) for one in broker_ids)
