"""Handle brokers that start, die, restart or change their address.

Source: docs/protocol/controller.md#broker-changes; Kafka 2.8 KafkaController.processBrokerChange.
"""

import logging
from collections.abc import Sequence

from paceline.controller.components import ControllerComponents
from paceline.controller.context import PartitionState, Replica, ReplicaState
from paceline.controller.election.unclean_restart import distrust_unclean_brokers, tell_other_replicas
from paceline.controller.events import BrokerChange, BrokerConnectionClosed, LeaderAndIsrResponseReceived
from paceline.controller.reassignment.reassignment import resume_reassignments
from paceline.controller.state_change_log import Cause
from paceline.controller.topics.dropped_topic_ids import note_log_topic_ids
from paceline.coordination.flow import Flow
from paceline.model.control import LiveBroker
from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)


def on_broker_change(components: ControllerComponents) -> Flow[None]:
    """Compare registrations with the known brokers, and handle new, bounced (a newer broker epoch) and dead brokers.

    Bounced brokers are handled before dead brokers, as in Kafka. While a bounced broker is handled, a broker found dead
    by the same event still counts as alive and stays or becomes leader. A partition without other in-sync replicas
    therefore waits until the dead broker returns.
    """
    context = components.context
    current = yield from components.store.brokers()
    known = dict(context.brokers)
    new = [broker_id for broker_id in sorted(current) if broker_id not in known]
    dead = [broker_id for broker_id in sorted(known) if broker_id not in current]
    both = [broker_id for broker_id in sorted(current) if broker_id in known]
    bounced = [b for b in both if current[b].broker_epoch > known[b].broker_epoch]
    LOG.info("brokers changed: new=%s bounced=%s dead=%s", new, bounced, dead)
    for broker_id in new:
        components.channels.add_broker(current[broker_id])
    # To a broker after an unclean restart, a control request means that no ISR relies on its lost records: open its
    # channel only after the ISRs were written.
    held_back = [broker_id for broker_id in bounced if new and current[broker_id].unclean_restart]
    for broker_id in bounced:
        components.channels.remove_broker(broker_id)
        if broker_id not in held_back:
            components.channels.add_broker(current[broker_id])
    for broker_id in dead:
        components.channels.remove_broker(broker_id)
    for broker_id in [*new, *bounced]:
        broker_epoch = current[broker_id].broker_epoch
        components.log.note(
            StateChangeKind.BROKER_UP, broker_id, f"broker epoch {broker_epoch}", broker_epoch=broker_epoch
        )
    for broker_id in dead:
        components.log.note(StateChangeKind.BROKER_DOWN, broker_id, silent_ms=components.leases.silent_ms(broker_id))
    if new:
        context.brokers.update({broker_id: current[broker_id] for broker_id in new})
        yield from on_broker_startup(components, new)
    if bounced:
        components.log.because(Cause.SESSION, "the broker has registered again")
        _remove(components, bounced)
        yield from on_broker_failure(components, bounced)
        context.brokers.update({broker_id: current[broker_id] for broker_id in bounced})
        for broker_id in held_back:
            components.channels.add_broker(current[broker_id])
        components.log.because(BrokerChange.__name__)
        yield from on_broker_startup(components, bounced)
    if dead:
        components.log.because(Cause.SESSION, "the broker's registration has ended")
        _remove(components, dead)
        yield from on_broker_failure(components, dead)
    moved = [b for b in both if b not in bounced and _has_moved(known[b], current[b])]
    if moved:
        _update(components, [current[broker_id] for broker_id in moved])


def on_broker_modifications(components: ControllerComponents, broker_id: int) -> Flow[None]:
    """Send a broker's new endpoints and rack to all brokers, after the data of its registration changed."""
    current = yield from components.store.brokers()
    known = components.context.brokers.get(broker_id)
    found = current.get(broker_id)
    if known is None and found is not None:
        # The registration was malformed when the brokers were compared, and was repaired since.
        yield from on_broker_change(components)
    elif known is not None and found is not None and _has_moved(known, found):
        _update(components, [found])


def on_connection_closed(components: ControllerComponents, event: BrokerConnectionClosed) -> None:
    """Send UpdateMetadata to a broker whose control connection closed.

    A new process at its address answers that it is not registered, which proves that the old process is dead.
    """
    known = components.context.brokers.get(event.broker_id)
    if known is not None and known.broker_epoch == event.broker_epoch:
        components.send_update_metadata((event.broker_id,), ())


def _has_moved(known: LiveBroker, found: LiveBroker) -> bool:
    same_registration = known.broker_epoch == found.broker_epoch
    return same_registration and (known.endpoints, known.rack) != (found.endpoints, found.rack)


def _update(components: ControllerComponents, brokers: Sequence[LiveBroker]) -> None:
    for broker in brokers:
        components.context.brokers[broker.broker_id] = broker
        components.channels.update_broker(broker)
    components.send_update_metadata(components.context.brokers, ())


def _remove(components: ControllerComponents, broker_ids: Sequence[int]) -> None:
    for broker_id in broker_ids:
        components.context.remove_broker(broker_id)


def on_broker_startup(components: ControllerComponents, broker_ids: Sequence[int]) -> Flow[None]:
    """Send started brokers the full state, then resume elections, reassignments and deletions that waited for them.

    A broker follows only a leader that is in its metadata, so UpdateMetadata is sent first
    (docs/protocol/controller.md#metadata-before-leadership).
    """
    context = components.context
    for broker_id in broker_ids:
        context.on_offline_dirs.pop(broker_id, None)
    components.leases.grant(broker_ids)
    distrusted = yield from distrust_unclean_brokers(components, broker_ids)
    others = [broker_id for broker_id in context.registered_broker_ids() if broker_id not in broker_ids]
    components.send_update_metadata(others, ())
    if distrusted:
        tell_other_replicas(components, distrusted, broker_ids)
    with_leader = [tp for tp in context.leadership if not context.is_queued_for_deletion(tp.topic)]
    components.send_update_metadata(broker_ids, with_leader, initial=True)
    hosted = context.replicas_on(broker_ids)
    yield from components.replicas.handle_state_changes(hosted, ReplicaState.ONLINE)
    yield from components.partitions.trigger_online()
    started = set(broker_ids)
    yield from resume_reassignments(components, lambda _, assignment: bool(started.intersection(assignment.target)))
    topics = {replica.topic_partition.topic for replica in hosted}
    yield from components.deletion.resume_topics(topics)


def on_broker_failure(components: ControllerComponents, broker_ids: Sequence[int]) -> Flow[None]:
    """Move leadership and ISR membership away from brokers that were already removed from the context."""
    for broker_id in broker_ids:
        components.context.on_offline_dirs.pop(broker_id, None)
        components.context.shutting_down.pop(broker_id, None)
        components.context.without_lease.discard(broker_id)
    components.leases.drop(broker_ids)
    components.suspicions.forget(broker_ids)
    components.unreached.forget(broker_ids)
    yield from on_replicas_become_offline(components, components.context.replicas_on(broker_ids))


def on_replicas_become_offline(
    components: ControllerComponents, replicas: Sequence[Replica], fence: bool = False
) -> Flow[None]:
    """Elect leaders, then remove the replicas from the ISRs; the reverse order costs another write per partition.

    With ``fence`` each partition gets a new leader epoch even if its leader and ISR do not change.

    Source: docs/protocol/controller.md#elect-before-isr-removal.
    """
    context = components.context
    told_before = context.metadata_sequence
    for_deletion = [r for r in replicas if context.is_queued_for_deletion(r.topic_partition.topic)]
    others = [r for r in replicas if not context.is_queued_for_deletion(r.topic_partition.topic)]
    leaderless = context.partitions_with_offline_leader()
    yield from components.partitions.handle_state_changes(leaderless, PartitionState.OFFLINE)
    yield from components.partitions.trigger_online()
    yield from components.replicas.handle_state_changes(others, ReplicaState.OFFLINE, fence)
    if for_deletion:
        yield from components.deletion.fail_replicas(for_deletion)
    if not leaderless or context.metadata_sequence == told_before:
        # Partitions that had and have no leader cause no request, so send the list of live brokers separately.
        components.send_update_metadata(context.brokers, ())


def on_leader_and_isr_response(components: ControllerComponents, event: LeaderAndIsrResponseReceived) -> Flow[None]:
    """Record which leaders have applied their leadership, and which replicas are on failed log directories.

    Move newly failed replicas offline, and return recovered replicas to service.
    """
    context = components.context
    if not context.has_asked(event.broker_id, event.request.stamp):
        return
    if event.response.error is not ErrorCode.NONE:
        LOG.error("LeaderAndIsr refused: broker=%d error=%s", event.broker_id, event.response.error.name)
        return
    errors = event.response.partition_errors
    for partition in event.request.partitions:
        # If an answer was lost, the broker refuses the retry with a stale epoch, because it has applied the request:
        # docs/protocol/controller.md#stale-epoch-in-an-answer.
        taken = errors.get(partition.topic_partition) in (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)
        if taken and partition.leader == event.broker_id:
            components.ack_waiters.acknowledged(partition.topic_partition, partition.leader_epoch)
    yield from note_log_topic_ids(components, event)
    before = context.on_offline_dirs.get(event.broker_id, set())
    # A failed replica answers KAFKA_STORAGE_ERROR even to a retry, so a stale epoch shows that a replica is healthy.
    healthy = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)
    online = {tp for tp, error in errors.items() if error in healthy}
    failed = [tp for tp, error in errors.items() if error is ErrorCode.KAFKA_STORAGE_ERROR and context.knows(tp)]
    now = (before - online) | set(failed)
    context.set_on_offline_dirs(event.broker_id, now)
    newly_offline = [tp for tp in failed if tp not in before]
    if newly_offline:
        LOG.warning("log directories failed: broker=%d replicas=%d", event.broker_id, len(newly_offline))
        lost = [Replica(tp, event.broker_id) for tp in newly_offline]
        yield from on_replicas_become_offline(components, lost, fence=True)
    come_back = [tp for tp in errors if tp in before and tp in online and context.knows(tp)]
    if come_back:
        _resend_elections_since(components, event, come_back)
        yield from _on_replicas_come_back(components, come_back)


def _resend_elections_since(
    components: ControllerComponents, event: LeaderAndIsrResponseReceived, come_back: Sequence[TopicPartition]
) -> None:
    """Resend LeaderAndIsr for elections that happened while this replica was considered offline."""
    context = components.context
    answered = {partition.topic_partition: partition.leader_epoch for partition in event.request.partitions}
    components.batch.new_batch()
    for topic_partition in come_back:
        known, assignment = context.leadership.get(topic_partition), context.assignment(topic_partition)
        if known is None or known.leader_epoch <= answered.get(topic_partition, known.leader_epoch):
            continue
        if event.broker_id in assignment.replicas and not context.is_queued_for_deletion(topic_partition.topic):
            components.batch.add_leader_and_isr((event.broker_id,), topic_partition, known, assignment, is_new=False)
    components.batch.send()


def _on_replicas_come_back(components: ControllerComponents, topic_partitions: Sequence[TopicPartition]) -> Flow[None]:
    """Return replicas to service: let leaders add them to the ISR, and elect them where there is no leader.

    In Kafka such replicas stay offline until their broker restarts; in Paceline a running broker rebuilds damaged logs.
    """
    components.send_update_metadata(components.context.brokers, topic_partitions)
    yield from components.partitions.trigger_online()
    yield from components.deletion.resume_topics({tp.topic for tp in topic_partitions})
