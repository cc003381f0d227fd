"""The components of one controller, constructed together and passed to every handler."""

import random
from collections.abc import Callable, Iterable, Sequence

from paceline.controller.brokers.broker_leases import BrokerLeases
from paceline.controller.brokers.broker_suspicions import BrokerSuspicions, Evidence
from paceline.controller.brokers.unreached_leaders import UnreachedLeaders
from paceline.controller.channel.channel_manager import ChannelManager, OnResponse
from paceline.controller.channel.leader_ack_waiters import LeaderAckWaiters
from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext
from paceline.controller.election.election_settings import ElectionSettings
from paceline.controller.events import BrokerLeaseChange, Event, PartitionReassignmentFromNode
from paceline.controller.interfaces import ControlTransport
from paceline.controller.standby.journal import ControllerJournal
from paceline.controller.standby.state_publisher import StatePublisher
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.replica_state_machine import ReplicaStateMachine
from paceline.controller.state.state_writer import StateWriter
from paceline.controller.state_change_log import StateChangeLog
from paceline.controller.topics.create_delete_topics import TopicRequests
from paceline.controller.topics.topic_deletion import TopicDeletionManager
from paceline.controller.zk_store import ZkStore
from paceline.model.control import Endpoint
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Scheduler
from paceline.model.settings import ControllerConfig
from paceline.model.state_change import StateChange, StateChangeKind


class ControllerComponents:
    """Context, storage, state machines, channels and the waiting requests of one controller."""

    def __init__(
        self,
        config: ControllerConfig,
        endpoints: tuple[Endpoint, ...],
        scheduler: Scheduler,
        transport: ControlTransport,
        rng: random.Random,
        state_change_sink: Callable[[StateChange], None],
        enqueue: Callable[[Event], None],
        on_response: OnResponse,
    ) -> None:
        self.config = config
        self.endpoints = endpoints
        self.scheduler = scheduler
        self.rng = rng
        self.enqueue = enqueue
        self.context = ControllerContext()
        self.store = ZkStore(self.context)
        self.channels = ChannelManager(config, scheduler, transport, on_response, self._not_registered, rng)
        self.log = StateChangeLog(
            f"controller-{config.controller_id}", self.context, scheduler.wall_ms, state_change_sink
        )
        self.journal = ControllerJournal()
        self.publisher = StatePublisher(self.context, self.journal, scheduler)
        self.writer = StateWriter(config, self.context, self.store, self.journal, self.publisher.flush_soon)
        self.election_settings = ElectionSettings(
            self.store, config.unclean_leader_election_enable, config.min_insync_replicas
        )
        self._batches = [RequestBatch(config.controller_id, endpoints, self.context, self.channels) for _ in range(3)]
        self.batch, partition_batch, replica_batch = self._batches
        self.partitions = PartitionStateMachine(
            self.context, self.store, self.writer, partition_batch, self.election_settings, self.log
        )
        self.replicas = ReplicaStateMachine(self.context, self.store, self.writer, replica_batch, self.log)
        self.ack_waiters = LeaderAckWaiters(scheduler)
        self.leases = BrokerLeases(
            config.controller_broker_lease_ms, scheduler, lambda broker_id: enqueue(BrokerLeaseChange(broker_id))
        )
        self.suspicions = BrokerSuspicions(
            # Without leases brokers send no heartbeats, and only a heartbeat disproves a suspicion.
            config.broker_suspect_ms > 0 and config.controller_broker_lease_ms > 0,
            self.context,
            self.leases,
            scheduler,
        )
        self.unreached = UnreachedLeaders(self.context, lambda one: enqueue(BrokerLeaseChange(one)))
        self.topic_requests = TopicRequests(config, self.context, self.store, self.ack_waiters, rng)
        self.deletion = TopicDeletionManager(
            config,
            self.context,
            self.store,
            self.partitions,
            self.replicas,
            lambda partitions: self.send_update_metadata(self.context.brokers, partitions),
            self._deletion_completed,
        )

    def _not_registered(self, broker_id: int, broker_epoch: int, has_answered: bool) -> None:
        # Before its first answer this may be the registered process, which has not read its registration yet.
        evidence = Evidence.NOT_REGISTERED if has_answered else Evidence.NOT_REGISTERED_UNCONNECTED
        self.suspicions.found(broker_id, broker_epoch, evidence)

    def _deletion_completed(self, topic: str, was_being_reassigned: bool) -> None:
        self.log.note(StateChangeKind.TOPIC_DELETED, topic=topic)
        self.ack_waiters.topic_deleted(topic)
        if was_being_reassigned:
            # A reassignment in the admin node that can never complete would block later reassignments (KAFKA-9478).
            self.enqueue(PartitionReassignmentFromNode())

    def send_update_metadata(
        self, broker_ids: Iterable[int], topic_partitions: Sequence[TopicPartition], initial: bool = False
    ) -> None:
        """Send metadata, at least the live brokers, to brokers; ``initial`` marks the first metadata they get."""
        self.batch.new_batch()
        self.batch.add_update_metadata(broker_ids, topic_partitions)
        if initial:
            self.batch.mark_initial()
        self.batch.send()

    def reset(self) -> None:
        """Forget the cluster state and drop unsent requests: the controller resigned."""
        self.publisher.reset()
        self.leases.clear()
        self.suspicions.clear()
        self.unreached.forget(tuple(self.context.brokers))
        self.channels.close()
        for batch in self._batches:
            batch.clear()
        self.context.clear()
        self.topic_requests.topics_listed()
        self.ack_waiters.resigned()
