"""Remove ISR members that are not assigned: a controller cancelled a reassignment and died before removing them.

The topic's node is written before the dropped replicas leave the ISR, and a controller can die in between. Its
successor removes such members during its failover, because they cannot lead and are about to lose their logs. Otherwise
the ISR could shrink to such members, and the partition would stay without a leader.

Source: docs/protocol/controller.md#unassigned-isr-members.
"""

import logging

from paceline.controller.context import ControllerContext
from paceline.controller.state.state_writer import StateWrite, StateWriter
from paceline.coordination.flow import Flow
from paceline.model.identifiers import NO_LEADER, TopicPartition

LOG = logging.getLogger(__name__)


def take_out_unassigned_members(context: ControllerContext, writer: StateWriter) -> Flow[None]:
    """Write ISRs without members that are not assigned; sends no request.

    Brokers with such a replica set its log aside when they receive the assignment (docs/decisions/0011).

    Raises:
        ControllerMovedError: the fence failed.
    """
    concerned = [
        topic_partition
        for topic_partition, known in context.leadership.items()
        if not set(context.assignment(topic_partition).replicas).issuperset(known.isr)
        and not context.is_queued_for_deletion(topic_partition.topic)
    ]
    yield from writer.rewrite(concerned, lambda topic_partition: _without_unassigned(context, topic_partition))


def _without_unassigned(context: ControllerContext, topic_partition: TopicPartition) -> StateWrite | None:
    """Return the state without unassigned members; None when every member is assigned, or no member is."""
    known, replicas = context.leadership[topic_partition], context.assignment(topic_partition).replicas
    isr = tuple(member for member in known.isr if member in replicas)
    if not isr or len(isr) == len(known.isr):
        return None
    LOG.warning("unassigned ISR members removed: partition=%s isr=%s assigned=%s", topic_partition, known.isr, isr)
    leader = known.leader if known.leader in isr else NO_LEADER
    return StateWrite(topic_partition, known.with_leader(leader, isr, context.epoch))
