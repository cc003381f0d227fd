"""Move partitions to other brokers.

Source: docs/protocol/controller.md#reassignment-steps; KIP-455; Kafka 2.8
KafkaController.onPartitionReassignment.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.controller.admin.admin_values import RequestedReassignment
from paceline.controller.context import ControllerContext
from paceline.controller.errors import ControllerMovedError, IllegalStateError, UnexpectedResponseError
from paceline.controller.reassignment.reassignment_node import ReassignmentNode
from paceline.controller.reassignment.reassignment_steps import ReassignmentSteps, deletes_all_in_sync
from paceline.controller.topics.topic_changes import TopicChanges
from paceline.controller.zk_store import ZkStore, send
from paceline.coordination import znodes
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Exists
from paceline.model.admin import ReassignmentResult
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

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reassignments:
    """Accepts reassignments, and continues those that run."""

    context: ControllerContext
    store: ZkStore
    node: ReassignmentNode
    steps: ReassignmentSteps
    topic_changes: TopicChanges

    def alter_reassignments(
        self, requested: Sequence[RequestedReassignment], validate_only: bool = False
    ) -> Flow[list[ReassignmentResult]]:
        """Start, replace or, with None, cancel reassignments; return when they are submitted, not complete."""
        asked = [one.topic_partition for one in requested]
        times = Counter(asked)
        targets = {one.topic_partition: one.target for one in requested if times[one.topic_partition] == 1}
        results = {
            tp: ReassignmentResult(tp, InvalidRequestError(f"{tp} is listed more than once"))
            for tp in asked
            if times[tp] > 1
        }
        accepted: dict[TopicPartition, ReplicaAssignment] = {}
        for topic_partition, target in targets.items():
            problem = _problem(self.context, topic_partition, target)
            if problem is not None:
                results[topic_partition] = ReassignmentResult(topic_partition, problem)
                continue
            current = self.context.assignment(topic_partition)
            accepted[topic_partition] = current.reassign_to(current.origin if target is None else target)
        for topic_partition, problem in (yield from self._irreversible(accepted)).items():
            del accepted[topic_partition]
            results[topic_partition] = ReassignmentResult(topic_partition, problem)
        if validate_only:
            return [results.get(tp) or ReassignmentResult(tp) for tp in asked]
        # The latest request wins, from the API or from the admin node.
        yield from self.node.remove(lambda topic_partition, _: topic_partition in accepted)
        results.update((yield from self._trigger(accepted)))
        return [results[topic_partition] for topic_partition in asked]

    def on_reassignment_node(self, only_new: bool = False) -> Flow[set[TopicPartition]]:
        """Start the reassignments in ``/admin/reassign_partitions``, remove invalid entries, and return the partitions.

        With ``only_new``, entries whose reassignment to the same target already runs are skipped.
        """
        (found,) = yield from send([Exists(znodes.REASSIGN_PARTITIONS, watch=True)])
        if found.stat is None:
            return set()
        self.context.reassignment_node_czxid = found.stat.czxid
        wanted = yield from self.node.read()
        unheard = [topic_partition for topic_partition in wanted if not self.context.knows(topic_partition)]
        if unheard:
            # The topic may be new, with its event still queued: look it up before refusing the entry.
            yield from self.topic_changes.on_topic_change()
            yield from self.topic_changes.on_partition_modifications(
                sorted({topic_partition.topic for topic_partition in unheard})
            )
        accepted = {}
        refused: set[TopicPartition] = set()
        for topic_partition, target in wanted.items():
            if not target:
                LOG.error("reassignment to an empty replica list refused: partition=%s", topic_partition)
                refused.add(topic_partition)
                continue
            running = topic_partition in self.context.being_reassigned
            if only_new and running and self.context.assignment(topic_partition).target == target:
                continue
            accepted[topic_partition] = self.context.assignment(topic_partition).reassign_to(target)
        for topic_partition, problem in (yield from self._irreversible(accepted)).items():
            LOG.error(
                "reassignment refused: partition=%s target=%s error=%s",
                topic_partition,
                wanted[topic_partition],
                problem,
            )
            refused.add(topic_partition)
            del accepted[topic_partition]
        results = yield from self._trigger(accepted)
        failed = refused | {tp for tp, result in results.items() if result.error is not None}
        if failed or not wanted:
            LOG.warning("invalid entries removed from the reassignment node: partitions=%s", sorted(failed))
            yield from self.node.remove(lambda topic_partition, _: topic_partition in failed)
        return set(results) - failed

    def on_reassignment_node_changed(self) -> Flow[None]:
        """Watch ``/admin/reassign_partitions`` again; as in Kafka, a change of its data starts no reassignment.

        A node that was re-created since its last read is read again, because the watch fired only for the first change.
        """
        (found,) = yield from send([Exists(znodes.REASSIGN_PARTITIONS, watch=True)])
        if found.stat is not None and found.stat.czxid != self.context.reassignment_node_czxid:
            yield from self.on_reassignment_node(only_new=True)

    def resume_reassignments(self, wanted: Callable[[TopicPartition, ReplicaAssignment], bool]) -> Flow[None]:
        """Continue running reassignments after an event for which they may have waited."""
        for topic_partition in sorted(self.context.being_reassigned):
            if self.context.is_queued_for_deletion(topic_partition.topic):
                continue
            assignment = self.context.assignment(topic_partition)
            if wanted(topic_partition, assignment):
                yield from self._tried(topic_partition, assignment)

    def complete_finished_reassignments(self, changed: Iterable[TopicPartition]) -> Flow[None]:
        """Complete the reassignments among ``changed`` whose whole target is in sync."""
        for topic_partition in sorted(changed):
            if topic_partition not in self.context.being_reassigned or topic_partition in self.context.halted_moves:
                continue
            if self.context.is_queued_for_deletion(topic_partition.topic):
                continue
            assignment = self.context.assignment(topic_partition)
            complete = yield from self.steps.check_complete(topic_partition, assignment)
            if complete:
                yield from self._tried(topic_partition, assignment)

    def _irreversible(
        self, accepted: Mapping[TopicPartition, ReplicaAssignment]
    ) -> Flow[dict[TopicPartition, PacelineError]]:
        """Return errors of cancellations and replacements that would delete every in-sync replica at once.

        The target's replicas may be the only in-sync replicas; KRaft's PartitionReassignmentRevert has the same check.
        """
        dropping = [
            topic_partition
            for topic_partition, assignment in accepted.items()
            if not set(self.context.assignment(topic_partition).replicas) <= set(assignment.replicas)
        ]
        states = yield from self.store.partition_states(dropping)
        return {
            topic_partition: deletes_all_in_sync(state)
            for topic_partition, state in states.items()
            if not set(state.isr) & set(accepted[topic_partition].replicas)
        }

    def _trigger(
        self, accepted: Mapping[TopicPartition, ReplicaAssignment]
    ) -> Flow[dict[TopicPartition, ReassignmentResult]]:
        results = {}
        for topic_partition, assignment in accepted.items():
            error: PacelineError | None = None
            if not self.context.knows(topic_partition) or self.context.is_queued_for_deletion(topic_partition.topic):
                error = _unknown(self.context, topic_partition)
            else:
                error = yield from self._tried(topic_partition, assignment)
            results[topic_partition] = ReassignmentResult(topic_partition, error)
        return results

    def _tried(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> Flow[PacelineError | None]:
        """Reassign a partition and return the error, so that damaged nodes of one partition do not block the others."""
        try:
            yield from self.steps.reassign(topic_partition, assignment)
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


def _problem(
    context: ControllerContext, topic_partition: TopicPartition, target: Sequence[int] | None
) -> PacelineError | None:
    """Return the error that refuses a target (None for a cancellation), or None if the target is accepted."""
    if not context.knows(topic_partition) or context.is_queued_for_deletion(topic_partition.topic):
        return _unknown(context, topic_partition)
    if target is None:
        if context.assignment(topic_partition).is_being_reassigned:
            return None
        return NoReassignmentInProgressError(f"no reassignment of {topic_partition} is running")
    if not target:
        return InvalidReplicaAssignmentError("the list of replicas is empty")
    if len(set(target)) != len(target):
        return InvalidReplicaAssignmentError(f"a broker is listed twice: {list(target)}")
    if min(target) < 0:
        return InvalidReplicaAssignmentError(f"a broker id is negative: {list(target)}")
    adding = context.assignment(topic_partition).reassign_to(target).adding
    missing = [broker_id for broker_id in adding if not context.is_live(broker_id)]
    if missing:
        return InvalidReplicaAssignmentError(f"replicas cannot be added on brokers that are not live: {missing}")
    return None


def _unknown(context: ControllerContext, topic_partition: TopicPartition) -> UnknownTopicOrPartitionError:
    if not context.knows(topic_partition):
        return UnknownTopicOrPartitionError(f"{topic_partition} does not exist")
    return UnknownTopicOrPartitionError(f"topic {topic_partition.topic} is being deleted")
