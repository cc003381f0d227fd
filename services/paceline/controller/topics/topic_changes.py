"""Topics that appear, vanish or grow.

Source: spec/controller.md section 11; Kafka 2.8 KafkaController.processTopicChange and processPartitionModifications.
"""

import logging
from collections.abc import Sequence

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
    """Compare the topics listed with those known; new ones are created, vanished ones forgotten."""
    context = components.context
    names = yield from components.storage.topic_names()
    components.topic_requests.topics_listed()
    new = [topic for topic in names if topic not in context.topics]
    listed = set(names)
    vanished = [topic for topic in context.topics if topic not in listed]
    LOG.info("topics: new %s, vanished %s", new, vanished)
    gone: set[str] = set()
    nodes = yield from read_topics(components, new, gone)
    new = [topic for topic in new if topic not in gone]
    for topic in vanished:
        yield from forget_topic(components, topic)
    added = add_topics(components, new, nodes)
    for topic in new:
        components.log.note(StateChangeKind.TOPIC_CREATED, topic=topic)
    yield from create_partitions(components, added)


def on_partition_modifications(components: ControllerComponents, topics: Sequence[str]) -> Flow[None]:
    """Read topic nodes again; partitions not known yet are created, replica lists of known ones are left alone."""
    context = components.context
    known = [topic for topic in topics if topic in context.topics]
    gone: set[str] = set()
    nodes = yield from components.storage.topic_nodes(known, gone)
    created: list[TopicPartition] = []
    for topic in known:
        node = nodes.get(topic)
        if topic in gone:
            # Without a node there is no watch on it, and if it is made again before the list of topics is read, the
            # list looks as before: whoever is forgotten here is new there.
            yield from forget_topic(components, topic)
        if node is None:
            continue
        old_id = context.topic_ids.get(topic)
        if old_id and node.topic_id and node.topic_id != old_id:
            # Deleted and created again between two reads: the name is the same, the topic is not.
            yield from forget_topic(components, topic)
            created.extend(add_topics(components, [topic], {topic: node}))
            continue
        if node.topic_id and not old_id:
            context.topic_ids[topic] = node.topic_id
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
    components: ControllerComponents, topics: Sequence[str], gone: set[str]
) -> Flow[dict[str, znodes.TopicAssignment]]:
    """Read topic nodes; one without a topic id is given one, in ZooKeeper first.

    Topics without a node are added to ``gone``: nothing watches them, so they must not pass for known. When they are
    made again the list of topics may look as before.
    """
    nodes = yield from components.storage.topic_nodes(topics, gone)
    for topic in [topic for topic, node in nodes.items() if node.topic_id is None]:
        node = nodes.pop(topic)
        topic_id = new_id(components.rng)
        try:
            yield from components.storage.write_topic(topic, topic_id, dict(node.partitions))
        except UnexpectedResponseError as error:
            # Gone meanwhile, or so large that an id does not fit: no reason to keep all others waiting.
            LOG.warning("topic %s is ignored, it cannot be given an id: %s", topic, error)
            continue
        nodes[topic] = znodes.TopicAssignment(node.partitions, topic_id)
    return nodes


def add_topics(
    components: ControllerComponents, topics: Sequence[str], nodes: dict[str, znodes.TopicAssignment]
) -> list[TopicPartition]:
    """Take topics into the context and return their partitions; a malformed node counts as one without any."""
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
    """Drop a topic whose node is gone; a marker it leaves would have the next topic of its name deleted one day."""
    is_marked = components.context.is_queued_for_deletion(topic)
    components.context.drop_topic(topic)
    components.topic_gone(topic)
    if is_marked:
        yield from components.deletion.remove_markers([topic])


def create_partitions(components: ControllerComponents, topic_partitions: Sequence[TopicPartition]) -> Flow[None]:
    """Bring new partitions online: four steps in strict order."""
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
    """Undo partitions added to a topic that is being deleted (KAFKA-6612)."""
    names = yield from components.storage.children(znodes.topic_partitions_path(topic), watch=False)
    existing = {int(name) for name in names if name.isdecimal()}
    assignments = {p: a for p, a in components.context.topics[topic].items() if p in existing}
    LOG.warning("partitions added to topic %s are taken back, it is being deleted", topic)
    if assignments:
        yield from components.storage.write_topic(topic, components.context.topic_ids.get(topic), assignments)
