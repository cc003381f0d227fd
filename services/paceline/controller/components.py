"""Put one controller together: each component receives the components it uses, in the order of their dependencies.

Handlers are data classes whose fields are what they use. Only the event handler, which chooses the handler of an event,
and the failover, which starts the components one after another, receive all of them.
"""

import random
from collections.abc import Callable

from paceline.controller.brokers.broker_changes import BrokerChanges
from paceline.controller.brokers.broker_liveness import BrokerLiveness
from paceline.controller.brokers.controlled_shutdown import ControlledShutdowns
from paceline.controller.brokers.isr_notifications import IsrNotifications
from paceline.controller.brokers.leader_and_isr_responses import LeaderAndIsrResponses
from paceline.controller.brokers.lease_changes import LeaseChanges
from paceline.controller.brokers.replica_availability import ReplicaAvailability
from paceline.controller.channel.channel_manager import ChannelManager, OnResponse
from paceline.controller.channel.leader_ack_waiters import LeaderAckWaiters
from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.configs.config_changes import ConfigChanges
from paceline.controller.configs.topic_configs import TopicConfigAdmin
from paceline.controller.context import ControllerContext
from paceline.controller.election.preferred_election import PreferredElections
from paceline.controller.election.unclean_restart import UncleanRestarts
from paceline.controller.events import BrokerLeaseChange, Event, PartitionReassignmentFromNode
from paceline.controller.interfaces import ControlTransport
from paceline.controller.reassignment.reassignment import Reassignments
from paceline.controller.reassignment.reassignment_node import ReassignmentNode
from paceline.controller.reassignment.reassignment_steps import ReassignmentSteps
from paceline.controller.standby.state_publisher import StatePublisher
from paceline.controller.state.election_settings import ElectionSettings
from paceline.controller.state.journal import ControllerJournal
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.replica_state_machine import ReplicaStateMachine
from paceline.controller.state.state_writer import StateWriter
from paceline.controller.state_change_log import StateChangeLog
from paceline.controller.topics.create_delete_topics import TopicRequests
from paceline.controller.topics.create_partitions import PartitionCreation
from paceline.controller.topics.topic_changes import TopicChanges
from paceline.controller.topics.topic_deletion import TopicDeletionManager
from paceline.controller.zk_store import ZkStore
from paceline.model.control import Endpoint
from paceline.model.scheduler import Scheduler
from paceline.model.settings import ControllerConfig
from paceline.model.state_change import StateChange, StateChangeKind


class ControllerComponents:
    """Context, access to ZooKeeper, state machines, channels and event handlers of one controller."""

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
        self._enqueue = enqueue
        context = self.context = ControllerContext()
        store = self.store = ZkStore(context)
        who = f"controller-{config.controller_id}"
        log = self.log = StateChangeLog(who, context, scheduler.wall_ms, state_change_sink)
        self.liveness = BrokerLiveness(
            config, context, scheduler, lambda broker_id: enqueue(BrokerLeaseChange(broker_id))
        )
        self.channels = ChannelManager(
            config, scheduler, transport, on_response, self.liveness.suspicions.not_registered, rng
        )
        self._batches = [RequestBatch(config.controller_id, endpoints, context, self.channels) for _ in range(3)]
        batch, partition_batch, replica_batch = self._batches
        self.batch = batch

        self.journal = ControllerJournal()
        self.publisher = StatePublisher(context, self.journal, scheduler)
        writer = self.writer = StateWriter(config, context, store, self.journal, self.publisher.flush_soon)
        settings = ElectionSettings(store, config.unclean_leader_election_enable, config.min_insync_replicas)
        partitions = self.partitions = PartitionStateMachine(context, writer, partition_batch, settings, log)
        replicas = self.replicas = ReplicaStateMachine(context, writer, replica_batch, log)
        waiters = self.ack_waiters = LeaderAckWaiters(scheduler)
        deletion = self.deletion = TopicDeletionManager(
            config, context, store, partitions, replicas, batch, self._deletion_completed
        )
        self.unclean_restarts = UncleanRestarts(context, writer, partitions, batch)
        self.preferred_elections = PreferredElections(config, context, store, partitions, enqueue)

        self.topic_requests = TopicRequests(config, context, store, waiters, rng)
        self.topic_changes = TopicChanges(context, store, log, rng, waiters, partitions, replicas, deletion)
        self.partition_creation = PartitionCreation(config, context, store, rng, waiters, self.topic_changes)
        self.topic_configs = TopicConfigAdmin(config, context, store)
        self.config_changes = ConfigChanges(context, store, scheduler, log, settings, partitions, enqueue)

        node = ReassignmentNode(store, enqueue)
        steps = ReassignmentSteps(context, store, writer, log, batch, partitions, replicas, node, scheduler, enqueue)
        self.reassignments = Reassignments(context, store, node, steps, self.topic_changes)

        availability = ReplicaAvailability(context, batch, partitions, replicas, deletion, self.reassignments)
        self.broker_changes = BrokerChanges(
            context, store, self.channels, log, batch, self.liveness, self.unclean_restarts, availability
        )
        self.leader_and_isr_responses = LeaderAndIsrResponses(context, store, batch, waiters, availability)
        self.lease_changes = LeaseChanges(
            context, log, self.liveness, batch, settings, partitions, replicas, availability
        )
        self.controlled_shutdowns = ControlledShutdowns(context, scheduler, log, batch, partitions, replicas)
        self.isr_notifications = IsrNotifications(context, store, writer, log, batch, partitions, self.reassignments)

    def _deletion_completed(self, topic: str, was_being_reassigned: bool) -> None:
        self.log.note(StateChangeKind.TOPIC_DELETED, topic=topic)
        self.ack_waiters.topic_deleted(topic)
        if was_being_reassigned:
            # A reassignment in the admin node that can never complete would block later reassignments (KAFKA-9478).
            self._enqueue(PartitionReassignmentFromNode())

    def reset(self) -> None:
        """Forget the cluster state and drop unsent requests: the controller resigned."""
        self.publisher.reset()
        self.liveness.clear(tuple(self.context.brokers))
        self.channels.close()
        for batch in self._batches:
            batch.clear()
        self.context.clear()
        self.ack_waiters.resigned()
