"""Move leaders away from a broker that is about to stop.

Source: docs/protocol/controller.md#controlled-shutdown; Kafka 2.8 KafkaController.doControlledShutdown.
"""

import logging
from dataclasses import dataclass

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, PartitionState, Replica, ReplicaState
from paceline.controller.state.leader_election import ElectionStrategy
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.replica_state_machine import ReplicaStateMachine
from paceline.controller.state_change_log import Cause, StateChangeLog
from paceline.coordination.flow import Flow
from paceline.model.control import ControlledShutdownRequest, ControlledShutdownResponse
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.scheduler import Scheduler

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControlledShutdowns:
    """Serves ControlledShutdown."""

    context: ControllerContext
    scheduler: Scheduler
    log: StateChangeLog
    batch: RequestBatch
    partitions: PartitionStateMachine
    replicas: ReplicaStateMachine

    def on_controlled_shutdown(self, request: ControlledShutdownRequest) -> Flow[ControlledShutdownResponse]:
        """Move leaders away from the broker, remove it from ISRs, and return the partitions it still leads."""
        context = self.context
        broker_id = request.broker_id
        broker = context.brokers.get(broker_id)
        if broker is None:
            return ControlledShutdownResponse(ErrorCode.BROKER_NOT_AVAILABLE)
        if request.broker_epoch < broker.broker_epoch:
            return ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH)
        LOG.info("controlled shutdown of a broker begins: broker=%d", broker_id)
        self.log.because(Cause.SHUTDOWN, "the broker requested a controlled shutdown")
        context.shutting_down[broker_id] = self.scheduler.now_ms()
        replicated = [
            topic_partition
            for topic_partition in context.leadership
            if broker_id in context.assignment(topic_partition).replicas and _counts(self.context, topic_partition)
        ]
        led = [tp for tp in replicated if context.leadership[tp].leader == broker_id]
        followed = [tp for tp in replicated if context.leadership[tp].leader != broker_id]
        yield from self.partitions.handle_state_changes(
            led, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN
        )
        self.batch.new_batch()
        for topic_partition in followed:
            self.batch.add_stop_replica((broker_id,), topic_partition, delete=False)
        self.batch.send()
        yield from self.replicas.handle_state_changes(
            [Replica(topic_partition, broker_id) for topic_partition in followed], ReplicaState.OFFLINE
        )
        remaining = [
            topic_partition
            for topic_partition, known in context.leadership.items()
            if known.leader == broker_id and _counts(self.context, topic_partition)
        ]
        return ControlledShutdownResponse(ErrorCode.NONE, tuple(sorted(remaining)))


def _counts(context: ControllerContext, topic_partition: TopicPartition) -> bool:
    """Whether the partition can delay a shutdown: it has another replica, and its topic is not being deleted."""
    several = len(context.assignment(topic_partition).replicas) > 1
    return several and not context.is_queued_for_deletion(topic_partition.topic)
