"""Stop relying on brokers that returned from an unclean restart: the ends of their logs may be lost.

Such a broker is removed from every ISR that has a reliable member. An ISR without a reliable member stays as it is, and
the broker is marked in it. Both are written to ZooKeeper before the broker's new registration receives its first
control request: a broker that has received a request need not report the unclean restart again.

Source: docs/protocol/controller.md#unclean-restart; docs/decisions/0005-unclean-restart.md.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from paceline.controller.channel.request_batch import RequestBatch
from paceline.controller.context import ControllerContext, PartitionState
from paceline.controller.errors import ControllerMovedError, IllegalStateError
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.state_writer import StateWrite, StateWriter
from paceline.coordination.flow import Flow
from paceline.coordination.isr_history import IsrHistory
from paceline.model.identifiers import NO_LEADER, TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr

LOG = logging.getLogger(__name__)


def distrusted_state(
    known: LeaderAndIsr, history: IsrHistory, unclean: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """Return the state that does not rely on the ``unclean`` brokers; None when the present state already does not."""
    isr = tuple(member for member in known.isr if member not in unclean)
    if len(isr) == len(known.isr):
        relied_on = any(member in unclean for member in history.former)
        return known.with_leader(known.leader, known.isr, controller_epoch) if relied_on else None
    if not isr:
        # An ISR is never empty. Members that were marked earlier stay marked.
        if all(member in history.unclean for member in known.isr) and not set(history.former) & set(unclean):
            return None
        isr = known.isr
    leader = NO_LEADER if known.leader in unclean else known.leader
    return known.with_leader(leader, isr, controller_epoch)


@dataclass(frozen=True, slots=True)
class UncleanRestarts:
    """Removes brokers from ISRs, or marks them, after an unclean restart."""

    context: ControllerContext
    writer: StateWriter
    partitions: PartitionStateMachine
    batch: RequestBatch

    def distrust_unclean_brokers(self, broker_ids: Collection[int]) -> Flow[list[TopicPartition]]:
        """Remove or mark brokers of ``broker_ids`` with an unclean restart in all ISRs; return the partitions written.

        Raises:
            ControllerMovedError: the fence failed.
            IllegalStateError: the write failed; the brokers must not receive a request that implies success.
        """
        context = self.context
        unclean = [broker_id for broker_id in sorted(broker_ids) if context.brokers[broker_id].unclean_restart]
        if not unclean:
            return []
        try:
            written = yield from self._write(unclean)
        except ControllerMovedError:
            raise
        except Exception as error:
            raise IllegalStateError(f"the unclean restart of {unclean} could not be written: {error}") from error
        LOG.warning(
            "brokers had an unclean restart, removed from ISRs: brokers=%s partitions=%d", unclean, len(written)
        )
        leaderless = [
            topic_partition
            for topic_partition in written
            if not context.leadership[topic_partition].has_leader
            and context.partition_state(topic_partition) is PartitionState.ONLINE
        ]
        yield from self.partitions.handle_state_changes(leaderless, PartitionState.OFFLINE)
        return written

    def _write(self, unclean: list[int]) -> Flow[list[TopicPartition]]:
        context = self.context
        # A leader may have added such a broker to its ISR since the state was cached.
        yield from self.writer.refresh(_concerned(context, unclean))

        def without_unclean(topic_partition: TopicPartition) -> StateWrite | None:
            known, history = context.leadership[topic_partition], context.isr_history(topic_partition)
            wanted = distrusted_state(known, history, unclean, context.epoch)
            return None if wanted is None else StateWrite(topic_partition, wanted, lost=tuple(unclean))

        return (yield from self.writer.rewrite(_concerned(context, unclean), without_unclean))

    def tell_other_replicas(self, changed: Collection[TopicPartition], apart: Collection[int]) -> None:
        """Send the new states to all replicas but those on the brokers ``apart``, which will receive all their states.

        Skip topics that are being deleted: a request could re-create a deleted replica.
        """
        context = self.context
        self.batch.new_batch()
        for topic_partition in changed:
            if context.is_queued_for_deletion(topic_partition.topic):
                continue
            assignment = context.assignment(topic_partition)
            others = [broker_id for broker_id in assignment.replicas if broker_id not in apart]
            state = context.leadership[topic_partition]
            self.batch.add_leader_and_isr(others, topic_partition, state, assignment, is_new=False)
        self.batch.send()


def _concerned(context: ControllerContext, unclean: list[int]) -> list[TopicPartition]:
    return [
        topic_partition
        for topic_partition in dict.fromkeys(replica.topic_partition for replica in context.replicas_on(unclean))
        if topic_partition in context.leadership
    ]
