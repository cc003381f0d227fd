"""In-memory cluster state of the active controller. Only the controller's actor accesses it, so there are no locks.

Source: docs/protocol/controller.md#controller-context; Kafka 2.8 ControllerContext.scala.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final, NamedTuple

from paceline.coordination.isr_history import IsrHistory, history_of
from paceline.coordination.znodes.json_codec import JsonValue
from paceline.model.assignment import ReplicaAssignment
from paceline.model.control import ControllerStamp, LiveBroker
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.scheduler import Cancellable

UNASSIGNED: Final = ReplicaAssignment(())
"""Assignment of a partition that does not exist."""


class PartitionState(Enum):
    """States of a partition; docs/protocol/controller.md#partition-states."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class ReplicaState(Enum):
    """States of a replica; docs/protocol/controller.md#replica-states."""

    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"
    NON_EXISTENT = "NonExistentReplica"


class Replica(NamedTuple):
    """One replica: a partition on a broker."""

    topic_partition: TopicPartition
    broker_id: int


@dataclass(slots=True)
class ControllerContext:
    """The cluster state of the active controller; empty while the controller is not active."""

    epoch: int = 0
    epoch_zk_version: int = -1
    """Version of ``/controller_epoch`` after this controller's election: the fence of every write."""
    brokers: dict[int, LiveBroker] = field(default_factory=dict)
    """All registered brokers, including brokers that are shutting down."""
    shutting_down: dict[int, int] = field(default_factory=dict)
    """Registered brokers with a controlled shutdown, with the time of its latest request in ms."""
    without_lease: set[int] = field(default_factory=set)
    """Registered brokers whose lease has expired; they are treated like brokers that are shutting down."""
    unreached: dict[int, int] = field(default_factory=dict)
    """Brokers that most followers cannot fetch from, with the time of the latest report; they lead as a last resort."""
    topics: dict[str, dict[int, ReplicaAssignment]] = field(default_factory=dict)
    """Assignment by topic and partition index."""
    unlisted_topics: list[str] = field(default_factory=list)
    """Topics written since the list of topics was last read, so that requests for colliding names are refused."""
    topic_ids: dict[str, str | None] = field(default_factory=dict)
    log_topic_ids: dict[Replica, str | None] = field(default_factory=dict)
    """Topic ids of logs, reported by brokers, for topics without an id in ZooKeeper."""
    leadership: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    """No entry: never elected."""
    state_extras: dict[TopicPartition, Mapping[str, JsonValue]] = field(default_factory=dict)
    """Keys of state nodes outside Kafka's schema; they are written back unchanged."""
    seen_in_event: set[TopicPartition] = field(default_factory=set)
    """Partitions whose leadership was read or written during the running event, so that the cache is up to date."""
    wrote_in_event: bool = False
    """Whether the running event has written to ZooKeeper; its request must then not be sent to the next controller."""
    changed: dict[TopicPartition, None] = field(default_factory=dict)
    """Partitions whose cached leadership was read, written or removed since `take_changes`."""
    dropped_topics: dict[str, None] = field(default_factory=dict)
    """Topics forgotten since `take_changes`."""
    being_reassigned: set[TopicPartition] = field(default_factory=set)
    metadata_sequence: int = 0
    """Number of the latest UpdateMetadata; rises during the whole life of the process, across controller epochs."""
    halted_moves: set[TopicPartition] = field(default_factory=set)
    """Partitions whose reassignment could not be completed and is retried after a pause."""
    reassignment_node_czxid: int = 0
    """Transaction that created the ``/admin/reassign_partitions`` that was read last."""
    partition_states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    replica_states: dict[Replica, ReplicaState] = field(default_factory=dict)
    on_offline_dirs: dict[int, set[TopicPartition]] = field(default_factory=dict)
    """Partitions that a broker reported with a storage error; no entry for brokers without errors."""
    config_changes_seen: dict[str, int] = field(default_factory=dict)
    """Processed notifications under ``/config/changes``, with the time of their first processing in ms."""
    config_changes_retry: Cancellable | None = None
    """Timer of the next attempt to handle notifications."""
    removals: dict[int, str] = field(default_factory=dict)
    """Brokers whose dynamic setting `broker.removal` is set, with its value; no new replica is placed on them."""
    deletion_queued: set[str] = field(default_factory=set)
    deletion_started: set[str] = field(default_factory=set)
    deletion_ineligible: set[str] = field(default_factory=set)

    # brokers

    def is_live(self, broker_id: int) -> bool:
        """Whether the broker is registered, not shutting down, and has a lease."""
        return broker_id in self.brokers and broker_id not in self.retiring

    def live_broker_ids(self) -> list[int]:
        """Registered brokers that are not shutting down and have a lease, sorted by id."""
        retiring = self.retiring
        return sorted(broker_id for broker_id in self.brokers if broker_id not in retiring)

    def placeable_broker_ids(self) -> list[int]:
        """Live brokers that are not being removed from the cluster, sorted by id."""
        return [broker_id for broker_id in self.live_broker_ids() if broker_id not in self.removals]

    @property
    def retiring(self) -> Collection[int]:
        """Registered brokers that must not lead: those that are shutting down or have no lease."""
        return self.shutting_down.keys() | self.without_lease if self.without_lease else self.shutting_down

    def registered_broker_ids(self) -> list[int]:
        """Registered brokers, including those that are shutting down, sorted by id."""
        return sorted(self.brokers)

    def is_replica_online(
        self, broker_id: int, topic_partition: TopicPartition, include_shutting_down: bool = False
    ) -> bool:
        """Whether the replica's broker is live and its log directory has not failed."""
        if broker_id not in self.brokers:
            return False
        if not include_shutting_down and (broker_id in self.shutting_down or broker_id in self.without_lease):
            return False
        return topic_partition not in self.on_offline_dirs.get(broker_id, ())

    def online_replicas(
        self, topic_partition: TopicPartition, replicas: Iterable[int], include_shutting_down: bool = False
    ) -> tuple[int, ...]:
        """Return the online replicas among ``replicas``, in their order."""
        if not (self.shutting_down or self.without_lease or self.on_offline_dirs):
            brokers = self.brokers  # Only registrations count here, as during a failover.
            return tuple([r for r in replicas if r in brokers])
        return tuple(r for r in replicas if self.is_replica_online(r, topic_partition, include_shutting_down))

    def reached_first(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """Return the replicas in their order, but those on unreached brokers last."""
        return tuple(sorted(replicas, key=self.unreached.__contains__)) if self.unreached else replicas

    def set_on_offline_dirs(self, broker_id: int, topic_partitions: set[TopicPartition]) -> None:
        """Store which of a broker's replicas are on failed directories."""
        if topic_partitions:
            self.on_offline_dirs[broker_id] = topic_partitions
        else:
            self.on_offline_dirs.pop(broker_id, None)

    def has_asked(self, broker_id: int, stamp: ControllerStamp) -> bool:
        """Whether a request with this stamp was sent in this controller epoch and to the current registration.

        The caller must ignore responses to other requests: their work has been started again since then.
        """
        broker = self.brokers.get(broker_id)
        return broker is not None and (broker.broker_epoch, self.epoch) == (stamp.broker_epoch, stamp.controller_epoch)

    # topics and partitions

    def assignment(self, topic_partition: TopicPartition) -> ReplicaAssignment:
        """Return the full assignment; an assignment without replicas for an unknown partition."""
        topic, partition = topic_partition
        assignments = self.topics.get(topic)
        return UNASSIGNED if assignments is None else assignments.get(partition, UNASSIGNED)

    def set_assignment(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        """Store an assignment."""
        self.topics.setdefault(topic_partition.topic, {})[topic_partition.partition] = assignment

    def knows(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition exists."""
        return topic_partition.partition in self.topics.get(topic_partition.topic, {})

    def partitions(self) -> Iterator[TopicPartition]:
        """Return all partitions; topics are in the order in which they became known."""
        for topic, assignments in self.topics.items():
            for partition in assignments:
                yield TopicPartition(topic, partition)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """The partitions of one topic."""
        return [TopicPartition(topic, partition) for partition in self.topics.get(topic, {})]

    def replicas_of(self, topic: str) -> list[Replica]:
        """Every replica of one topic."""
        return [
            Replica(TopicPartition(topic, partition), broker_id)
            for partition, assignment in self.topics.get(topic, {}).items()
            for broker_id in assignment.replicas
        ]

    def replicas(self) -> Iterator[Replica]:
        """Every replica of every partition."""
        for topic_partition in self.partitions():
            for broker_id in self.assignment(topic_partition).replicas:
                yield Replica(topic_partition, broker_id)

    def replicas_on(self, broker_ids: Iterable[int]) -> list[Replica]:
        """Every replica assigned to one of the brokers."""
        wanted = set(broker_ids)
        found = []
        for topic, assignments in self.topics.items():
            for partition, assignment in assignments.items():
                hosts = [broker_id for broker_id in assignment.replicas if broker_id in wanted]
                if hosts:
                    topic_partition = TopicPartition(topic, partition)
                    found.extend([Replica(topic_partition, broker_id) for broker_id in hosts])
        return found

    def drop_topic(self, topic: str) -> None:
        """Forget a topic and all its state."""
        self.dropped_topics[topic] = None
        for partition, assignment in self.topics.pop(topic, {}).items():
            topic_partition = TopicPartition(topic, partition)
            self.leadership.pop(topic_partition, None)
            self.changed.pop(topic_partition, None)
            self.state_extras.pop(topic_partition, None)
            self.partition_states.pop(topic_partition, None)
            self.being_reassigned.discard(topic_partition)
            self.halted_moves.discard(topic_partition)
            for broker_id in assignment.replicas:
                self.replica_states.pop(Replica(topic_partition, broker_id), None)
                self.log_topic_ids.pop(Replica(topic_partition, broker_id), None)
        for broker_id, lost in list(self.on_offline_dirs.items()):
            self.set_on_offline_dirs(broker_id, {tp for tp in lost if tp.topic != topic})
        self.topic_ids.pop(topic, None)
        self.deletion_queued.discard(topic)
        self.deletion_started.discard(topic)
        self.deletion_ineligible.discard(topic)

    def offline_replicas(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        """Return assigned replicas that are not online, including replicas on brokers that are shutting down."""
        replicas = self.assignment(topic_partition).replicas
        if not (self.shutting_down or self.without_lease or self.on_offline_dirs):
            brokers = self.brokers
            return tuple([r for r in replicas if r not in brokers])
        online = self.online_replicas(topic_partition, replicas)
        return () if len(online) == len(replicas) else tuple([r for r in replicas if r not in online])

    def partitions_with_offline_leader(self) -> list[TopicPartition]:
        """Return partitions whose leader is known but not online, without topics queued for deletion."""
        return [
            topic_partition
            for topic_partition, known in self.leadership.items()
            if topic_partition.topic not in self.deletion_queued
            and not self.is_replica_online(known.leader, topic_partition)
        ]

    # states

    def partition_state(self, topic_partition: TopicPartition) -> PartitionState:
        """Return the state of a partition; NonExistent for an unknown partition."""
        return self.partition_states.get(topic_partition, PartitionState.NON_EXISTENT)

    def replica_state(self, replica: Replica) -> ReplicaState:
        """Return the state of a replica; NonExistent for an unknown replica."""
        return self.replica_states.get(replica, ReplicaState.NON_EXISTENT)

    def replicas_in_state(self, topic: str, state: ReplicaState) -> list[Replica]:
        """Return the replicas of a topic in ``state``."""
        return [replica for replica in self.replicas_of(topic) if self.replica_state(replica) is state]

    # deletion

    def is_queued_for_deletion(self, topic: str) -> bool:
        """Whether a deletion marker for the topic was read."""
        return topic in self.deletion_queued

    def isr_history(self, topic_partition: TopicPartition) -> IsrHistory:
        """Return former ISR members of the partition, and members that may lack records."""
        return history_of(self.state_extras.get(topic_partition))

    def remember(self, topic_partition: TopicPartition, state: LeaderAndIsr) -> None:
        """Cache leadership that the running event has read or written."""
        self.leadership[topic_partition] = state
        self.seen_in_event.add(topic_partition)
        self.changed[topic_partition] = None

    def forget_leadership(self, topic_partition: TopicPartition) -> None:
        """Remove the cached leadership, because the state node was deleted."""
        self.leadership.pop(topic_partition, None)
        self.changed[topic_partition] = None

    def take_changes(self) -> tuple[dict[TopicPartition, None], tuple[str, ...]]:
        """Return the partitions changed and the topics forgotten since the last call, and clear both lists."""
        changed, dropped = self.changed, tuple(self.dropped_topics)
        self.changed, self.dropped_topics = {}, {}
        return changed, dropped

    def clear(self) -> None:
        """Forget the cluster state: the controller resigned."""
        self.epoch = 0
        self.epoch_zk_version = -1
        self.reassignment_node_czxid = 0
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, dict | set | list):
                value.clear()
