"""Handle the creation and deletion of topics, and added partitions.

Source: docs/protocol/controller.md#topic-changes; Kafka 2.8 KafkaController.processTopicChange and
processPartitionModifications.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.controller.channel.leader_ack_waiters import LeaderAckWaiters
from paceline.controller.context import ControllerContext, PartitionState, Replica, ReplicaState
from paceline.controller.errors import UnexpectedResponseError
from paceline.controller.state.leader_election import ElectionStrategy
from paceline.controller.state.partition_state_machine import PartitionStateMachine
from paceline.controller.state.replica_state_machine import ReplicaStateMachine
from paceline.controller.state_change_log import StateChangeLog
from paceline.controller.topics.topic_deletion import TopicDeletionManager
from paceline.controller.zk_store import ZkStore
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.model.identifiers import TopicPartition, new_id
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """Compares topic nodes with the known topics."""

    context: ControllerContext
    store: ZkStore
    log: StateChangeLog
    rng: random.Random
    ack_waiters: LeaderAckWaiters
    partitions: PartitionStateMachine
    replicas: ReplicaStateMachine
    deletion: TopicDeletionManager

    def on_topic_change(self) -> Flow[None]:
        """Compare the topics in ZooKeeper with the known topics; add new topics, and forget deleted topics."""
        context = self.context
        names = yield from self.store.topic_names()
        self.context.unlisted_topics.clear()
        new = [topic for topic in names if topic not in context.topics]
        listed = set(names)
        vanished = [topic for topic in context.topics if topic not in listed]
        LOG.info("topics changed: new=%s deleted=%s", new, vanished)
        missing: set[str] = set()
        nodes = yield from self.read_topics(new, missing)
        new = [topic for topic in new if topic not in missing]
        for topic in vanished:
            yield from self.forget_topic(topic)
        added = self.add_topics(new, nodes)
        for topic in new:
            self.log.note(StateChangeKind.TOPIC_CREATED, topic=topic)
        yield from self.create_partitions(added)

    def on_partition_modifications(self, topics: Sequence[str]) -> Flow[None]:
        """Read topic nodes again: create new partitions, and ignore changed replica lists of known partitions."""
        context = self.context
        known = [topic for topic in topics if topic in context.topics]
        missing: set[str] = set()
        nodes = yield from self.store.topic_nodes(known, missing)
        created: list[TopicPartition] = []
        for topic in known:
            node = nodes.get(topic)
            if topic in missing:
                # Forget the topic now, so that it counts as new if it is re-created: a missing node has no watch, and
                # the list of topics would look unchanged.
                yield from self.forget_topic(topic)
            if node is None:
                continue
            old_id = context.topic_ids.get(topic)
            if old_id and node.topic_id and node.topic_id != old_id:
                # Deleted and re-created between two reads: same name, another topic id.
                yield from self.forget_topic(topic)
                created.extend(self.add_topics([topic], {topic: node}))
                continue
            if node.topic_id and not old_id:
                context.topic_ids[topic] = node.topic_id
            elif old_id and not node.topic_id:
                # Kafka's tools before 2.8 rewrite the node without the topic id.
                yield from self._write_topic_id(topic, old_id, node)
            added = [p for p in sorted(node.partitions) if not context.knows(TopicPartition(topic, p))]
            if context.is_queued_for_deletion(topic):
                if added:
                    yield from self._restore(topic)
                continue
            for partition in added:
                topic_partition = TopicPartition(topic, partition)
                context.set_assignment(topic_partition, node.partitions[partition])
                created.append(topic_partition)
        yield from self.create_partitions(created)

    def read_topics(
        self, topics: Sequence[str], missing: set[str], known_ids: Mapping[str, str | None] | None = None
    ) -> Flow[dict[str, znodes.TopicAssignment]]:
        """Read topic nodes; give a new topic without a topic id an id, which is written to ZooKeeper first.

        An existing id is never replaced: brokers would set the topic's logs aside as logs of another topic. A topic
        with partition states had an id that Kafka's tools before 2.8 removed, so it gets its id from ``known_ids``. If
        ``known_ids`` lacks the topic, the topic stays without an id until the brokers have returned the ids of their
        logs (`dropped_topic_ids`).

        Topics without a node are added to ``missing`` and must not count as known: a missing node has no watch, and
        after a re-creation the list of topics may look unchanged.
        """
        nodes = yield from self.store.topic_nodes(topics, missing)
        for topic in [topic for topic, node in nodes.items() if node.topic_id is None]:
            node = nodes.pop(topic)
            has_states = yield from self._may_have_states(topic)
            topic_id = (known_ids or {}).get(topic) if has_states else new_id(self.rng)
            if topic_id is None:
                LOG.warning("topic id was removed from ZooKeeper, asking brokers for it: topic=%s", topic)
                nodes[topic] = node
            elif (yield from self._write_topic_id(topic, topic_id, node)):
                nodes[topic] = znodes.TopicAssignment(node.partitions, topic_id)
        return nodes

    def _may_have_states(self, topic: str) -> Flow[bool]:
        """Whether a topic has partition states; True when ZooKeeper refuses to list them."""
        try:
            states = yield from self.store.children(znodes.topic_partitions_path(topic), watch=False)
        except UnexpectedResponseError as error:
            # Continue, so that one such topic does not make every failover fail.
            LOG.error("partition states not listed, ZooKeeper refused: topic=%s error=%s", topic, error)
            return True
        return bool(states)

    def _write_topic_id(self, topic: str, topic_id: str, node: znodes.TopicAssignment) -> Flow[bool]:
        """Write a topic's id into its node; return False if ZooKeeper refuses the write."""
        try:
            yield from self.store.write_topic(topic, topic_id, dict(node.partitions))
        except UnexpectedResponseError as error:
            # The topic was deleted, or its node has no room for the id: continue with the other topics.
            LOG.warning("topic cannot be given an id: topic=%s id=%s cause=%s", topic, topic_id, error)
            return False
        return True

    def add_topics(self, topics: Sequence[str], nodes: dict[str, znodes.TopicAssignment]) -> list[TopicPartition]:
        """Add topics to the context and return their partitions; a topic with a malformed node has no partitions."""
        added = []
        for topic in topics:
            node = nodes.get(topic)
            assignments = self.context.topics.setdefault(topic, {})
            if node is None:
                continue
            self.context.topic_ids[topic] = node.topic_id
            for partition in sorted(node.partitions):
                assignments[partition] = node.partitions[partition]
                added.append(TopicPartition(topic, partition))
        return added

    def forget_topic(self, topic: str) -> Flow[None]:
        """Forget a topic whose node was deleted.

        Delete its deletion marker too: the marker would delete a later topic with that name.
        """
        is_marked = self.context.is_queued_for_deletion(topic)
        self.context.drop_topic(topic)
        self.ack_waiters.topic_deleted(topic)
        if is_marked:
            yield from self.deletion.remove_markers([topic])

    def create_partitions(self, topic_partitions: Sequence[TopicPartition]) -> Flow[None]:
        """Bring new partitions online, in four steps whose order matters."""
        if not topic_partitions:
            return
        replicas = [
            Replica(topic_partition, broker_id)
            for topic_partition in topic_partitions
            for broker_id in self.context.assignment(topic_partition).replicas
        ]
        yield from self.partitions.handle_state_changes(topic_partitions, PartitionState.NEW)
        yield from self.replicas.handle_state_changes(replicas, ReplicaState.NEW)
        yield from self.partitions.handle_state_changes(
            topic_partitions, PartitionState.ONLINE, ElectionStrategy.OFFLINE
        )
        yield from self.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)

    def _restore(self, topic: str) -> Flow[None]:
        """Remove added partitions from the node of a topic that is being deleted (KAFKA-6612)."""
        names = yield from self.store.children(znodes.topic_partitions_path(topic), watch=False)
        existing = {int(name) for name in names if name.isdecimal()}
        assignments = {p: a for p, a in self.context.topics[topic].items() if p in existing}
        LOG.warning("topic is being deleted, removing added partitions: topic=%s", topic)
        if assignments:
            yield from self.store.write_topic(topic, self.context.topic_ids.get(topic), assignments)
