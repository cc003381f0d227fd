"""Move leaders away from a broker that is about to stop.

Source: docs/protocol/controller.md#controlled-shutdown; Kafka 2.8 KafkaController.doControlledShutdown.
"""

import logging

from paceline.controller.components import ControllerComponents
from paceline.controller.context import PartitionState, Replica, ReplicaState
from paceline.controller.election.leader_election import ElectionStrategy
from paceline.controller.state_change_log import Cause
from paceline.coordination.flow import Flow
from paceline.model.control import ControlledShutdownRequest, ControlledShutdownResponse
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)


def on_controlled_shutdown(
    components: ControllerComponents, request: ControlledShutdownRequest
) -> Flow[ControlledShutdownResponse]:
    """Move leaders away from the broker, remove it from ISRs as follower, and return the partitions it still leads."""
    context = components.context
    broker_id = request.broker_id
    broker = context.brokers.get(broker_id)
    if broker is None:
        return ControlledShutdownResponse(ErrorCode.BROKER_NOT_AVAILABLE)
    if request.broker_epoch < broker.broker_epoch:
        return ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH)
    LOG.info("controlled shutdown of a broker begins: broker=%d", broker_id)
    components.log.because(Cause.SHUTDOWN, "the broker requested a controlled shutdown")
    context.shutting_down[broker_id] = components.scheduler.now_ms()
    replicated = [
        topic_partition
        for topic_partition in context.leadership
        if broker_id in context.assignment(topic_partition).replicas and _counts(components, topic_partition)
    ]
    led = [tp for tp in replicated if context.leadership[tp].leader == broker_id]
    followed = [tp for tp in replicated if context.leadership[tp].leader != broker_id]
    yield from components.partitions.handle_state_changes(
        led, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN
    )
    components.batch.new_batch()
    for topic_partition in followed:
        components.batch.add_stop_replica((broker_id,), topic_partition, delete=False)
    components.batch.send()
    yield from components.replicas.handle_state_changes(
        [Replica(topic_partition, broker_id) for topic_partition in followed], ReplicaState.OFFLINE
    )
    remaining = [
        topic_partition
        for topic_partition, known in context.leadership.items()
        if known.leader == broker_id and _counts(components, topic_partition)
    ]
    return ControlledShutdownResponse(ErrorCode.NONE, tuple(sorted(remaining)))


def _counts(components: ControllerComponents, topic_partition: TopicPartition) -> bool:
    """Whether the partition can delay a shutdown: it has another replica, and its topic is not being deleted."""
    several = len(components.context.assignment(topic_partition).replicas) > 1
    return several and not components.context.is_queued_for_deletion(topic_partition.topic)
