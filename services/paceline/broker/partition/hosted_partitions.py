"""`HostedPartitions`: the Online and Offline partitions of a broker, and the requests that wait for changes of them.

It is the `PartitionHost` of its partitions. They record changes while a request is handled; `deliver_changes`, called
at its end, completes the operations that wait for these changes.
Source: docs/protocol/replication.md#hosted-partitions.
"""

import random
from collections.abc import Callable, Iterable, Mapping

from paceline.broker.interfaces import ReplicaListener
from paceline.broker.membership.contact import ClusterContact
from paceline.broker.membership.topic_configs import TopicConfigs
from paceline.broker.metadata_cache import MetadataCache
from paceline.broker.partition.isr_updates import IsrUpdates
from paceline.broker.partition.partition import Partition
from paceline.broker.replication_throttle import ReplicationQuotas
from paceline.broker.traffic import BrokerTraffic
from paceline.coordination.interface import ZooKeeper
from paceline.log.log_config import LogConfig
from paceline.log.partition_log import PartitionLog
from paceline.model.errors import KafkaStorageError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Scheduler
from paceline.model.settings import BrokerConfig
from paceline.model.state_change import StateChange, StateChangeKind
from paceline.replication.fetch_session import FetchSession, PartitionChange
from paceline.replication.purgatory import Purgatory


class HostedPartitions:
    """Partitions by name; a partition in neither dictionary is not hosted."""

    def __init__(
        self,
        config: BrokerConfig,
        scheduler: Scheduler,
        zookeeper: ZooKeeper,
        rng: random.Random,
        metadata: MetadataCache,
        topic_configs: TopicConfigs,
        quotas: ReplicationQuotas,
        contact: ClusterContact,
        on_state_change: Callable[[StateChange], None],
        listener: ReplicaListener,
    ) -> None:
        self.config = config
        self.broker_id = config.broker_id
        self.scheduler = scheduler
        self.now_ms = scheduler.now_ms
        self.metadata = metadata
        self.topic_configs = topic_configs
        self.quotas = quotas
        self.contact = contact
        self.in_contact = contact.in_contact
        self.proof_since_ms = contact.proof_since_ms
        self._on_state_change = on_state_change
        self.listener = listener
        self.traffic = BrokerTraffic()
        self.online: dict[TopicPartition, Partition] = {}
        self.offline: dict[TopicPartition, None] = {}
        """Partitions whose log directory failed, whose log is damaged, or could not be created on a full disk."""
        self._by_topic: dict[str, dict[int, Partition]] = {}
        self.waiting_produces = Purgatory(scheduler)
        self.waiting_fetches = Purgatory(scheduler)
        self.waiting_deletes = Purgatory(scheduler)
        self.waiting_for_proofs = Purgatory(scheduler)
        self._changes: dict[Partition, int] = {}
        self.log_starts_moved = False
        self.stopped = False
        self._all_proved_since_ms: int | None = None
        self.isr_updates = IsrUpdates(self, zookeeper, scheduler, rng, self.deliver_changes)
        self.maybe_expand_isr = self.isr_updates.maybe_expand

    # Finding partitions

    def lookup(self, topic_partition: TopicPartition) -> Partition:
        """Return an Online partition.

        Raises:
            KafkaStorageError: the partition is Offline.
            NotLeaderOrFollowerError: the partition exists only on other brokers.
            UnknownTopicOrPartitionError: the partition is not in this broker's metadata.
        """
        partition = self.online.get(topic_partition)
        if partition is not None:
            return partition
        if topic_partition in self.offline:
            raise KafkaStorageError(f"the log directory of {topic_partition} has failed")
        if self.metadata.snapshot.partition(topic_partition) is not None:
            raise NotLeaderOrFollowerError(f"broker {self.broker_id} has no replica of {topic_partition}")
        raise UnknownTopicOrPartitionError(f"{topic_partition} is not known to broker {self.broker_id}")

    def of_topic(self, topic: str) -> Mapping[int, Partition]:
        """Return the Online partitions of a topic by number."""
        return self._by_topic.get(topic, {})

    def among(self, topics: Iterable[str]) -> list[str]:
        """Return the topics with a hosted partition, each once."""
        return [topic for topic in dict.fromkeys(topics) if topic in self._by_topic]

    def roles(self, topic: str) -> tuple[bool, bool]:
        """Return whether this broker leads, and whether it follows, a partition of the topic."""
        hosted = self.of_topic(topic).values()
        return any(one.is_leader for one in hosted), any(not one.is_leader for one in hosted)

    def led(self) -> list[Partition]:
        """Return the partitions that this broker leads."""
        return [partition for partition in self.online.values() if partition.is_leader]

    def check_leaderships(self) -> bool:
        """Return whether every leadership of this broker can be proved; a proof counts until the next loss of contact.

        A leadership that has certainly ended does not count: its requests are refused, and the broker is healthy.
        """
        since_ms = self.proof_since_ms()
        if since_ms == self._all_proved_since_ms and self.in_contact():
            return True
        proved = all(one.is_leadership_proved for one in self.online.values() if one.is_leader and not one.is_deposed)
        self._all_proved_since_ms = since_ms if proved and self.in_contact() else None
        return proved

    # Changes of the hosted partitions

    def add(self, partition: Partition, controller_epoch: int, topic_id: str | None) -> None:
        """Host a partition of this topic, Online, as decided by the controller of that epoch."""
        partition.assigned_broker_epoch = self.contact.broker_epoch
        partition.assigned_controller_epoch = controller_epoch
        topic, index = partition.topic_partition
        self.online[partition.topic_partition] = partition
        siblings = self._by_topic.setdefault(topic, {})
        earliest = next(iter(siblings.values()), None)
        siblings[index] = partition
        if earliest is not None and topic_id is not None and earliest.topic_id not in (None, topic_id):
            # A partition of a deleted topic with this name is still hosted: drop the settings of the deleted topic.
            self._forget_settings(topic)
            if earliest.settings_are_read:
                for one in siblings.values():
                    one.settings_are_read = False
        partition.settings_are_read = not self.topic_configs.is_unread(topic)

    def drop(self, topic_partition: TopicPartition) -> Partition | None:
        """Stop hosting a partition; return it if it was Online."""
        topic, index = topic_partition
        siblings = self._by_topic.get(topic)
        if siblings is not None and siblings.pop(index, None) is not None and not siblings:
            del self._by_topic[topic]
            self._forget_settings(topic)
        partition = self.online.pop(topic_partition, None)
        self.listener.partition_left(topic_partition)
        if topic not in self._by_topic:
            self.traffic.forget(topic)
        return partition

    def set_offline(self, topic_partition: TopicPartition) -> None:
        """Set a partition Offline, until `ReplicaStorage` or `DamagedLogs` returns the replica to service."""
        partition = self.online.get(topic_partition)
        if partition is not None:
            self.emit(StateChangeKind.BECAME_OFFLINE, partition)
            self.drop(topic_partition)
            partition.retire()
        self.offline[topic_partition] = None

    def end_offline(self, topic_partition: TopicPartition) -> None:
        """Let a partition that may be Offline be hosted again."""
        self.offline.pop(topic_partition, None)

    def end_topic_roles(self, topics: Iterable[str]) -> None:
        """Reset the traffic counters of roles that this broker no longer has for these topics."""
        for topic in dict.fromkeys(topics):
            if topic in self.traffic.topics:
                self.traffic.end_roles(topic, *self.roles(topic))

    def apply_topic_config(self, topic: str, config: LogConfig | None) -> None:
        """Apply a topic's new or changed settings; with None each log keeps its present settings."""
        if config is not None:
            self.quotas.apply_topic_config(topic, config)
        for partition in self.of_topic(topic).values():
            partition.settings_are_read = True
            if partition.log is not None:
                if config is not None:
                    partition.log.config = config
                if partition.is_leader:
                    partition.advance_high_watermark()
                    self.record_change(partition, PartitionChange.ROLE)
        self.deliver_changes()

    def _forget_settings(self, topic: str) -> None:
        self.topic_configs.forget(topic)
        self.quotas.forget(topic)

    # For partitions

    def log_start_moved(self, log: PartitionLog) -> None:
        """Delete whole segments below the log start; their files are deleted after ``file.delete.delay.ms``."""
        self.log_starts_moved = True
        removed = log.remove_segments_below_start()
        if removed:
            self.scheduler.call_later(
                log.config.file_delete_delay_ms, lambda: None if self.stopped else log.remove_files(removed)
            )

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
        replica: int | None = None,
    ) -> None:
        """Record a state change of a partition, with the offsets of its replicas; of the own replica by default."""
        self._on_state_change(
            StateChange(
                who=f"broker-{self.broker_id}",
                wall_ms=self.scheduler.wall_ms(),
                kind=kind,
                topic_partition=partition.topic_partition,
                topic_id=partition.topic_id,
                replica=self.broker_id if replica is None else replica,
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
                if session.waiting is not None:  # the check of the fetch that waits, a `DelayedFetch` of this session
                    session.waiting()
            for partition, bits in changes.items():
                topic_partition = partition.topic_partition
                if bits & (PartitionChange.HIGH_WATERMARK | PartitionChange.ROLE):
                    self.waiting_produces.check_and_complete(topic_partition)
                self.waiting_fetches.check_and_complete(topic_partition)
                if bits & PartitionChange.ROLE:
                    self.waiting_for_proofs.check_and_complete(topic_partition)
                if bits & (PartitionChange.LOG_START | PartitionChange.LOW_WATERMARK | PartitionChange.ROLE):
                    self.waiting_deletes.check_and_complete(topic_partition)
