"""Load the cluster state and send it to the brokers, between the election and the first event.

Source: docs/protocol/controller.md#failover; Kafka 2.8 KafkaController.onControllerFailover.
"""

import logging
from collections.abc import Collection, Iterable
from typing import TypeVar

from paceline.controller.components import ControllerComponents
from paceline.controller.configs.broker_configs import read_removals
from paceline.controller.context import ControllerContext
from paceline.controller.errors import IllegalStateError, UnexpectedResponseError
from paceline.controller.reassignment.remove_unassigned_isr import take_out_unassigned_members
from paceline.controller.standby.standby import StateMirror
from paceline.controller.standby.takeover import StatesLoaded, load_states, read_journal
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.znodes.journal import JournalEntry
from paceline.model.identifiers import TopicPartition

LOG = logging.getLogger(__name__)
T = TypeVar("T")


def on_failover(components: ControllerComponents, mirror: StateMirror | None = None) -> Flow[StatesLoaded]:
    """Load the cluster, send the full state to brokers, elect missing leaders, resume reassignments and deletions.

    Every read sets its watch, so that no later change is missed. ``mirror`` is the copy of the partition states that
    this process received as standby.
    """
    context = components.context
    store = components.store
    journal = yield from read_journal(context, store, components.journal)
    noticed = yield from components.isr_notifications.take_all_notifications()
    yield from components.config_changes.watch_config_changes()
    marked = yield from store.children(znodes.DELETE_TOPICS, watch=True)
    loaded = yield from _load(components, mirror, journal, noticed, marked)
    for broker_id in context.registered_broker_ids():
        components.channels.add_broker(context.brokers[broker_id])
    yield from _if_not_refused(components.deletion.start(sorted(marked), _halted_topics(context, marked)))
    yield from _if_not_refused(take_out_unassigned_members(context, components.writer))
    yield from _distrust_unclean_brokers(components)
    # A broker follows only a leader that is in its metadata, so the list of brokers is sent first:
    # docs/protocol/controller.md#metadata-before-leadership.
    components.batch.send_update_metadata(context.brokers, ())
    yield from components.replicas.start()
    yield from components.partitions.start()
    moved = (yield from _if_not_refused(components.reassignments.on_reassignment_node())) or set()
    yield from components.reassignments.resume_reassignments(lambda topic_partition, _: topic_partition not in moved)
    yield from components.deletion.resume()
    yield from _if_not_refused(components.preferred_elections.on_preferred_election_node())
    LOG.info(
        "cluster state loaded: epoch=%d brokers=%d topics=%d partitions=%d",
        context.epoch, len(context.brokers), len(context.topics), len(context.leadership),
    )  # fmt: skip
    return loaded


def _load(
    components: ControllerComponents,
    mirror: StateMirror | None,
    journal: JournalEntry | None,
    noticed: Iterable[TopicPartition],
    marked: Collection[str],
) -> Flow[StatesLoaded]:
    context = components.context
    context.brokers.update((yield from components.store.brokers()))
    yield from read_removals(context, components.store)
    topics = yield from components.store.topic_names()
    missing: set[str] = set()
    mirrored = {} if mirror is None else {topic: known.topic_id for topic, known in mirror.topics.items()}
    nodes = yield from components.topic_changes.read_topics(topics, missing, mirrored)
    topic_partitions = components.topic_changes.add_topics([topic for topic in topics if topic not in missing], nodes)
    context.being_reassigned.update(
        TopicPartition(topic, partition)
        for topic, assignments in context.topics.items()
        for partition, assignment in assignments.items()
        if assignment.adding or assignment.removing
    )
    return (yield from load_states(context, components.store, mirror, journal, topic_partitions, noticed, marked))


def _halted_topics(context: ControllerContext, marked: Collection[str]) -> list[str]:
    """Return topics marked for deletion that must wait because a replica is not online."""
    return [
        topic
        for topic in sorted(marked)
        if not all(context.is_replica_online(one.broker_id, one.topic_partition) for one in context.replicas_of(topic))
    ]


def _if_not_refused(step: Flow[T]) -> Flow[T | None]:
    """Run a step that the next controller can repeat; log it and return None when ZooKeeper refuses one of its writes.

    Otherwise every failover would end at the same node, and the cluster would have no controller.
    """
    try:
        return (yield from step)
    except UnexpectedResponseError as error:
        LOG.error("failover continues without a step that ZooKeeper refused: error=%s", error)
        return None


def _distrust_unclean_brokers(components: ControllerComponents) -> Flow[None]:
    """Stop relying on brokers after an unclean restart; treat them as dead when that cannot be written."""
    context = components.context
    try:
        yield from components.unclean_restarts.distrust_unclean_brokers(context.registered_broker_ids())
    except IllegalStateError as error:
        unclean = [broker.broker_id for broker in context.brokers.values() if broker.unclean_restart]
        LOG.error("brokers treated as dead until the next change of brokers: brokers=%s error=%s", unclean, error)
        for broker_id in unclean:
            components.channels.remove_broker(broker_id)
            del context.brokers[broker_id]
