"""Members of an ISR that are not assigned any more: a move was taken back by a controller that died right after.

The topic's node is written before the replicas it drops leave the ISR, so between the two a controller can end. Its
successor does what is left, first of all: nobody may be relied on who cannot lead and is about to lose its log. Else
the ISR could come down to such members alone, and the partition would have no leader ever again.

Source: spec/controller.md section 13 (phase U); R11 of spec/reliability.md.
"""

import logging

from paceline.controller.parts import ControllerParts
from paceline.controller.state_commit import StateWrite
from paceline.model.identifiers import NO_LEADER, TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.runtime.flow import Flow

LOG = logging.getLogger(__name__)


def take_out_unassigned_members(parts: ControllerParts) -> Flow[None]:
    """Write ISRs without the members that are not assigned; nobody is told yet.

    Brokers that have such a replica set it aside when they hear who is assigned (decision 0011).

    Raises:
        ControllerMovedError: the fence failed.
    """
    context = parts.context
    remaining = [tp for tp in context.leadership if not context.is_queued_for_deletion(tp.topic)]
    limit = parts.committer.chunk_limit
    while remaining:
        writes = []
        for topic_partition in remaining:
            wanted = _without_strangers(parts, topic_partition)
            if wanted is not None:
                before = context.leadership[topic_partition].isr
                LOG.warning("%s: of its ISR %s only %s are assigned", topic_partition, before, wanted.isr)
                writes.append(StateWrite(topic_partition, wanted))
        if not writes:
            return
        outcome = yield from parts.committer.commit(writes, limit)
        for topic_partition, state in outcome.written.items():
            context.remember(topic_partition, state)
        remaining = []
        for topic_partition, found in outcome.conflicted.items():
            if found is None:
                context.forget_leadership(topic_partition)
            else:
                context.remember(topic_partition, found)
                remaining.append(topic_partition)
        limit = max(1, limit // 2)


def _without_strangers(parts: ControllerParts, topic_partition: TopicPartition) -> LeaderAndIsr | None:
    """Return the state of assigned members alone, None where it is so, or nobody would be left."""
    context = parts.context
    known, replicas = context.leadership[topic_partition], context.assignment(topic_partition).replicas
    for member in known.isr:
        if member not in replicas:
            break
    else:
        return None
    isr = tuple(member for member in known.isr if member in replicas)
    if not isr or known.controller_epoch > context.epoch:
        return None
    return known.with_leader(known.leader if known.leader in isr else NO_LEADER, isr, context.epoch)
