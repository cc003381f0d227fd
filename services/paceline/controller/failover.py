"""What a controller does between its election and its first event.

Source: spec/controller.md section 4; design.md 3.12; Kafka 2.8 KafkaController.onControllerFailover.
"""

import logging
from collections.abc import Collection, Iterable

from paceline.controller.config_changes import watch_config_changes
from paceline.controller.events import PreferredReplicaElectionFromNode
from paceline.controller.isr_notifications import take_all_notifications
from paceline.controller.parts import ControllerParts
from paceline.controller.preferred_election import elect_preferred_leaders, wanted_preferred_elections
from paceline.controller.reassignment import on_reassignment_node, resume_reassignments
from paceline.controller.standby import StateMirror
from paceline.controller.takeover import StatesLoaded, load_states, read_journal
from paceline.controller.topic_changes import add_topics, read_topics
from paceline.controller.unassigned_members import take_out_unassigned_members
from paceline.controller.unclean_restart import distrust_unclean_brokers
from paceline.coordination import znodes
from paceline.coordination.znode_journal import JournalEntry
from paceline.model.identifiers import TopicPartition
from paceline.runtime.flow import Flow

LOG = logging.getLogger(__name__)


def on_failover(parts: ControllerParts, mirror: StateMirror | None = None) -> Flow[StatesLoaded]:
    """Load the cluster, tell every broker everything, elect where leaders are missing, go on with what was begun.

    Every read arms its watch, so nothing that changes from here on is missed. ``mirror`` is what this process has
    learnt of the partition states while it stood by.
    """
    context = parts.context
    journal = yield from read_journal(parts)
    noticed = yield from take_all_notifications(parts)
    yield from watch_config_changes(parts)
    marked = yield from parts.storage.children(znodes.DELETE_TOPICS, watch=True)
    loaded = yield from _load(parts, mirror, journal, noticed, marked)
    for broker_id in context.registered_broker_ids():
        parts.channels.add_broker(context.brokers[broker_id])
    yield from parts.deletion.start(sorted(marked), _halted_topics(parts, marked))
    yield from take_out_unassigned_members(parts)
    yield from distrust_unclean_brokers(parts, context.registered_broker_ids())
    # Brokers refuse to follow a leader they have not heard of, so the list of brokers goes first (trap 1).
    parts.send_update_metadata(context.brokers, ())
    yield from parts.replicas.start()
    yield from parts.partitions.start()
    moved = yield from on_reassignment_node(parts)
    yield from resume_reassignments(parts, lambda topic_partition, _: topic_partition not in moved)
    yield from parts.deletion.resume()
    yield from _pending_preferred_elections(parts)
    LOG.info(
        "controller epoch %d: %d brokers, %d topics, %d partitions",
        context.epoch, len(context.brokers), len(context.topics), len(context.leadership),
    )  # fmt: skip
    return loaded


def _load(
    parts: ControllerParts,
    mirror: StateMirror | None,
    journal: JournalEntry | None,
    noticed: Iterable[TopicPartition],
    marked: Collection[str],
) -> Flow[StatesLoaded]:
    context = parts.context
    context.brokers.update((yield from parts.storage.brokers()))
    topics = yield from parts.storage.topic_names()
    gone: set[str] = set()
    nodes = yield from read_topics(parts, topics, gone)
    topic_partitions = add_topics(parts, [topic for topic in topics if topic not in gone], nodes)
    context.being_reassigned.update(
        TopicPartition(topic, partition)
        for topic, assignments in context.topics.items()
        for partition, assignment in assignments.items()
        if assignment.adding or assignment.removing
    )
    loaded = yield from load_states(parts, mirror, journal, topic_partitions, noticed, marked)
    parts.metadata_revisions.changed(context.topics, None)
    return loaded


def _halted_topics(parts: ControllerParts, marked: Collection[str]) -> list[str]:
    """Those of the topics marked for deletion that have to wait since a replica is not online."""
    context = parts.context
    return [
        topic
        for topic in sorted(marked)
        if not all(context.is_replica_online(one.broker_id, one.topic_partition) for one in context.replicas_of(topic))
    ]


def _pending_preferred_elections(parts: ControllerParts) -> Flow[None]:
    exists = yield from parts.storage.exists(znodes.PREFERRED_REPLICA_ELECTION)
    if not exists:
        return
    wanted = yield from wanted_preferred_elections(parts)
    yield from elect_preferred_leaders(parts, wanted)
    yield from parts.storage.delete_fenced([znodes.PREFERRED_REPLICA_ELECTION])
    # Looked at again, not only watched: somebody may have asked anew in between.
    parts.enqueue(PreferredReplicaElectionFromNode())
