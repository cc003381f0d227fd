"""Host the partitions of a broker and handle requests for them.

A partition is not hosted, Online (in `partitions`) or Offline (in `offline`): its log directory has failed, or its log
is damaged. All methods run on the node's scheduler, one at a time; there are no locks. Partitions report changes while
a request is handled; `deliver_changes`, called at the end, completes the operations that wait for these changes.
Source: docs/protocol/replication.md#hosted-partitions.
"""

import random
from collections.abc import Callable, Iterable

from paceline.broker.fetcher.fetcher_manager import FetcherManager
from paceline.broker.interfaces import BrokerTransport
from paceline.broker.membership.topic_configs import TopicConfigs
from paceline.broker.metadata_cache import MetadataCache
from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.partition.isr_check import IsrCheck
from paceline.broker.partition.isr_updates import IsrUpdates
from paceline.broker.partition.partition import Partition
from paceline.broker.replication_throttle import ReplicationQuotas
from paceline.broker.requests.append_coalescing import AppendCoalescer
from paceline.broker.requests.delete_records import DeleteRecordsHandler
from paceline.broker.requests.fetch import FetchHandler
from paceline.broker.requests.leader_hints import LeaderHints
from paceline.broker.requests.produce import ProduceHandler
from paceline.broker.requests.proof_waits import ProofWaits
from paceline.broker.storage.damaged_logs import DamagedLogs
from paceline.broker.traffic import BrokerTraffic
from paceline.coordination.interface import ZooKeeper
from paceline.log.damage import DamagedLogError
from paceline.log.log_config import LogConfig
from paceline.log.log_manager import LogManager
from paceline.log.partition_log import PartitionLog
from paceline.model.errors import (
    KafkaStorageError,
    NotLeaderOrFollowerError,
    PacelineError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Cancellable, Scheduler
from paceline.model.settings import BrokerConfig
from paceline.model.state_change import StateChange, StateChangeKind
from paceline.replication.fetch_session import FetchSession, PartitionChange
from paceline.replication.isr_propagation import IsrPropagation
from paceline.replication.leadership_proof import LeadershipProof
from paceline.replication.purgatory import Purgatory
from paceline.replication.replica_selector import RACK_AWARE_NAMES, Candidate, nearest_replica


class ReplicaManager:
    """Owns all hosted partitions."""

    def __init__(
        self,
        config: BrokerConfig,
        scheduler: Scheduler,
        logs: LogManager,
        metadata: MetadataCache,
        transport: BrokerTransport,
        rng: random.Random,
        zookeeper: ZooKeeper,
        on_state_change: Callable[[StateChange], None],
        on_log_dir_failed: Callable[[str], None],
        topic_configs: TopicConfigs,
        proof: LeadershipProof,
        session_may_be_over: Callable[[], bool],
        on_topic_left: Callable[[str], None],
        on_replicas_changed: Callable[[], None],
        on_partition_left: Callable[[TopicPartition], None],
        on_fetch_connection_broke: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the manager without partitions.

        Args:
            config: settings of the broker.
            scheduler: runs all methods.
            logs: the logs of the broker.
            metadata: cluster metadata from the controller.
            transport: calls to leaders.
            rng: random session ids.
            zookeeper: stores ISRs.
            on_state_change: records a change.
            on_log_dir_failed: called once with each failed log directory.
            topic_configs: settings of topics.
            proof: computes the time since which leaderships must be proved.
            session_may_be_over: whether ZooKeeper may have ended the session.
            on_topic_left: called with each topic that is no longer hosted.
            on_replicas_changed: makes the controller request the state of the replicas.
            on_partition_left: called with each partition that is no longer hosted, or is Offline.
            on_fetch_connection_broke: called when a fetcher has lost the connection to its leader.
        """
        self._on_partition_left = on_partition_left
        self.on_fetch_connection_broke = on_fetch_connection_broke
        """With the controller's own evidence, a broken connection of a fetcher proves that its leader is dead."""
        self.config = config
        self.broker_id = config.broker_id
        self.scheduler = scheduler
        self.logs = logs
        self.metadata = metadata
        self.broker_epoch = -1
        self.shutting_down = False
        self.hosted = HostedPartitions(on_topic_left)
        self.partitions = self.hosted.online
        self.offline = self.hosted.offline
        self.hints = LeaderHints(config.broker_id, self.hosted, metadata)
        self.damaged_logs = DamagedLogs(self, on_replicas_changed)
        self.produce_purgatory = Purgatory(scheduler)
        self.fetch_purgatory = Purgatory(scheduler)
        self._rack_aware = config.replica_selector_class in RACK_AWARE_NAMES
        self.quotas = ReplicationQuotas(config)
        self.traffic = BrokerTraffic()
        self.fetchers = FetcherManager(config, scheduler, transport, self)
        coalescer = AppendCoalescer(scheduler)
        self.fetches = FetchHandler(self, rng, coalescer)
        self.produces = ProduceHandler(self, coalescer)
        self.delete_records_purgatory = Purgatory(scheduler)
        self.deletes = DeleteRecordsHandler(self)
        self._log_starts_moved = False
        self.isr_propagation = IsrPropagation(config.isr_propagation_quiet_ms, config.isr_propagation_max_wait_ms)
        self.isr_updates = IsrUpdates(self, self.isr_propagation, zookeeper, scheduler, rng, self.deliver_changes)
        self.maybe_expand_isr = self.isr_updates.maybe_expand
        self._on_state_change = on_state_change
        self._on_log_dir_failed = on_log_dir_failed
        self.topic_configs = topic_configs
        self._proof = proof
        self.proofs = ProofWaits(self, proof)
        self._session_may_be_over = session_may_be_over
        self._all_proved_since_ms: int | None = None
        self._failed_dirs: dict[str, None] = {}
        self._changes: dict[Partition, int] = {}
        self._isr_check = IsrCheck(self)
        self._checkpoint: Cancellable | None = None
        self._stopped = False

    def now_ms(self) -> int:
        """Monotonic milliseconds."""
        return self.scheduler.now_ms()

    # Finding partitions

    def lookup(self, topic_partition: TopicPartition) -> Partition:
        """Return an Online partition.

        Raises:
            KafkaStorageError: the partition is Offline.
            NotLeaderOrFollowerError: the partition exists only on other brokers.
            UnknownTopicOrPartitionError: the partition is not in this broker's metadata.
        """
        partition = self.partitions.get(topic_partition)
        if partition is not None:
            return partition
        if topic_partition in self.offline:
            raise KafkaStorageError(f"the log directory of {topic_partition} has failed")
        if self.metadata.snapshot.partition(topic_partition) is not None:
            raise NotLeaderOrFollowerError(f"broker {self.broker_id} has no replica of {topic_partition}")
        raise UnknownTopicOrPartitionError(f"{topic_partition} is not known to broker {self.broker_id}")

    def nearest_replica(self, partition: Partition, rack: str, fetch_offset: int) -> int | None:
        """Return the follower that a client in that rack should read from, None for this leader (KIP-392).

        Only live members of the committed ISR are returned, so that the follower's high watermark lags only a little.
        """
        if not self._rack_aware:
            return None
        brokers = self.metadata.snapshot.brokers
        candidates = [
            Candidate(broker_id, brokers[broker_id].rack, known.log_start_offset or 0, known.log_end_offset)
            for broker_id, known in partition.followers.items()
            if broker_id in partition.isr
            and broker_id in brokers
            and known.log_end_offset is not None
            and not self.is_offline_replica(partition.topic_partition, broker_id)
        ]
        return nearest_replica(rack, self.config.broker_rack, fetch_offset, candidates)

    def host(self, partition: Partition, controller_epoch: int, topic_id: str | None) -> None:
        """Host a partition of this topic, Online, as decided by the controller of that epoch."""
        partition.assigned_broker_epoch = self.broker_epoch
        partition.assigned_controller_epoch = controller_epoch
        self.hosted.add(partition, topic_id)

    def drop(self, topic_partition: TopicPartition) -> Partition | None:
        """Stop hosting a partition; return it if it was Online."""
        partition = self.hosted.drop(topic_partition)
        self._on_partition_left(topic_partition)
        if not self.hosted.of_topic(topic_partition.topic):
            self.traffic.forget(topic_partition.topic)
        return partition

    def end_topic_roles(self, topics: Iterable[str]) -> None:
        """Reset the traffic counters of roles that this broker no longer has for these topics."""
        for topic in topics:
            if topic in self.traffic.topics:
                self.traffic.end_roles(topic, *self.hosted.roles(topic))

    # For partitions and fetchers

    def proof_since_ms(self) -> int:
        """Return the time since which the leaderships of this broker must be proved."""
        return self._proof.since_ms(self.now_ms(), self._session_may_be_over())

    def in_contact(self) -> bool:
        """Whether both the ZooKeeper session and the controller's lease are certainly valid."""
        return not (self._session_may_be_over() or self._proof.lease_may_be_over(self.now_ms()))

    def serves_as_leader(self) -> bool:
        """Return whether every leadership of this broker can be proved; checked again after each loss of contact.

        A leadership that has certainly ended does not count: its requests are refused, and the broker is healthy.
        """
        since_ms = self.proof_since_ms()
        if since_ms == self._all_proved_since_ms and self.in_contact():
            return True
        leaders = (one for one in self.partitions.values() if one.is_leader and not one.is_deposed)
        proved = all(partition.is_leadership_proved for partition in leaders)
        self._all_proved_since_ms = since_ms if proved and self.in_contact() else None
        return proved

    def registered_broker_epoch(self, broker_id: int) -> int | None:
        """Epoch of a live broker, None when it is not alive."""
        return self.metadata.snapshot.registered_broker_epoch(broker_id)

    def is_offline_replica(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        """Whether the replica's broker is shutting down or the replica is offline."""
        return self.metadata.snapshot.is_offline_replica(topic_partition, broker_id)

    def record_change(self, partition: Partition, change: int) -> None:
        """Record a change for which readers and producers may wait."""
        self._changes[partition] = self._changes.get(partition, 0) | change

    def emit(
        self,
        kind: StateChangeKind,
        partition: Partition,
        old_isr: tuple[int, ...] | None = None,
        cause: str | None = None,
        end_offset: int | None = None,
    ) -> None:
        """Record a state change of a partition, with the offsets of its replicas."""
        self._on_state_change(
            StateChange(
                who=f"broker-{self.broker_id}",
                wall_ms=self.scheduler.wall_ms(),
                kind=kind,
                topic_partition=partition.topic_partition,
                topic_id=partition.topic_id,
                replica=self.broker_id,
                controller_epoch=partition.controller_epoch,
                leader=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                isr=partition.proposal.isr if partition.proposal is not None else partition.isr,
                old_isr=old_isr,
                zk_version=partition.zk_version,
                replicas=partition.offsets(),
                end_offset=end_offset,
                cause=cause,
            )
        )

    def fetching_failed(self, partition: Partition, reason: str) -> None:
        """Record that a fetcher has dropped a partition, which is not fetched until the next LeaderAndIsr for it."""
        self.emit(StateChangeKind.FETCHER_FAILED, partition, cause=reason)

    def leader_does_not_answer(self, leader_id: int, cause: str) -> None:
        """Record that a leader does not answer fetches."""
        who, kind = f"broker-{self.broker_id}", StateChangeKind.LEADER_UNREACHABLE
        wall_ms = self.scheduler.wall_ms()
        self._on_state_change(StateChange(who=who, wall_ms=wall_ms, kind=kind, replica=leader_id, cause=cause))

    def deliver_changes(self) -> None:
        """Complete the operations that wait for changes since the last call.

        Sessions are first marked and then woken, so that one response has all changes of a request.
        """
        while self._changes:
            changes, self._changes = self._changes, {}
            wake: dict[FetchSession, None] = {}
            for partition, bits in changes.items():
                for session in tuple(partition.sessions):
                    if session.closed:
                        del partition.sessions[session]
                    elif session.mark(partition.topic_partition, bits):
                        wake[session] = None
            for session in wake:
                if session.waiting is not None:
                    session.waiting()
            for partition, bits in changes.items():
                topic_partition = partition.topic_partition
                if bits & (PartitionChange.HIGH_WATERMARK | PartitionChange.ROLE):
                    self.produce_purgatory.check_and_complete(topic_partition)
                self.fetch_purgatory.check_and_complete(topic_partition)
                if bits & PartitionChange.ROLE:
                    self.proofs.purgatory.check_and_complete(topic_partition)
                if bits & (PartitionChange.LOG_START | PartitionChange.LOW_WATERMARK | PartitionChange.ROLE):
                    self.delete_records_purgatory.check_and_complete(topic_partition)

    # Topic settings

    def apply_topic_config(self, topic: str, config: LogConfig | None) -> None:
        """Apply a topic's new or changed settings; with None each log keeps its present settings."""
        if config is not None:
            self.quotas.apply_topic_config(topic, config)
        for partition in self.hosted.of_topic(topic).values():
            if partition.log is not None:
                if config is not None:
                    partition.log.config = config
                if partition.is_leader:
                    partition.advance_high_watermark()
                    self.record_change(partition, PartitionChange.ROLE)
        self.deliver_changes()

    # Storage

    def storage_failed(self, topic_partition: TopicPartition) -> None:
        """Take all partitions of a failed directory offline soon, after a log operation failed.

        Not immediately, because the caller is handling a request.
        """
        self.scheduler.call_soon(self.take_failed_dirs_offline)

    def log_start_moved(self, log: PartitionLog) -> None:
        """Delete whole segments below the log start; their files are deleted after ``file.delete.delay.ms``."""
        self._log_starts_moved = True
        removed = log.remove_segments_below_start()
        if removed:
            self.scheduler.call_later(
                log.config.file_delete_delay_ms, lambda: None if self._stopped else log.remove_files(removed)
            )

    def make_log_starts_durable(self) -> None:
        """Persist changed log start offsets before a response reports deleted records."""
        if not self._log_starts_moved:
            return
        self._log_starts_moved = False
        self.logs.checkpoint_log_start_offsets()
        if len(self.logs.live_log_dirs) < len(self.logs.log_dirs):
            self.scheduler.call_soon(self.take_failed_dirs_offline)

    def log_damaged(self, topic_partition: TopicPartition, error: DamagedLogError) -> PacelineError:
        """Handle damage in a log; return the error for the request that found it."""
        return self.damaged_logs.found(topic_partition, error)

    def purge_later(self, log: PartitionLog) -> None:
        """Delete the files of a deleted log after its delay."""
        self.scheduler.call_later(log.config.file_delete_delay_ms, self._purge)

    def _purge(self) -> None:
        if not self._stopped:
            self.logs.purge_deleted()

    def take_failed_dirs_offline(self) -> None:
        """Set exactly the partitions on failed log directories Offline, once per directory."""
        lost = [
            partition
            for partition in self.partitions.values()
            if partition.log is not None and partition.log.directory.is_offline
        ]
        self.fetchers.stop(partition.topic_partition for partition in lost)
        for partition in lost:
            self.set_offline(partition)
        self.end_topic_roles(dict.fromkeys(partition.topic_partition.topic for partition in lost))
        for log_dir in self.logs.log_dirs:
            if log_dir not in self.logs.live_log_dirs and log_dir not in self._failed_dirs:
                self._failed_dirs[log_dir] = None
                self._on_log_dir_failed(log_dir)
        self.deliver_changes()

    def set_offline(self, partition: Partition) -> None:
        """Set a partition Offline until a restart, or until `DamagedLogs` returns the replica to service."""
        topic_partition = partition.topic_partition
        self.emit(StateChangeKind.BECAME_OFFLINE, partition)
        self.drop(topic_partition)
        self.offline[topic_partition] = None
        partition.retire()

    # Background work

    def start(self) -> None:
        """Start the checks for lagging followers."""
        self._isr_check.start()

    def start_checkpoints(self) -> None:
        """Start to write high watermark checkpoints; after the first LeaderAndIsr, so that no partition is missing."""
        if self._checkpoint is None and not self._stopped:
            self._schedule_checkpoint()

    def _schedule_checkpoint(self) -> None:
        interval_ms = self.config.replica_high_watermark_checkpoint_interval_ms
        self._checkpoint = self.scheduler.call_later(interval_ms, self._write_checkpoint)

    def _write_checkpoint(self) -> None:
        if not self._stopped:
            self._schedule_checkpoint()
            self.logs.checkpoint_high_watermarks()
            self.take_failed_dirs_offline()

    def stop_fetching(self) -> None:
        """Close all fetchers; partitions that become followers later are not fetched."""
        self.shutting_down = True
        self.fetchers.close()

    def stop(self) -> None:
        """Stop fetchers and background work, answer all waiting requests, and write high watermarks and logs."""
        if self._stopped:
            return
        self.stop_fetching()
        self._stopped = True
        self._isr_check.stop()
        if self._checkpoint is not None:
            self._checkpoint.cancel()
        self.deliver_changes()
        self.proofs.purgatory.complete_all()
        self.fetches.sessions.close_all()
        self.fetch_purgatory.complete_all()
        self.produce_purgatory.complete_all()
        self.delete_records_purgatory.complete_all()
        self.logs.checkpoint_high_watermarks()
        self.logs.shutdown()

    # Deletion

    def delete(self, topic_partition: TopicPartition) -> None:
        """Remove a partition that is being deleted, if it is Online."""
        partition = self.drop(topic_partition)
        if partition is not None:
            self.emit(StateChangeKind.REPLICA_DELETED, partition)
            partition.retire()
