"""Move partitions to other brokers.

Every call starts at step 1, so that this controller or its successor can resume a reassignment at any time: the topic's
node is the only durable record of the replicas being added and removed, and it is written last at completion.

Source: docs/protocol/controller.md#reassignment-steps; KIP-455; Kafka 2.8
KafkaController.onPartitionReassignment.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline.controller.admin.admin_values import RequestedReassignment
from paceline.controller.components import ControllerComponents
from paceline.controller.context import PartitionState, Replica, ReplicaState
from paceline.controller.election.leader_election import ElectionStrategy
from paceline.controller.errors import ControllerMovedError, IllegalStateError, UnexpectedResponseError
from paceline.controller.events import (
    PartitionReassignmentFromNode,
    PartitionReassignmentIsrChange,
    PartitionReassignmentResult,
)
from paceline.controller.state.state_writer import StateWrite
from paceline.controller.topics.topic_changes import on_partition_modifications, on_topic_change
from paceline.controller.zk_store import first_failure, send
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import ANY_VERSION, Exists, Response, SetData, ZkCode
from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import (
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    PacelineError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.leader_and_isr import LeaderAndIsr
from paceline.model.state_change import StateChangeKind

LOG = logging.getLogger(__name__)

RETRY_MS = 10_000
"""Pause before another attempt to complete a reassignment, until it succeeds or the controller resigns."""

WRITE_ATTEMPTS = 10
"""Attempts to rewrite a topic's node when another client writes it concurrently."""


# start, resume and complete reassignments


def alter_reassignments(
    components: ControllerComponents, requested: Sequence[RequestedReassignment], validate_only: bool = False
) -> Flow[list[PartitionReassignmentResult]]:
    """Start, replace or, with None, cancel reassignments; return when they are submitted, not complete."""
    asked = [one.topic_partition for one in requested]
    times = Counter(asked)
    targets = {one.topic_partition: one.target for one in requested if times[one.topic_partition] == 1}
    results = {
        tp: PartitionReassignmentResult(tp, InvalidRequestError(f"{tp} is listed more than once"))
        for tp in asked
        if times[tp] > 1
    }
    accepted: dict[TopicPartition, ReplicaAssignment] = {}
    for topic_partition, target in targets.items():
        problem = _problem(components, topic_partition, target)
        if problem is not None:
            results[topic_partition] = PartitionReassignmentResult(topic_partition, problem)
            continue
        current = components.context.assignment(topic_partition)
        accepted[topic_partition] = current.reassign_to(current.origin if target is None else target)
    for topic_partition, problem in (yield from _irreversible(components, accepted)).items():
        del accepted[topic_partition]
        results[topic_partition] = PartitionReassignmentResult(topic_partition, problem)
    if validate_only:
        return [results.get(tp) or PartitionReassignmentResult(tp) for tp in asked]
    # The latest request wins, from the API or from the admin node.
    yield from _remove_from_node(components, lambda topic_partition, _: topic_partition in accepted)
    results.update((yield from _trigger(components, accepted)))
    return [results[topic_partition] for topic_partition in asked]


def on_reassignment_node(components: ControllerComponents, only_new: bool = False) -> Flow[set[TopicPartition]]:
    """Start the reassignments in ``/admin/reassign_partitions``, remove invalid entries, and return the partitions.

    With ``only_new``, entries whose reassignment to the same target already runs are skipped.
    """
    (found,) = yield from send([Exists(znodes.REASSIGN_PARTITIONS, watch=True)])
    if found.stat is None:
        return set()
    components.context.reassignment_node_czxid = found.stat.czxid
    wanted = yield from _read_node(components)
    unheard = [topic_partition for topic_partition in wanted if not components.context.knows(topic_partition)]
    if unheard:
        # The topic may be new, with its event still queued: look it up before refusing the entry.
        yield from on_topic_change(components)
        yield from on_partition_modifications(
            components, sorted({topic_partition.topic for topic_partition in unheard})
        )
    accepted = {}
    refused: set[TopicPartition] = set()
    for topic_partition, target in wanted.items():
        if not target:
            LOG.error("reassignment to an empty replica list refused: partition=%s", topic_partition)
            refused.add(topic_partition)
            continue
        running = topic_partition in components.context.being_reassigned
        if only_new and running and components.context.assignment(topic_partition).target == target:
            continue
        accepted[topic_partition] = components.context.assignment(topic_partition).reassign_to(target)
    for topic_partition, problem in (yield from _irreversible(components, accepted)).items():
        LOG.error(
            "reassignment refused: partition=%s target=%s error=%s", topic_partition, wanted[topic_partition], problem
        )
        refused.add(topic_partition)
        del accepted[topic_partition]
    results = yield from _trigger(components, accepted)
    failed = refused | {tp for tp, result in results.items() if result.error is not None}
    if failed or not wanted:
        LOG.warning("invalid entries removed from the reassignment node: partitions=%s", sorted(failed))
        yield from _remove_from_node(components, lambda topic_partition, _: topic_partition in failed)
    return set(results) - failed


def on_reassignment_node_changed(components: ControllerComponents) -> Flow[None]:
    """Watch ``/admin/reassign_partitions`` again; as in Kafka, a change of its data starts no reassignment.

    A node that was re-created since its last read is read again, because the watch fired only for the first change.
    """
    (found,) = yield from send([Exists(znodes.REASSIGN_PARTITIONS, watch=True)])
    if found.stat is not None and found.stat.czxid != components.context.reassignment_node_czxid:
        yield from on_reassignment_node(components, only_new=True)


def resume_reassignments(
    components: ControllerComponents, wanted: Callable[[TopicPartition, ReplicaAssignment], bool]
) -> Flow[None]:
    """Continue running reassignments after an event for which they may have waited."""
    for topic_partition in sorted(components.context.being_reassigned):
        if components.context.is_queued_for_deletion(topic_partition.topic):
            continue
        assignment = components.context.assignment(topic_partition)
        if wanted(topic_partition, assignment):
            yield from _tried(components, topic_partition, assignment)


def complete_finished_reassignments(components: ControllerComponents, changed: Iterable[TopicPartition]) -> Flow[None]:
    """Complete the reassignments among ``changed`` whose whole target is in sync."""
    for topic_partition in sorted(changed):
        if (
            topic_partition not in components.context.being_reassigned
            or topic_partition in components.context.halted_moves
        ):
            continue
        if components.context.is_queued_for_deletion(topic_partition.topic):
            continue
        assignment = components.context.assignment(topic_partition)
        complete = yield from _is_complete(components, topic_partition, assignment)
        if complete:
            yield from _tried(components, topic_partition, assignment)


def _problem(
    components: ControllerComponents, topic_partition: TopicPartition, target: Sequence[int] | None
) -> PacelineError | None:
    """Return the error that refuses a target (None for a cancellation), or None if the target is accepted."""
    if not components.context.knows(topic_partition) or components.context.is_queued_for_deletion(
        topic_partition.topic
    ):
        return _unknown(components, topic_partition)
    if target is None:
        if components.context.assignment(topic_partition).is_being_reassigned:
            return None
        return NoReassignmentInProgressError(f"no reassignment of {topic_partition} is running")
    if not target:
        return InvalidReplicaAssignmentError("the list of replicas is empty")
    if len(set(target)) != len(target):
        return InvalidReplicaAssignmentError(f"a broker is listed twice: {list(target)}")
    if min(target) < 0:
        return InvalidReplicaAssignmentError(f"a broker id is negative: {list(target)}")
    adding = components.context.assignment(topic_partition).reassign_to(target).adding
    missing = [broker_id for broker_id in adding if not components.context.is_live(broker_id)]
    if missing:
        return InvalidReplicaAssignmentError(f"replicas cannot be added on brokers that are not live: {missing}")
    return None


def _unknown(components: ControllerComponents, topic_partition: TopicPartition) -> UnknownTopicOrPartitionError:
    if not components.context.knows(topic_partition):
        return UnknownTopicOrPartitionError(f"{topic_partition} does not exist")
    return UnknownTopicOrPartitionError(f"topic {topic_partition.topic} is being deleted")


def _irreversible(
    components: ControllerComponents, accepted: Mapping[TopicPartition, ReplicaAssignment]
) -> Flow[dict[TopicPartition, PacelineError]]:
    """Return errors of cancellations and replacements that would delete every in-sync replica at once.

    The target's replicas may be the only in-sync replicas; KRaft's PartitionReassignmentRevert has the same check.
    """
    dropping = [
        topic_partition
        for topic_partition, assignment in accepted.items()
        if not set(components.context.assignment(topic_partition).replicas) <= set(assignment.replicas)
    ]
    states = yield from components.store.partition_states(dropping)
    return {
        topic_partition: _deletes_all_in_sync(state)
        for topic_partition, state in states.items()
        if not set(state.isr) & set(accepted[topic_partition].replicas)
    }


def _deletes_all_in_sync(state: LeaderAndIsr) -> InvalidReplicaAssignmentError:
    return InvalidReplicaAssignmentError(f"this would delete all in-sync replicas {list(state.isr)}")


def _trigger(
    components: ControllerComponents, accepted: Mapping[TopicPartition, ReplicaAssignment]
) -> Flow[dict[TopicPartition, PartitionReassignmentResult]]:
    results = {}
    for topic_partition, assignment in accepted.items():
        error: PacelineError | None = None
        if not components.context.knows(topic_partition) or components.context.is_queued_for_deletion(
            topic_partition.topic
        ):
            error = _unknown(components, topic_partition)
        else:
            error = yield from _tried(components, topic_partition, assignment)
        results[topic_partition] = PartitionReassignmentResult(topic_partition, error)
    return results


def _tried(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment
) -> Flow[PacelineError | None]:
    """Reassign a partition and return the error, so that damaged nodes of one partition do not block the others."""
    try:
        yield from _reassign(components, topic_partition, assignment)
    except (ControllerMovedError, IllegalStateError):
        raise
    except UnexpectedResponseError as failure:
        LOG.error("reassignment failed: partition=%s error=%s", topic_partition, failure)
        return UnknownServerError(str(failure))
    except InvalidReplicaAssignmentError as refusal:
        return refusal
    except Exception as failure:
        LOG.exception("reassignment failed: partition=%s", topic_partition)
        return UnknownServerError(str(failure))
    return None


# the phases


def _reassign(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment
) -> Flow[None]:
    before = components.context.leadership.get(topic_partition)
    raised = yield from _update_assignment(components, topic_partition, assignment)
    if _never_led(components, topic_partition):
        # The partition has no data yet, and a target replica may be the first that can lead it.
        yield from _begin_replicas(components, topic_partition, assignment)
        yield from components.partitions.handle_state_changes(
            [topic_partition], PartitionState.ONLINE, ElectionStrategy.OFFLINE
        )
    complete = yield from _is_complete(components, topic_partition, assignment)
    if complete:
        yield from _finish(components, topic_partition, assignment, raised)
    else:
        yield from _start(components, topic_partition, assignment, raised)
        if before is not None and before.has_leader:
            yield from _elect_if_leaderless(components, topic_partition)  # A replaced target may have had the leader.


def _never_led(components: ControllerComponents, topic_partition: TopicPartition) -> bool:
    context = components.context
    is_new = context.partition_state(topic_partition) is PartitionState.NEW
    return is_new and topic_partition not in context.leadership


def _update_assignment(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment
) -> Flow[bool]:
    """Write the topic's node, then update memory; stop and delete replicas of a replaced target at once.

    Returns whether the leader epoch was raised for this.

    Source: docs/protocol/controller.md#topic-node-before-memory.
    """
    context = components.context
    raised = False
    current = context.assignment(topic_partition)
    if current != assignment:
        unneeded = [broker_id for broker_id in current.replicas if broker_id not in assignment.replicas]
        if unneeded and topic_partition in context.leadership:
            # The leader may be adding such a replica to the ISR now; the ISR would then have a deleted replica. The new
            # epoch makes the leader's ISR writes fail until the leader receives it with the new list of replicas.
            state = yield from _raised(components, topic_partition)
            raised = True
            if not set(state.isr) & set(assignment.replicas):
                # The leader has removed ISR members since the check. After the epoch change it cannot do so again.
                yield from _bump_leader_epoch(components, topic_partition, current, raised)
                raise _deletes_all_in_sync(state)
        try:
            yield from _write_topic(components, topic_partition, assignment)
        except UnexpectedResponseError:
            if raised:
                yield from _bump_leader_epoch(
                    components, topic_partition, current, raised
                )  # Without the new zk_version the leader could not write the ISR.
            raise
        context.set_assignment(topic_partition, assignment)
        moving = f"{list(assignment.origin)} to {list(assignment.target)}"
        components.log.note(
            StateChangeKind.REASSIGNMENT,
            cause=moving,
            topic_partition=topic_partition,
            origin_replicas=tuple(assignment.origin),
            target_replicas=tuple(assignment.target),
        )
        yield from _stop_replicas(components, topic_partition, unneeded)
    context.being_reassigned.add(topic_partition)
    return raised


def _is_complete(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment
) -> Flow[bool]:
    """Whether the whole target is in the ISR in ZooKeeper; sets the watch on the state node."""
    found = yield from components.store.partition_states([topic_partition], watch=True)
    if not assignment.is_being_reassigned:
        return True
    state = found.get(topic_partition)
    known = components.context.leadership.get(topic_partition)
    if state != known:
        # The leader has written the state since this event read it; an election without a candidate must read it again.
        components.context.seen_in_event.discard(topic_partition)
        if state is not None and known is not None and known.controller_epoch > components.context.epoch:
            components.context.remember(topic_partition, state)  # The cached state is out of date.
    return state is not None and set(assignment.target) <= set(state.isr)


def _start(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment, raised: bool
) -> Flow[None]:
    """Send a new leader epoch to all replicas unless the partition never had a leader; start the added replicas."""
    if not _never_led(components, topic_partition):
        yield from _bump_leader_epoch(components, topic_partition, assignment, raised)
    yield from _begin_replicas(components, topic_partition, assignment)


def _begin_replicas(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment
) -> Flow[None]:
    """Move added replicas that do not exist yet to NewReplica."""
    for replica in [Replica(topic_partition, broker_id) for broker_id in assignment.adding]:
        if components.context.replica_state(replica) is ReplicaState.NON_EXISTENT:
            yield from components.replicas.handle_state_changes([replica], ReplicaState.NEW)


def _finish(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment, raised: bool
) -> Flow[None]:
    """Move leadership into the target, remove the other replicas, and write the topic's node last."""
    context = components.context
    added = [Replica(topic_partition, broker_id) for broker_id in assignment.adding]
    yield from components.replicas.handle_state_changes(added, ReplicaState.ONLINE)
    completed = ReplicaAssignment(assignment.target)
    context.set_assignment(topic_partition, completed)
    try:
        yield from _move_leader(components, topic_partition, completed, raised and not assignment.removing)
        left = yield from _target_has_left_isr(components, topic_partition, assignment)
        if left:
            context.set_assignment(topic_partition, assignment)
            return  # The watch set by the check fires on the next change.
        yield from _stop_replicas(components, topic_partition, assignment.removing)
        yield from _elect_if_leaderless(components, topic_partition)
        yield from _write_topic(components, topic_partition, completed)
    except Exception:
        # The topic's node still has the reassignment, so memory must too: the replicas to remove must be stopped later.
        context.set_assignment(topic_partition, assignment)
        _try_again_later(components, topic_partition)
        raise
    context.being_reassigned.discard(topic_partition)
    done = f"done, {list(completed.replicas)}"
    components.log.note(
        StateChangeKind.REASSIGNMENT,
        cause=done,
        topic_partition=topic_partition,
        target_replicas=tuple(completed.replicas),
    )
    yield from _remove_from_node(components, lambda tp, target: tp == topic_partition and target == completed.replicas)
    components.send_update_metadata(context.brokers, [topic_partition])


def _target_has_left_isr(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment
) -> Flow[bool]:
    """Whether the old leader has since removed all target replicas from the ISR: then no replica may be removed.

    The old leader stayed leader because no target replica could be elected; its later ISR writes fail.
    """
    known = components.context.leadership.get(topic_partition)
    if known is None or not known.has_leader or known.leader in assignment.target:
        return False
    state = yield from _raised(components, topic_partition)
    if set(state.isr) & set(assignment.target):
        return False
    LOG.warning("reassignment waits, its target left the ISR: partition=%s state=%s", topic_partition, state)
    yield from _bump_leader_epoch(components, topic_partition, assignment, raised=True)
    return True


def _try_again_later(components: ControllerComponents, topic_partition: TopicPartition) -> None:
    """Retry the completion after a pause.

    An immediate retry would loop, because the attempt's writes fire its watch.
    """

    def again() -> None:
        components.context.halted_moves.discard(topic_partition)
        components.enqueue(PartitionReassignmentIsrChange(topic_partition))

    if topic_partition not in components.context.halted_moves:
        components.context.halted_moves.add(topic_partition)
        components.scheduler.call_later(RETRY_MS, again)


def _move_leader(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment, raised: bool
) -> Flow[None]:
    known = components.context.leadership.get(topic_partition)
    stays = (
        known is not None
        and known.leader in assignment.replicas
        and components.context.is_replica_online(known.leader, topic_partition)
    )
    if stays:
        yield from _bump_leader_epoch(components, topic_partition, assignment, raised)
    else:
        yield from components.partitions.handle_state_changes(
            [topic_partition], PartitionState.ONLINE, ElectionStrategy.REASSIGN
        )


def _elect_if_leaderless(components: ControllerComponents, topic_partition: TopicPartition) -> Flow[None]:
    """Elect a leader if no replica could lead when the old leader was removed; the partition counts as offline."""
    known = components.context.leadership.get(topic_partition)
    if known is None or known.has_leader:
        return
    yield from components.partitions.handle_state_changes([topic_partition], PartitionState.OFFLINE)
    yield from components.partitions.handle_state_changes(
        [topic_partition], PartitionState.ONLINE, ElectionStrategy.OFFLINE
    )


def _bump_leader_epoch(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment, raised: bool
) -> Flow[None]:
    """Raise the leader epoch without other changes and send it to every replica; added replicas are marked new.

    If this reassignment has already ``raised`` the epoch, for all of its replicas, the epoch is sent unchanged.

    Source: docs/protocol/controller.md#new-replica-flag.
    """
    known = components.context.leadership.get(topic_partition)
    state = known if raised and known is not None else (yield from _raised(components, topic_partition))
    components.batch.new_batch()
    components.batch.add_leader_and_isr(assignment.origin, topic_partition, state, assignment, is_new=False)
    components.batch.add_leader_and_isr(assignment.adding, topic_partition, state, assignment, is_new=True)
    components.batch.send()


def _raised(components: ControllerComponents, topic_partition: TopicPartition) -> Flow[LeaderAndIsr]:
    context = components.context
    while True:
        known = context.leadership.get(topic_partition)
        if known is None or known.controller_epoch > context.epoch:
            raise UnexpectedResponseError(ZkCode.NO_NODE, f"raise the leader epoch of {topic_partition} from {known}")
        raised = known.with_leader(known.leader, known.isr, context.epoch)
        outcome = yield from components.writer.commit([StateWrite(topic_partition, raised)], 1)
        written = outcome.written.get(topic_partition)
        if written is not None:
            context.remember(topic_partition, written)
            return written
        if topic_partition in outcome.refused:
            code = outcome.refused[topic_partition]
            raise UnexpectedResponseError(code, f"raise the leader epoch of {topic_partition}")
        found = outcome.conflicted[topic_partition]
        if found is None:
            context.forget_leadership(topic_partition)
        else:
            context.remember(topic_partition, found)


def _stop_replicas(
    components: ControllerComponents, topic_partition: TopicPartition, broker_ids: Sequence[int]
) -> Flow[None]:
    """Remove replicas from the ISR, stop and delete them, and forget them, without waiting for the brokers."""
    replicas = [Replica(topic_partition, broker_id) for broker_id in broker_ids]
    replicas = [one for one in replicas if components.context.replica_state(one) is not ReplicaState.NON_EXISTENT]
    for target in (
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_STARTED,
        ReplicaState.DELETION_SUCCESSFUL,
        ReplicaState.NON_EXISTENT,
    ):
        yield from components.replicas.handle_state_changes(replicas, target)


# nodes


def _write_topic(
    components: ControllerComponents, topic_partition: TopicPartition, assignment: ReplicaAssignment
) -> Flow[None]:
    """Write a partition's assignment into the topic's node; keeps partitions that this controller does not know yet."""
    topic = topic_partition.topic
    path, topic_id = znodes.topic_path(topic), components.context.topic_ids.get(topic)
    for _ in range(WRITE_ATTEMPTS):
        (found,) = yield from components.store.read_all([path])
        added = _unknown_partitions(components, topic, path, found)
        partitions = {**added, **components.context.topics[topic], topic_partition.partition: assignment}
        version = ANY_VERSION if found.stat is None else found.stat.version
        # Check the state node, too: a re-created topic may have the node version of the deleted topic, but no state.
        state = (
            [znodes.partition_state_path(topic_partition)] if topic_partition in components.context.leadership else []
        )
        try:
            yield from components.store.write_topic(topic, topic_id, partitions, version, state)
            return
        except UnexpectedResponseError as failure:
            if failure.code is not ZkCode.BAD_VERSION:
                raise
    raise UnexpectedResponseError(ZkCode.BAD_VERSION, f"set {path}")


def _unknown_partitions(
    components: ControllerComponents, topic: str, path: str, found: Response
) -> Mapping[int, ReplicaAssignment]:
    """Return partitions that another tool has added and whose event may still be queued."""
    if not found.ok:
        return {}
    try:
        node = znodes.decode_topic_assignment(path, found.data)
    except MalformedZnodeError:
        return {}
    known_id = components.context.topic_ids.get(topic)
    if known_id and node.topic_id and node.topic_id != known_id:
        raise UnexpectedResponseError(ZkCode.NO_NODE, f"set {path}, which belongs to a re-created topic,")
    known = components.context.topics[topic]
    return {partition: node.partitions[partition] for partition in node.partitions if partition not in known}


def _read_node(components: ControllerComponents) -> Flow[dict[TopicPartition, tuple[int, ...]]]:
    """Read the admin node; a node that cannot be parsed counts as empty, as in Kafka."""
    path = znodes.REASSIGN_PARTITIONS
    (response,) = yield from components.store.read_all([path])
    if not response.ok:
        return {}
    try:
        return znodes.decode_reassignment(path, response.data)
    except MalformedZnodeError as error:
        LOG.warning("malformed reassignment request ignored: error=%s", error)
        return {}


def _remove_from_node(
    components: ControllerComponents, unwanted: Callable[[TopicPartition, tuple[int, ...]], bool]
) -> Flow[None]:
    """Remove entries from the admin node; deletes the node with the last entry, and sets its watch again."""
    path = znodes.REASSIGN_PARTITIONS
    (response,) = yield from components.store.read_all([path])
    if not response.ok:
        return
    wanted = yield from _read_node(components)
    left = {tp: target for tp, target in wanted.items() if not unwanted(tp, target)}
    if left and left == wanted:
        return
    if not left:
        yield from components.store.delete_fenced([path])
        components.enqueue(PartitionReassignmentFromNode())
        return
    rewrite = components.store.fenced(SetData(path, znodes.encode_reassignment(left)))
    (response,) = yield from components.store.send_fenced([rewrite])
    if not response.ok and first_failure(response)[1] is not ZkCode.NO_NODE:
        raise UnexpectedResponseError(first_failure(response)[1], f"rewrite {path}")
