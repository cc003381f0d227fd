"""Handle the creation and deletion of topics, and added partitions.

Source: docs/protocol/controller.md#topic-changes; Kafka 2.8 KafkaController.processTopicChange and
processPartitionModifications.
"""

import logging
from collections.abc import Mapping, Sequence

from paceline.controller.components import ControllerComponents
from paceline.controller.context import PartitionState, Replica, ReplicaState
from paceline.controller.election.leader_election import ElectionStrategy
from paceline.controller.errors import UnexpectedResponseError
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.model.identifiers import TopicPartition, new_id
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)


def on_topic_change(components: ControllerComponents) -> Flow[None]:
    """Compare the topics in ZooKeeper with the known topics; add new topics, and forget deleted topics."""
    context = components.context
    names = yield from components.store.topic_names()
    components.topic_requests.topics_listed()
    new = [topic for topic in names if topic not in context.topics]
    listed = set(names)
    vanished = [topic for topic in context.topics if topic not in listed]
    LOG.info("topics changed: new=%s deleted=%s", new, vanished)
    missing: set[str] = set()
    nodes = yield from read_topics(components, new, missing)
    new = [topic for topic in new if topic not in missing]
    for topic in vanished:
        yield from forget_topic(components, topic)
    added = add_topics(components, new, nodes)
    for topic in new:
        components.log.note(StateChangeKind.TOPIC_CREATED, topic=topic)
    yield from create_partitions(components, added)


def on_partition_modifications(components: ControllerComponents, topics: Sequence[str]) -> Flow[None]:
    """Read topic nodes again: create new partitions, and ignore changed replica lists of known partitions."""
    context = components.context
    known = [topic for topic in topics if topic in context.topics]
    missing: set[str] = set()
    nodes = yield from components.store.topic_nodes(known, missing)
    created: list[TopicPartition] = []
    for topic in known:
        node = nodes.get(topic)
        if topic in missing:
            # Forget the topic now, so that it counts as new if it is re-created: a missing node has no watch, and the
            # list of topics would look unchanged.
            yield from forget_topic(components, topic)
        if node is None:
            continue
        old_id = context.topic_ids.get(topic)
        if old_id and node.topic_id and node.topic_id != old_id:
            # Deleted and re-created between two reads: same name, another topic id.
            yield from forget_topic(components, topic)
            created.extend(add_topics(components, [topic], {topic: node}))
            continue
        if node.topic_id and not old_id:
            context.topic_ids[topic] = node.topic_id
        elif old_id and not node.topic_id:
            # Kafka's tools before 2.8 rewrite the node without the topic id.
            yield from _write_topic_id(components, topic, old_id, node)
        added = [p for p in sorted(node.partitions) if not context.knows(TopicPartition(topic, p))]
        if context.is_queued_for_deletion(topic):
            if added:
                yield from _restore(components, topic)
            continue
        for partition in added:
            topic_partition = TopicPartition(topic, partition)
            context.set_assignment(topic_partition, node.partitions[partition])
            created.append(topic_partition)
    yield from create_partitions(components, created)


def read_topics(
    components: ControllerComponents,
    topics: Sequence[str],
    missing: set[str],
    known_ids: Mapping[str, str | None] | None = None,
) -> Flow[dict[str, znodes.TopicAssignment]]:
    """Read topic nodes; give a new topic without a topic id an id, which is written to ZooKeeper first.

    An existing id is never replaced: brokers would set the topic's logs aside as logs of another topic. A topic with
    partition states had an id that Kafka's tools before 2.8 removed, so it gets its id from ``known_ids``. If
    ``known_ids`` lacks the topic, the topic stays without an id until the brokers have returned the ids of their logs
    (`dropped_topic_ids`).

    Topics without a node are added to ``missing`` and must not count as known: a missing node has no watch, and after a
    re-creation the list of topics may look unchanged.
    """
    nodes = yield from components.store.topic_nodes(topics, missing)
    for topic in [topic for topic, node in nodes.items() if node.topic_id is None]:
        node = nodes.pop(topic)
        has_states = yield from _may_have_states(components, topic)
        topic_id = (known_ids or {}).get(topic) if has_states else new_id(components.rng)
        if topic_id is None:
            LOG.warning("topic id was removed from ZooKeeper, asking brokers for it: topic=%s", topic)
            nodes[topic] = node
        elif (yield from _write_topic_id(components, topic, topic_id, node)):
            nodes[topic] = znodes.TopicAssignment(node.partitions, topic_id)
    return nodes


def _may_have_states(components: ControllerComponents, topic: str) -> Flow[bool]:
    """Whether a topic has partition states; True when ZooKeeper refuses to list them."""
    try:
        states = yield from components.store.children(znodes.topic_partitions_path(topic), watch=False)
    except UnexpectedResponseError as error:
        # Continue, so that one such topic does not make every failover fail.
        LOG.error("partition states not listed, ZooKeeper refused: topic=%s error=%s", topic, error)
        return True
    return bool(states)


def _write_topic_id(
    components: ControllerComponents, topic: str, topic_id: str, node: znodes.TopicAssignment
) -> Flow[bool]:
    """Write a topic's id into its node; return False if ZooKeeper refuses the write."""
    try:
        yield from components.store.write_topic(topic, topic_id, dict(node.partitions))
    except UnexpectedResponseError as error:
        # The topic was deleted, or its node has no room for the id: continue with the other topics.
        LOG.warning("topic cannot be given an id: topic=%s id=%s cause=%s", topic, topic_id, error)
        return False
    return True


def add_topics(
    components: ControllerComponents, topics: Sequence[str], nodes: dict[str, znodes.TopicAssignment]
) -> list[TopicPartition]:
    """Add topics to the context and return their partitions; a malformed node counts as a topic without partitions."""
    added = []
    for topic in topics:
        node = nodes.get(topic)
        assignments = components.context.topics.setdefault(topic, {})
        if node is None:
            continue
        components.context.topic_ids[topic] = node.topic_id
        for partition in sorted(node.partitions):
            assignments[partition] = node.partitions[partition]
            added.append(TopicPartition(topic, partition))
    return added


def forget_topic(components: ControllerComponents, topic: str) -> Flow[None]:
    """Forget a topic whose node was deleted.

    Delete its deletion marker too: the marker would delete a later topic with that name.
    """
    is_marked = components.context.is_queued_for_deletion(topic)
    components.context.drop_topic(topic)
    components.ack_waiters.topic_deleted(topic)
    if is_marked:
        yield from components.deletion.remove_markers([topic])


def create_partitions(components: ControllerComponents, topic_partitions: Sequence[TopicPartition]) -> Flow[None]:
    """Bring new partitions online, in four steps whose order matters."""
    if not topic_partitions:
        return
    replicas = [
        Replica(topic_partition, broker_id)
        for topic_partition in topic_partitions
        for broker_id in components.context.assignment(topic_partition).replicas
    ]
    yield from components.partitions.handle_state_changes(topic_partitions, PartitionState.NEW)
    yield from components.replicas.handle_state_changes(replicas, ReplicaState.NEW)
    yield from components.partitions.handle_state_changes(
        topic_partitions, PartitionState.ONLINE, ElectionStrategy.OFFLINE
    )
    yield from components.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)


def _restore(components: ControllerComponents, topic: str) -> Flow[None]:
    """Remove added partitions from the node of a topic that is being deleted (KAFKA-6612)."""
    names = yield from components.store.children(znodes.topic_partitions_path(topic), watch=False)
    existing = {int(name) for name in names if name.isdecimal()}
    assignments = {p: a for p, a in components.context.topics[topic].items() if p in existing}
    LOG.warning("topic is being deleted, removing added partitions: topic=%s", topic)
    if assignments:
        yield from components.store.write_topic(topic, components.context.topic_ids.get(topic), assignments)
