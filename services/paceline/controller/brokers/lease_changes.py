"""Move leaders away when a broker's lease runs out, and let the broker lead again after its next heartbeat.

Source: docs/protocol/controller.md#broker-lease; docs/decisions/0007-broker-lease.md.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.controller.brokers.broker_liveness import BrokerLiveness
from paceline.controller.brokers.replica_availability import ReplicaAvailability
from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, PartitionState, ReplicaState
from paceline.controller.events import ShutdownDisproved
from paceline.controller.state.election_settings import ElectionSettings
from paceline.controller.state.leader_election import ElectionStrategy
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.replica_state_machine import ReplicaStateMachine
from paceline.controller.state_change_log import Cause, StateChangeLog
from paceline.coordination.flow import Flow
from paceline.model.identifiers import NO_LEADER, TopicPartition
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)

MIN_REMAINING_ISR = 2
"""Minimum ISR size after a suspected broker is removed, unless ``min.insync.replicas`` is larger."""


@dataclass(frozen=True, slots=True)
class LeaseChanges:
    """Applies leases that expired or were renewed."""

    context: ControllerContext
    log: StateChangeLog
    liveness: BrokerLiveness
    batch: RequestBatch
    election_settings: ElectionSettings
    partitions: PartitionStateMachine
    replicas: ReplicaStateMachine
    availability: ReplicaAvailability

    def on_lease_change(self, broker_id: int) -> Flow[None]:
        """Apply a broker's present lease state, which may have changed again since the event was queued."""
        context = self.context
        if broker_id in context.unreached:
            self.log.because(Cause.UNREACHABLE, "most of its followers cannot fetch from it")
            LOG.warning("moving leaders off a broker: broker=%d cause=%r", broker_id, self.log.cause)
            self.log.note(StateChangeKind.LEADER_UNREACHABLE, broker_id)
            yield from relieve_silent_leaders(self.context, self.partitions, _hosted(context, broker_id))
        expired = self.liveness.leases.has_expired(broker_id)
        if broker_id not in context.brokers or expired == (broker_id in context.without_lease):
            return
        if expired:
            yield from self._lost(broker_id)
        else:
            LOG.info("heartbeats of broker resumed: broker=%d", broker_id)
            yield from self._regained(broker_id)

    def on_shutdown_disproved(self, event: ShutdownDisproved) -> Flow[None]:
        """End a controlled shutdown that another process requested in the broker's name; the broker continues."""
        context, broker_id = self.context, event.broker_id
        broker = context.brokers.get(broker_id)
        # While the event waited, the broker may have restarted and begun a stop of its own.
        if broker is None or broker.broker_epoch != event.broker_epoch or broker_id not in context.shutting_down:
            return
        del context.shutting_down[broker_id]
        LOG.warning("broker does not stop, ending its controlled shutdown: broker=%d", broker_id)
        yield from self.replicas.handle_state_changes(context.replicas_on([broker_id]), ReplicaState.ONLINE)
        yield from self._regained(broker_id)

    def _lost(self, broker_id: int) -> Flow[None]:
        """Move leaders away from the broker.

        The broker stays registered, receives every request and may continue as follower. A follower that fetches is a
        valid replica even if it does not reach the controller; its leader removes a follower that does not fetch. But
        the broker joins no ISR during that time, because the metadata lists it as offline.
        """
        context = self.context
        suspected = self.liveness.suspicions.is_suspected(broker_id)
        silent_ms = self.liveness.leases.silent_ms(broker_id)
        if suspected:
            self.log.because(Cause.SUSPICION, self.liveness.suspicions.evidence_against(broker_id))
        else:
            self.log.because(Cause.LEASE, "its lease expired without a heartbeat")
        LOG.warning("moving leaders off a broker: broker=%d cause=%r", broker_id, self.log.cause)
        context.without_lease.add(broker_id)
        self.log.note(StateChangeKind.BROKER_SUSPECTED, broker_id, silent_ms=silent_ms)
        led = [
            topic_partition
            for topic_partition in _hosted(context, broker_id)
            if context.leadership[topic_partition].leader == broker_id
            and len(context.assignment(topic_partition).replicas) > 1
        ]
        yield from self.partitions.handle_state_changes(
            led, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN
        )
        if suspected:
            yield from self._leave_isrs(broker_id)
        self.batch.send_update_metadata(context.brokers, _hosted(context, broker_id))

    def _leave_isrs(self, broker_id: int) -> Flow[None]:
        """Remove a suspected follower from ISRs that stay large enough, so that writes do not wait for a dead process.

        At least max(2, ``min.insync.replicas``) members stay, so that a false suspicion does not leave a single copy.
        """
        context = self.context
        followed = [
            topic_partition
            for topic_partition in _hosted(context, broker_id)
            if context.leadership[topic_partition].leader not in (broker_id, NO_LEADER)
            and len(context.assignment(topic_partition).replicas) > MIN_REMAINING_ISR
        ]
        topics = {topic_partition.topic for topic_partition in followed}
        minimum = yield from self.election_settings.current_min_insync_replicas(topics)
        yield from self.replicas.remove_from_isr(
            broker_id,
            {
                topic_partition: max(MIN_REMAINING_ISR, minimum[topic_partition.topic])
                for topic_partition in followed
                if topic_partition.topic in minimum
            },
        )

    def _regained(self, broker_id: int) -> Flow[None]:
        """Let the broker lead again; its channel has kept the requests of the time without a lease."""
        context = self.context
        context.without_lease.discard(broker_id)
        self.batch.send_update_metadata(context.brokers, _hosted(context, broker_id))
        yield from relieve_silent_leaders(self.context, self.partitions, _hosted(context, broker_id))
        yield from self.availability.on_brokers_return([broker_id])


def relieve_silent_leaders(
    context: ControllerContext, partitions: PartitionStateMachine, topic_partitions: Iterable[TopicPartition]
) -> Flow[None]:
    """Move leaders off brokers without a lease or that followers cannot reach, when a better ISR member is online."""
    led = [
        topic_partition
        for topic_partition in topic_partitions
        if (known := context.leadership.get(topic_partition)) is not None
        and (known.leader in context.without_lease or known.leader in context.unreached)
        and (better := context.reached_first(context.online_replicas(topic_partition, known.isr)))
        and (known.leader in context.without_lease or better[0] not in context.unreached)
        and not context.is_queued_for_deletion(topic_partition.topic)
    ]
    yield from partitions.handle_state_changes(led, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN)


def _hosted(context: ControllerContext, broker_id: int) -> list[TopicPartition]:
    return [
        replica.topic_partition
        for replica in context.replicas_on([broker_id])
        if replica.topic_partition in context.leadership
        and not context.is_queued_for_deletion(replica.topic_partition.topic)
    ]
