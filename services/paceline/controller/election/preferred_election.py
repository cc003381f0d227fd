"""Elect preferred leaders: periodically, and on request of Kafka's tools through the admin node.

Source: docs/protocol/controller.md#preferred-leaders; Kafka 2.8
KafkaController.checkAndTriggerAutoLeaderRebalance.
"""

import logging
from collections.abc import Iterable

from paceline.controller.components import ControllerComponents
from paceline.controller.context import PartitionState
from paceline.controller.election.leader_election import ElectionStrategy
from paceline.controller.errors import ControllerMovedError, IllegalStateError
from paceline.controller.events import PreferredReplicaElectionFromNode
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)

FIRST_REBALANCE_MS = 5_000
"""Pause between failover and the first periodic check."""


def rebalance_leaders(components: ControllerComponents) -> Flow[None]:
    """Elect preferred leaders for each broker that leads too few of the partitions whose preferred leader it is.

    Does nothing while a reassignment runs; the imbalance must be strictly greater than the limit.
    """
    context = components.context
    by_preferred: dict[int, list[TopicPartition]] = {}
    for topic_partition in context.partitions():
        replicas = context.assignment(topic_partition).replicas
        if replicas and not context.is_queued_for_deletion(topic_partition.topic):
            by_preferred.setdefault(replicas[0], []).append(topic_partition)
    for broker_id in sorted(by_preferred):
        group = by_preferred[broker_id]
        away = [tp for tp in group if tp in context.leadership and context.leadership[tp].leader != broker_id]
        if len(away) * 100 <= len(group) * components.config.leader_imbalance_per_broker_percentage:
            continue
        candidates = [tp for tp in away if not context.being_reassigned and _can_lead(components, tp, broker_id)]
        if candidates:
            LOG.info("electing preferred leaders: broker=%d partitions=%d", broker_id, len(candidates))
            yield from elect_preferred_leaders(components, candidates)


def _can_lead(components: ControllerComponents, topic_partition: TopicPartition, broker_id: int) -> bool:
    context = components.context
    is_eligible = context.is_replica_online(broker_id, topic_partition) and broker_id not in context.unreached
    return is_eligible and broker_id in context.leadership[topic_partition].isr


def elect_preferred_leaders(components: ControllerComponents, topic_partitions: Iterable[TopicPartition]) -> Flow[None]:
    """Elect the first assigned replica of each partition where it is eligible."""
    yield from components.partitions.handle_state_changes(
        list(topic_partitions), PartitionState.ONLINE, ElectionStrategy.PREFERRED
    )


def on_preferred_election_node(components: ControllerComponents) -> Flow[None]:
    """Handle ``/admin/preferred_replica_election``, then delete the node and set its watch again."""
    exists = yield from components.store.exists(znodes.PREFERRED_REPLICA_ELECTION)
    if not exists:
        return
    try:
        wanted = yield from wanted_preferred_elections(components)
        yield from elect_preferred_leaders(components, wanted)
    except (ControllerMovedError, IllegalStateError):
        raise
    except Exception:
        LOG.exception("requested preferred leader election failed")
    yield from components.store.delete_fenced([znodes.PREFERRED_REPLICA_ELECTION])
    # Read the node again when its watch is set: an operator may have re-created it since the deletion.
    components.enqueue(PreferredReplicaElectionFromNode())


def wanted_preferred_elections(components: ControllerComponents) -> Flow[list[TopicPartition]]:
    """Read the admin node; skips partitions that are unknown, being deleted, or led by their preferred replica."""
    context = components.context
    path = znodes.PREFERRED_REPLICA_ELECTION
    (response,) = yield from components.store.read_all([path])
    if not response.ok:
        return []
    try:
        asked = znodes.decode_partition_set(path, response.data)
    except MalformedZnodeError as error:
        LOG.warning("malformed preferred leader election request dropped: error=%s", error)
        return []
    return [
        tp
        for tp in asked
        if context.knows(tp)
        and not context.is_queued_for_deletion(tp.topic)
        and tp in context.leadership
        and context.leadership[tp].leader != context.assignment(tp).replicas[0]
    ]
