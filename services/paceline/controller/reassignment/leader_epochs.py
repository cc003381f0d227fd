"""Raise the leader epoch of a partition that is being reassigned, so that ISR writes that are under way fail."""

from dataclasses import dataclass

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.state.state_writer import StateWrite, StateWriter
from paceline.coordination.flow import Flow
from paceline.coordination.interface import ZkCode
from paceline.model.assignment import ReplicaAssignment
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """Raises leader epochs and sends them to the replicas."""

    context: ControllerContext
    writer: StateWriter
    batch: RequestBatch

    def bump(self, topic_partition: TopicPartition, assignment: ReplicaAssignment, raised: bool) -> Flow[None]:
        """Raise the leader epoch without other changes and send it to every replica; added replicas are marked new.

        If this reassignment has already ``raised`` the epoch, for all of its replicas, the epoch is sent unchanged.

        Source: docs/protocol/controller.md#new-replica-flag.
        """
        known = self.context.leadership.get(topic_partition)
        state = known if raised and known is not None else (yield from self.raise_epoch(topic_partition))
        self.batch.new_batch()
        self.batch.add_leader_and_isr(assignment.origin, topic_partition, state, assignment, is_new=False)
        self.batch.add_leader_and_isr(assignment.adding, topic_partition, state, assignment, is_new=True)
        self.batch.send()

    def raise_epoch(self, topic_partition: TopicPartition) -> Flow[LeaderAndIsr]:
        """Write the state with the next leader epoch, and return it."""
        context = self.context
        while True:
            known = context.leadership.get(topic_partition)
            if known is None or known.controller_epoch > context.epoch:
                raise UnexpectedResponseError(
                    ZkCode.NO_NODE, f"raise the leader epoch of {topic_partition} from {known}"
                )
            raised = known.with_leader(known.leader, known.isr, context.epoch)
            outcome = yield from self.writer.commit([StateWrite(topic_partition, raised)], 1)
            written = outcome.written.get(topic_partition)
            if written is not None:
                context.remember(topic_partition, written)
                return written
            if topic_partition in outcome.refused:
                code = outcome.refused[topic_partition]
                raise UnexpectedResponseError(code, f"raise the leader epoch of {topic_partition}")
            found = outcome.conflicted[topic_partition]
            if found is None:
                context.forget_leadership(topic_partition)
            else:
                context.remember(topic_partition, found)
