"""Learn from answers to LeaderAndIsr which leaders have taken over, and which log directories have failed.

Source: docs/protocol/controller.md#failed-log-directories; docs/protocol/controller.md#stale-epoch-in-an-answer; Kafka
2.8 KafkaController.processLeaderAndIsrResponseReceived.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.controller.brokers.replica_availability import ReplicaAvailability
from paceline.controller.channel.leader_ack_waiters import LeaderAckWaiters
from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, Replica
from paceline.controller.events import LeaderAndIsrResponseReceived
from paceline.controller.topics.dropped_topic_ids import note_log_topic_ids
from paceline.controller.zk_store import ZkStore
from paceline.coordination.flow import Flow
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponses:
    """Handles the answers of brokers to LeaderAndIsr."""

    context: ControllerContext
    store: ZkStore
    batch: RequestBatch
    ack_waiters: LeaderAckWaiters
    availability: ReplicaAvailability

    def on_leader_and_isr_response(self, event: LeaderAndIsrResponseReceived) -> Flow[None]:
        """Record which leaders have applied their leadership, and which replicas are on failed log directories.

        Move newly failed replicas offline, and return recovered replicas to service.
        """
        context = self.context
        if not context.has_asked(event.broker_id, event.request.stamp):
            return
        if event.response.error is not ErrorCode.NONE:
            LOG.error("LeaderAndIsr refused: broker=%d error=%s", event.broker_id, event.response.error.name)
            return
        errors = event.response.partition_errors
        for partition in event.request.partitions:
            # If an answer was lost, the broker refuses the retry with a stale epoch, because it has applied the
            # request: docs/protocol/controller.md#stale-epoch-in-an-answer.
            taken = errors.get(partition.topic_partition) in (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)
            if taken and partition.leader == event.broker_id:
                self.ack_waiters.acknowledged(partition.topic_partition, partition.leader_epoch)
        yield from note_log_topic_ids(self.context, self.store, self.batch, event)
        before = context.on_offline_dirs.get(event.broker_id, set())
        # A failed replica answers KAFKA_STORAGE_ERROR even to a retry, so a stale epoch shows that a replica is
        # healthy.
        healthy = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)
        # While a topic is being deleted, a broker that has deleted other replicas of it refuses its id for the rest.
        deleting = {tp for tp, error in errors.items() if error is ErrorCode.INCONSISTENT_TOPIC_ID}
        deleting = {tp for tp in deleting if context.is_queued_for_deletion(tp.topic)}
        online = {tp for tp, error in errors.items() if error in healthy} | deleting
        failed = [tp for tp, error in errors.items() if error is ErrorCode.KAFKA_STORAGE_ERROR and context.knows(tp)]
        now = (before - online) | set(failed)
        context.set_on_offline_dirs(event.broker_id, now)
        newly_offline = [tp for tp in failed if tp not in before]
        if newly_offline:
            LOG.warning("log directories failed: broker=%d replicas=%d", event.broker_id, len(newly_offline))
            lost = [Replica(tp, event.broker_id) for tp in newly_offline]
            yield from self.availability.on_replicas_become_offline(lost, fence=True)
        come_back = [tp for tp in errors if tp in before and tp in online and context.knows(tp)]
        if come_back:
            self._resend_elections_since(event, come_back)
            yield from self.availability.on_replicas_come_back(come_back)

    def _resend_elections_since(self, event: LeaderAndIsrResponseReceived, come_back: Sequence[TopicPartition]) -> None:
        """Resend LeaderAndIsr for elections that happened while this replica was considered offline."""
        context = self.context
        answered = {partition.topic_partition: partition.leader_epoch for partition in event.request.partitions}
        self.batch.new_batch()
        for topic_partition in come_back:
            known, assignment = context.leadership.get(topic_partition), context.assignment(topic_partition)
            if known is None or known.leader_epoch <= answered.get(topic_partition, known.leader_epoch):
                continue
            if event.broker_id in assignment.replicas and not context.is_queued_for_deletion(topic_partition.topic):
                self.batch.add_leader_and_isr((event.broker_id,), topic_partition, known, assignment, is_new=False)
        self.batch.send()
