"""Move replicas out of service, and return them.

Source: docs/protocol/controller.md#elect-before-isr-removal; Kafka 2.8 KafkaController.onReplicasBecomeOffline.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, PartitionState, Replica, ReplicaState
from paceline.controller.reassignment.reassignment import Reassignments
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.replica_state_machine import ReplicaStateMachine
from paceline.controller.topics.topic_deletion import TopicDeletionManager
from paceline.coordination.flow import Flow
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class ReplicaAvailability:
    """Takes replicas out of service, and continues the work that waited for them when they return."""

    context: ControllerContext
    batch: RequestBatch
    partitions: PartitionStateMachine
    replicas: ReplicaStateMachine
    deletion: TopicDeletionManager
    reassignments: Reassignments

    def on_replicas_become_offline(self, replicas: Sequence[Replica], fence: bool = False) -> Flow[None]:
        """Elect leaders, then remove the replicas from the ISRs; the reverse order costs another write per partition.

        With ``fence`` each partition gets a new leader epoch even if its leader and ISR do not change.
        """
        context = self.context
        told_before = context.metadata_sequence
        for_deletion = [r for r in replicas if context.is_queued_for_deletion(r.topic_partition.topic)]
        others = [r for r in replicas if not context.is_queued_for_deletion(r.topic_partition.topic)]
        leaderless = context.partitions_with_offline_leader()
        yield from self.partitions.handle_state_changes(leaderless, PartitionState.OFFLINE)
        yield from self.partitions.trigger_online()
        yield from self.replicas.handle_state_changes(others, ReplicaState.OFFLINE, fence)
        if for_deletion:
            yield from self.deletion.fail_replicas(for_deletion)
        if not leaderless or context.metadata_sequence == told_before:
            # Partitions that had and have no leader cause no request, so send the list of live brokers separately.
            self.batch.send_update_metadata(context.brokers, ())

    def on_replicas_come_back(self, topic_partitions: Sequence[TopicPartition]) -> Flow[None]:
        """Return rebuilt replicas to service: let leaders add them to the ISR, and elect them where there is no leader.

        In Kafka such replicas stay offline until their broker restarts; in Paceline a running broker rebuilds damaged
        logs.
        """
        self.batch.send_update_metadata(self.context.brokers, topic_partitions)
        yield from self.partitions.trigger_online()
        yield from self.deletion.resume_topics({tp.topic for tp in topic_partitions})

    def on_brokers_started(self, broker_ids: Collection[int]) -> Flow[None]:
        """Move the replicas of brokers that have registered online, and resume the work that waited for them."""
        yield from self.replicas.handle_state_changes(self.context.replicas_on(broker_ids), ReplicaState.ONLINE)
        yield from self.on_brokers_return(broker_ids)

    def on_brokers_return(self, broker_ids: Collection[int]) -> Flow[None]:
        """Resume the elections, reassignments and deletions that waited for these brokers."""
        returned = set(broker_ids)
        yield from self.partitions.trigger_online()
        yield from self.reassignments.resume_reassignments(
            lambda _, assignment: bool(returned.intersection(assignment.target))
        )
        yield from self.deletion.resume_topics({r.topic_partition.topic for r in self.context.replicas_on(broker_ids)})
