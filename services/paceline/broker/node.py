"""A whole broker: registration, control requests, data path, ISR notifications and controlled shutdown.

It is a single-threaded actor: all methods and callbacks run on the node's scheduler. All I/O is passed in
as interfaces: the node uses no thread, socket or clock itself, so that the service and the simulator run the same code.
"""

import logging
import random
from collections.abc import Callable, Collection, Hashable, Sequence

from paceline.broker.control.control_requests import ControlRequests
from paceline.broker.control.directory_retries import DirectoryRetries
from paceline.broker.groups.coordinator import GroupCoordinator
from paceline.broker.groups.hosted_offsets_topic import HostedOffsetsTopic
from paceline.broker.groups.offsets_topic import OFFSETS_TOPIC
from paceline.broker.interfaces import BackgroundWork, BrokerTransport
from paceline.broker.membership.broker_configs import BrokerConfigs
from paceline.broker.membership.contact import ClusterContact
from paceline.broker.membership.controlled_shutdown import ControlledShutdown
from paceline.broker.membership.heartbeats import ControllerHeartbeats
from paceline.broker.membership.registration import BrokerRegistered, Registration
from paceline.broker.membership.replica_reports import ReplicaReports
from paceline.broker.membership.topic_configs import TopicConfigs
from paceline.broker.metadata_cache import MetadataCache
from paceline.broker.metrics import snapshot_of
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.isr_notifier import IsrNotifier
from paceline.broker.partition.partition import Partition
from paceline.broker.replica_manager import ReplicaManager
from paceline.broker.replication_throttle import ReplicationQuotas
from paceline.broker.requests.describe_node import directories_of, peers_of
from paceline.broker.requests.digest_range import digest_range
from paceline.broker.requests.errors import failure_of, refuse_all
from paceline.broker.requests.fetch_answers import fetch_for_client, fetch_for_follower
from paceline.broker.requests.log_dirs import alter_replica_log_dirs, describe_log_dirs
from paceline.broker.requests.offsets import describe_replicas, offsets_for_leader_epoch
from paceline.broker.requests.producer_ids import ProducerIdReply, ProducerIds
from paceline.broker.requests.proved_calls import ProvedCalls
from paceline.broker.storage.disk_space_watch import DiskSpaceWatch
from paceline.broker.storage.log_cleaner import LogCleaner
from paceline.broker.storage.log_flusher import LogFlusher
from paceline.broker.storage.log_retention import LogRetention
from paceline.broker.storage.meta_properties import check_cluster_id, known_cluster_id, write_cluster_id
from paceline.coordination import znodes
from paceline.coordination.interface import SessionEvent, SessionState, WatchEvent, ZooKeeper
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from paceline.log.checkpoint import DamagedFileError
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.model.broker_dynamic_config import BrokerDynamicConfig
from paceline.model.client_io import (
    DigestAnswer,
    DigestQuery,
    EpochAnswer,
    EpochQuery,
    FetchRequest,
    FetchResponse,
    PartitionReplicasView,
    ProduceData,
    ProduceResult,
    RequiredAcks,
)
from paceline.model.control import (
    ControllerStamp,
    ControlRequest,
    ControlResponse,
    Endpoint,
)
from paceline.model.errors import (
    BrokerNotAvailableError,
    InvalidConfigError,
    KafkaStorageError,
    PacelineError,
    ShuttingDownError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.log_dirs import LogDirView, ReplicaLogDir
from paceline.model.node_description import NodeDirectory, NodePeer
from paceline.model.replica_fetch import ReplicaFetchRequest, ReplicaFetchResponse
from paceline.model.scheduler import Scheduler
from paceline.model.settings import BrokerConfig
from paceline.model.state_change import StateChange, StateChangeKind
from paceline.replication.purgatory import Cancel

LOG = logging.getLogger(__name__)


class BrokerNode:
    """One broker: the `ReplicaListener` of its replicas and the `ControlListener` of requests of the controller."""

    def __init__(
        self,
        config: BrokerConfig,
        endpoints: tuple[Endpoint, ...],
        scheduler: Scheduler,
        zookeeper: ZooKeeper,
        log_manager: LogManager,
        transport: BrokerTransport,
        rng: random.Random,
        on_state_change: Callable[[StateChange], None],
        on_fatal: Callable[[Exception], None],
        background: BackgroundWork,
        cleaner_background: BackgroundWork,
        directory_background: BackgroundWork,
        unclean_restart: bool = False,
        watched: Collection[TopicPartition] = (),
        on_removed: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the broker without connecting it; `start` connects.

        ``background`` flushes logs, ``cleaner_background`` compacts them, ``directory_background`` moves them between
        directories and loads failed directories. Control requests about the ``watched`` partitions are reported; the
        collection may change at any time. ``on_removed`` is called when an operator has removed this broker from the
        cluster; the owner then stops it.
        """
        self._config = config
        self._scheduler = scheduler
        self._zookeeper = PatientZooKeeper(zookeeper)
        self._logs = log_manager
        self._transport = transport
        self._on_fatal = on_fatal
        self._rng = rng
        self._on_state_change = on_state_change
        # The cluster, as this broker knows it
        self.metadata = MetadataCache()
        self._contact = ClusterContact(config, zookeeper, scheduler)
        self._on_removed = on_removed
        self._quotas = quotas = ReplicationQuotas(config)
        self._broker_configs = BrokerConfigs(
            config.broker_id, self._zookeeper, scheduler, self._broker_config_read, rng
        )
        self._topic_configs = TopicConfigs(
            self._zookeeper,
            scheduler,
            log_manager.default_config,
            self._topic_config_read,
            rng,
            self._broker_configs.announced,
        )
        self._reports = ReplicaReports(config.broker_id, self._zookeeper, scheduler, rng)
        # The replicas, and the work on their logs
        hosted = HostedPartitions(
            config,
            scheduler,
            self._zookeeper,
            rng,
            self.metadata,
            self._topic_configs,
            quotas,
            self._contact,
            on_state_change,
            self,
        )
        self._flusher = LogFlusher(log_manager, hosted, background)
        self.replica_manager = manager = ReplicaManager(
            hosted, log_manager, transport, rng, self._flusher, directory_background
        )
        self._isr_writer = hosted.isr_updates.writer
        self._isr_notifier = IsrNotifier(hosted, self._zookeeper)
        self._retention = LogRetention(hosted, manager.storage)
        self._disk_space = DiskSpaceWatch(
            log_manager, hosted, self._retention, manager.storage, self._log_dir_room_changed
        )
        self._cleaner = LogCleaner(log_manager, hosted, manager.storage, cleaner_background)
        # The calls of clients
        self.proved_calls = ProvedCalls(hosted, manager.storage, manager.proofs, self._not_serving)
        self._producer_ids = ProducerIds(config.broker_id, self._zookeeper, scheduler)
        self.groups = GroupCoordinator(
            config.groups, scheduler, HostedOffsetsTopic(hosted, transport, self.produce), self._new_member_suffix
        )
        # The requests of the controller, and those to it
        self._control = ControlRequests(manager, self._zookeeper, self, watched)
        self._directory_retries = DirectoryRetries(manager, directory_background)
        self._registration = Registration(
            config,
            endpoints,
            unclean_restart,
            scheduler,
            self._zookeeper,
            rng,
            known_cluster_id(log_manager),
            self._highest_controller_epoch,
            self._registered,
            on_fatal,
            log_manager.sessions_of_dead_processes,
            log_manager.remember_session,
        )
        self._heartbeats = ControllerHeartbeats(
            config,
            scheduler,
            self._zookeeper,
            transport,
            self._contact,
            self.metadata,
            self._highest_controller_epoch,
            manager.fetchers.leader_reports,
            self._is_stopping,
        )
        self._heard_controller_epoch = 0
        self.cluster_id: str | None = None
        self._on_ready: Callable[[], None] | None = None
        self._on_stopped: list[Callable[[], None]] = []
        self._was_ready = False
        self._stopping = False
        self._stopped = False

    # Start and stop

    @property
    def broker_epoch(self) -> int:
        """czxid of the present registration, -1 before the first."""
        return self._contact.broker_epoch

    def contacts(self) -> tuple[int | None, bool]:
        """Return for how many ms no active controller has answered a heartbeat, and whether ZooKeeper is connected."""
        answered_ms = self._heartbeats.answered_ms
        return None if answered_ms is None else self._scheduler.now_ms() - answered_ms, self._zookeeper.connected

    @property
    def controller_epoch(self) -> int:
        """Highest epoch of a controller that this broker knows."""
        return max(self.metadata.snapshot.controller_epoch, self._highest_controller_epoch())

    def directories(self) -> tuple[NodeDirectory, ...]:
        """Return the log directories with the space of their disks."""
        return directories_of(self._logs)

    def peers(self) -> tuple[NodePeer, ...]:
        """Return the leaders that this broker fetches from, and the active controller."""
        snapshot, now_ms = self.metadata.snapshot, self._scheduler.now_ms()
        return peers_of(self.replica_manager.fetchers, snapshot, self._heartbeats, now_ms)

    @property
    def ready(self) -> bool:
        """Whether the broker has registered, is not stopping, and can prove all its leaderships.

        A lost ZooKeeper session alone does not make the broker unready.
        """
        return self._was_ready and not self._stopping and self.replica_manager.hosted.check_leaderships()

    def start(self, on_ready: Callable[[], None]) -> None:
        """Connect and register; ``on_ready`` is called once, after the first registration."""
        self._on_ready = on_ready
        self.replica_manager.start()
        self._flusher.start()
        self._retention.start()
        self._disk_space.timer.start(0)
        self._cleaner.start()
        self._heartbeats.start()
        self._contact.start()
        self.groups.start()
        self._isr_notifier.timer.start()
        self._zookeeper.start(self._session_changed, self._watch_fired)

    def stop(self, on_done: Callable[[], None]) -> None:
        """Move leaders away if possible, answer waiting requests, write checkpoints and logs, end the session."""
        if self._stopped and not self._on_stopped:
            self._scheduler.call_soon(on_done)
            return
        self._on_stopped.append(on_done)
        if self._stopping:
            return
        self._stopping = True
        self.replica_manager.shutting_down = True
        if self._was_ready and self._config.controlled_shutdown_enable:
            ControlledShutdown(
                self._config,
                self._scheduler,
                self._zookeeper,
                self._transport,
                self._contact,
                lambda _clean: self._finish_stop(),
            ).start()
        else:
            self._finish_stop()

    def _finish_stop(self) -> None:
        self._stopped = True
        self._contact.stop()
        self._heartbeats.stop()
        self.groups.stop()
        self._isr_notifier.timer.stop()
        self._isr_writer.stop()
        self._registration.stop()
        self._topic_configs.stop()
        self._broker_configs.stop()
        # Close the logs only when no flush is running: a log that is closed during a flush would lack later records.
        self._disk_space.timer.stop()
        self._retention.stop()
        self._cleaner.stop(lambda: self._flusher.stop(self._close_logs))

    def _close_logs(self) -> None:
        self.replica_manager.stop()
        self._producer_ids.fail_waiting(ShuttingDownError("the broker is shutting down"))
        self._zookeeper.close()
        done, self._on_stopped = self._on_stopped, []
        for callback in done:
            self._scheduler.call_soon(callback)

    def leader_does_not_answer(self, leader_id: int, cause: str) -> None:
        """Record that a leader does not answer fetches."""
        self._emit(StateChangeKind.LEADER_UNREACHABLE, cause, replica=leader_id)

    def fetch_connection_broke(self) -> None:
        """Report the leader now: with the controller's own evidence, the broken connection proves that it is dead."""
        self._heartbeats.beat_now()

    def controller_connection_closed(self) -> None:
        """Send a heartbeat: the controller may also have lost its connection to this broker."""
        self._heartbeats.beat_now()

    # Session and registration

    def _session_changed(self, event: SessionEvent) -> None:
        if self._stopped:
            return
        if event.state is SessionState.CONNECTED:
            new_session = event.session_id != self._registration.session_id
            if new_session:
                self._contact.proof.session_began(self._scheduler.now_ms())
            self._registration.connected(event.session_id)
            if not new_session:
                self._isr_writer.connected()
                self._topic_configs.connected(new_session=False)
        # Keep roles and data after an expiry until a controller sends requests in the new session. Keep the old broker
        # epoch until the broker has registered again.
        cause = f"the ZooKeeper session is {event.state.name.lower().replace('_', ' ')}"
        self._emit(StateChangeKind.SESSION_CHANGED, cause, to_state=event.state.name)

    def _registered(self, registered: BrokerRegistered) -> None:
        try:
            check_cluster_id(self._logs, registered.cluster_id)
            write_cluster_id(self._logs, self._config.broker_id, registered.cluster_id, self._scheduler.wall_ms())
        except (InvalidConfigError, DamagedFileError, OSError) as error:
            self._on_fatal(error)
            return
        self.cluster_id = registered.cluster_id
        self._contact.broker_epoch = registered.broker_epoch
        self._control.request_fence.confirm(registered.controller_epoch)
        self._emit(
            StateChangeKind.BROKER_REGISTERED,
            f"broker epoch {registered.broker_epoch}",
            broker_epoch=registered.broker_epoch,
        )
        self._isr_writer.session_ready()
        self._broker_configs.read()
        self._topic_configs.connected(new_session=True)
        self._reports.registered()
        if not self._was_ready:
            self._was_ready = True
            if self._on_ready is not None:
                self._on_ready()

    def _watch_fired(self, event: WatchEvent) -> None:
        if event.path == znodes.CONFIG_CHANGES and not self._stopped:
            self._topic_configs.announced()

    def _broker_config_read(self, config: BrokerDynamicConfig) -> None:
        self._quotas.apply_broker_config(config)
        if config.is_removed:
            self._on_removed()

    def _topic_config_read(self, topic: str, config: LogConfig | None) -> None:
        self.replica_manager.hosted.apply_topic_config(topic, config)

    def _emit(
        self,
        kind: StateChangeKind,
        cause: str,
        *,
        replica: int | None = None,
        broker_epoch: int | None = None,
        log_dir: str | None = None,
        to_state: str | None = None,
    ) -> None:
        self._on_state_change(
            StateChange(
                who=f"broker-{self._config.broker_id}",
                wall_ms=self._scheduler.wall_ms(),
                kind=kind,
                replica=self._config.broker_id if replica is None else replica,
                broker_epoch=broker_epoch,
                log_dir=log_dir,
                to_state=to_state,
                cause=cause,
            )
        )

    # Control requests

    def handle_control(self, request: ControlRequest) -> ControlResponse:
        """Apply a controller's decision, or refuse it because of its epochs.

        Raises:
            ControlRequestDeferredError: ZooKeeper must confirm an epoch first; the controller retries.
            ShuttingDownError: the broker has stopped serving.
        """
        if self._stopped:
            raise ShuttingDownError("the broker has stopped")
        return self._control.handle(request)

    def when_epochs_read(self, on_read: Callable[[], None]) -> None:
        """Call ``on_read`` when ZooKeeper has answered the pending look-up, at once without a look-up."""
        self._control.when_epochs_read(on_read)

    def _is_stopping(self) -> bool:
        return self._stopping

    def _highest_controller_epoch(self) -> int:
        """Highest epoch of a controller that ZooKeeper has confirmed."""
        return self._control.request_fence.confirmed_epoch

    def request_accepted(self, stamp: ControllerStamp) -> None:
        """Take the consequences of a request of an active controller."""
        if self._registration.unclean_restart and stamp.broker_epoch == self.broker_epoch:
            # The controller knows this registration, so it has handled the reported unclean restart.
            self._logs.unclean_restart_noted()
            self._registration.acknowledged()
        if stamp.controller_epoch > self._heard_controller_epoch:
            self._heard_controller_epoch = stamp.controller_epoch
            if any(self.replica_manager.fetchers.leader_reports()[:2]):
                # The previous controller may have died together with a leader whose connection broke: report it again.
                self._heartbeats.beat_now()

    def request_refused(self, cause: str) -> None:
        """Record a refused request."""
        self._emit(StateChangeKind.CONTROL_REFUSED, cause)

    def request_answered(self, change: StateChange) -> None:
        """Report the answer to a request about a watched partition."""
        self._on_state_change(change)

    # Groups

    def leadership_changed(self, leaders: Sequence[Partition], others: Sequence[TopicPartition]) -> None:
        """Load the groups of offsets partitions that this broker now leads, drop the groups of other partitions."""
        for partition in leaders:
            if partition.topic_partition.topic == OFFSETS_TOPIC:
                self.groups.become_leader(partition.topic_partition.partition, partition.leader_epoch)
        for topic, index in others:
            if topic == OFFSETS_TOPIC:
                self.groups.become_follower(index)

    def partition_left(self, topic_partition: TopicPartition) -> None:
        """Stop fetching and moving a partition that this broker no longer has, and drop its groups."""
        self.replica_manager.fetchers.stop((topic_partition,))
        self.replica_manager.moves.stop((topic_partition,))
        self.leadership_changed((), (topic_partition,))

    def partitions_deleted(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Remove the committed offsets and the preferred log directories of deleted partitions."""
        self._logs.forget_preferred(topic_partitions)
        self.groups.partitions_deleted(topic_partitions)

    def _new_member_suffix(self) -> str:
        """Return 32 random hexadecimal digits that make a member id unique."""
        return self._rng.randbytes(16).hex()

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return self._scheduler.wall_ms()

    def group_coordinator(self) -> GroupCoordinator:
        """Return the group coordinator.

        Raises:
            PacelineError: the broker is not serving.
        """
        refusal = self._not_serving()
        if refusal is not None:
            raise refusal
        return self.groups

    # Data path

    def handle_replica_fetch(
        self, request: ReplicaFetchRequest, reply: Callable[[ReplicaFetchResponse], None]
    ) -> Cancel | None:
        """Answer a follower's fetch, now or after a wait; return a function that cancels the wait."""
        refusal = self._not_serving()
        if refusal is not None:
            reply(ReplicaFetchResponse(0, [], refusal.code))
            return None
        return fetch_for_follower(self.replica_manager.fetches, request, reply)

    def offsets_for_leader_epoch(self, queries: Sequence[EpochQuery]) -> list[EpochAnswer]:
        """Return the end offsets of leader epochs to a follower."""
        return refuse_all(self._not_serving(), queries, EpochAnswer) or offsets_for_leader_epoch(
            self.replica_manager.hosted, queries, from_client=False
        )

    def digest_range(self, query: DigestQuery) -> DigestAnswer:
        """Return the digest of a range of this broker's replica."""
        refused = refuse_all(self._not_serving(), [query], DigestAnswer)
        return refused[0] if refused else digest_range(self.replica_manager.hosted, query)

    def produce(
        self,
        acks: RequiredAcks,
        timeout_ms: int,
        data: Sequence[ProduceData],
        reply: Callable[[list[ProduceResult]], None],
        from_client: bool = True,
        producer: Hashable = None,
    ) -> Cancel | None:
        """Append batches and reply once, with one result per batch in their order.

        Returns a function that cancels the wait, for a caller that has disconnected; None without a wait.
        ``from_client`` is False for the broker's own writes to internal topics. ``producer`` identifies the caller's
        connection.
        """
        topics = [item.topic_partition.topic for item in data]
        serving = self._not_serving() is None
        if serving and not self._topic_configs.must_wait(topics, producer):
            return self.replica_manager.produces.produce(acks, timeout_ms, data, reply, from_client, producer)
        deadline_ms = self._scheduler.now_ms() + timeout_ms

        def append() -> Cancel | None:
            refused = refuse_all(self._not_serving(), data, ProduceResult)
            if refused:
                reply(refused)
                return None
            left_ms = max(deadline_ms - self._scheduler.now_ms(), 0)
            return self.replica_manager.produces.produce(acks, left_ms, data, reply, from_client, producer)

        return self._topic_configs.when_known(topics, timeout_ms, producer, append) if serving else append()

    def fetch(self, request: FetchRequest, reply: Callable[[FetchResponse], None]) -> Cancel | None:
        """Answer a client's fetch, now or after a wait; return a function that cancels the wait."""
        refusal = self._not_serving()
        if refusal is not None:
            reply(FetchResponse([], 0, failure_of(refusal)))
            return None
        manager = self.replica_manager
        return fetch_for_client(manager.hosted, manager.fetches, manager.proofs, request, reply)

    def describe_replicas(self, topic: str, partitions: Sequence[int]) -> list[PartitionReplicasView]:
        """Return replica progress of partitions that this broker leads; without ``partitions``, of all in the topic."""
        hosted = self.replica_manager.hosted
        led = (one.topic_partition for one in hosted.led() if one.topic_partition.topic == topic)
        indexes = partitions or sorted(topic_partition.partition for topic_partition in led)
        return describe_replicas(hosted, topic, indexes, hosted.now_ms())

    def init_producer_id(self, reply: ProducerIdReply) -> None:
        """Reply with (producer id, epoch), or with the error."""
        refusal = self._not_serving()
        if refusal is not None:
            reply(refusal)
        else:
            self._producer_ids.take(reply)

    def _not_serving(self) -> PacelineError | None:
        if self._stopped:
            return ShuttingDownError("the broker has stopped")
        if not self._was_ready:
            return BrokerNotAvailableError("the broker is starting")
        return None

    def metrics_snapshot(self) -> dict[str, float]:
        """Return the present metrics by name."""
        return snapshot_of(self.replica_manager, self._cleaner, self.groups)

    # Storage

    def describe_log_dirs(self, wanted: Collection[TopicPartition] | None) -> list[LogDirView]:
        """Return the log directories with their replicas; None means every replica."""
        return describe_log_dirs(self._logs, self.replica_manager.fetchers, wanted)

    def alter_replica_log_dirs(self, requested: Sequence[ReplicaLogDir]) -> list[PacelineError | None]:
        """Move replicas to log directories; return the reason of the refusal for each replica, None for a move."""
        manager = self.replica_manager
        return alter_replica_log_dirs(self._logs, manager.hosted, manager.storage, manager.moves, requested)

    def retry_log_dir(self, log_dir: str, is_repeated: bool) -> bool:
        """Take an offline directory back; return whether it is still being loaded, see `DirectoryRetries.retry`."""
        return self._directory_retries.retry(log_dir, is_repeated)

    def replicas_changed(self) -> None:
        """Make the controller request the state of the replicas."""
        self._reports.request()

    def _log_dir_room_changed(self, log_dir: str, is_short: bool, cause: str) -> None:
        kind = StateChangeKind.LOG_DIR_SHORT if is_short else StateChangeKind.LOG_DIR_ROOMY
        self._emit(kind, cause, log_dir=log_dir)

    def log_dir_failed(self, log_dir: str) -> None:
        """Report a failed log directory; the broker ends with its last."""
        self._emit(StateChangeKind.LOG_DIR_FAILED, log_dir, log_dir=log_dir)
        if not self._logs.live_log_dirs:
            self._on_fatal(KafkaStorageError("every log directory has failed"))
            return
        self._reports.request()
