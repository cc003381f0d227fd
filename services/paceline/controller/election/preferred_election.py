"""Elect preferred leaders: periodically, and on request of Kafka's tools through the admin node.

Source: docs/protocol/controller.md#preferred-leaders; Kafka 2.8
KafkaController.checkAndTriggerAutoLeaderRebalance.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paceline.controller.context import ControllerContext, PartitionState
from paceline.controller.errors import ControllerMovedError, IllegalStateError
from paceline.controller.events import Event, PreferredReplicaElectionFromNode
from paceline.controller.state.leader_election import ElectionStrategy
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import ControllerConfig

LOG = logging.getLogger(__name__)

FIRST_REBALANCE_MS = 5_000
"""Pause between failover and the first periodic check."""


@dataclass(frozen=True, slots=True)
class PreferredElections:
    """Elects preferred leaders."""

    config: ControllerConfig
    context: ControllerContext
    store: ZkStore
    partitions: PartitionStateMachine
    enqueue: Callable[[Event], None]

    def rebalance_leaders(self) -> Flow[None]:
        """Elect preferred leaders for each broker that leads too few of the partitions whose preferred leader it is.

        Does nothing while a reassignment runs; the imbalance must be strictly greater than the limit.
        """
        context = self.context
        by_preferred: dict[int, list[TopicPartition]] = {}
        for topic_partition in context.partitions():
            replicas = context.assignment(topic_partition).replicas
            if replicas and not context.is_queued_for_deletion(topic_partition.topic):
                by_preferred.setdefault(replicas[0], []).append(topic_partition)
        for broker_id in sorted(by_preferred):
            group = by_preferred[broker_id]
            away = [tp for tp in group if tp in context.leadership and context.leadership[tp].leader != broker_id]
            if len(away) * 100 <= len(group) * self.config.leader_imbalance_per_broker_percentage:
                continue
            candidates = [tp for tp in away if not context.being_reassigned and _can_lead(self.context, tp, broker_id)]
            if candidates:
                LOG.info("electing preferred leaders: broker=%d partitions=%d", broker_id, len(candidates))
                yield from self.elect_preferred_leaders(candidates)

    def elect_preferred_leaders(self, topic_partitions: Iterable[TopicPartition]) -> Flow[None]:
        """Elect the first assigned replica of each partition where it is eligible."""
        yield from self.partitions.handle_state_changes(
            list(topic_partitions), PartitionState.ONLINE, ElectionStrategy.PREFERRED
        )

    def on_preferred_election_node(self) -> Flow[None]:
        """Handle ``/admin/preferred_replica_election``, then delete the node and set its watch again."""
        exists = yield from self.store.exists(znodes.PREFERRED_REPLICA_ELECTION)
        if not exists:
            return
        try:
            wanted = yield from self.wanted_preferred_elections()
            yield from self.elect_preferred_leaders(wanted)
        except (ControllerMovedError, IllegalStateError):
            raise
        except Exception:
            LOG.exception("requested preferred leader election failed")
        yield from self.store.delete_fenced([znodes.PREFERRED_REPLICA_ELECTION])
        # Read the node again when its watch is set: an operator may have re-created it since the deletion.
        self.enqueue(PreferredReplicaElectionFromNode())

    def wanted_preferred_elections(self) -> Flow[list[TopicPartition]]:
        """Read the admin node; skips partitions that are unknown, being deleted, or led by their preferred replica."""
        context = self.context
        path = znodes.PREFERRED_REPLICA_ELECTION
        (response,) = yield from self.store.read_all([path])
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


def _can_lead(context: ControllerContext, topic_partition: TopicPartition, broker_id: int) -> bool:
    is_eligible = context.is_replica_online(broker_id, topic_partition) and broker_id not in context.unreached
    return is_eligible and broker_id in context.leadership[topic_partition].isr
