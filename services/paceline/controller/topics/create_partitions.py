"""Serve CreatePartitions: add partitions to a topic by rewriting its node.

Source: docs/protocol/zookeeper.md#creating-a-topic; docs/protocol/controller.md#replica-placement; Kafka 2.8
AdminManager.createPartitions and AdminZkClient.addPartitions.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.controller.admin.admin_requests import CreatePartitions
from paceline.controller.channel.leader_ack_waiters import LeaderAckWaiters
from paceline.controller.context import ControllerContext
from paceline.controller.topics.create_delete_topics import MAX_TOPIC_NODE_BYTES
from paceline.controller.topics.placement import place_replicas, start_index_for_added_partitions
from paceline.controller.topics.topic_changes import TopicChanges
from paceline.controller.topics.topic_validation import check_manual_placement
from paceline.controller.zk_store import ZkStore, first_failure
from paceline.coordination import znodes
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.flow import Flow
from paceline.coordination.interface import Response, SetData, ZkCode
from paceline.model.admin import NewPartitions, NewPartitionsResult
from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidUpdateVersionError,
    PacelineError,
    ReassignmentInProgressError,
    RequestTimedOutError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.settings import ControllerConfig

ATTEMPTS = 3
LATE = "not every new leader has acknowledged yet; the creation continues"

Growth = dict[int, ReplicaAssignment]
"""The new partitions of a topic."""


@dataclass(frozen=True, slots=True)
class PartitionCreation:
    """Serves CreatePartitions."""

    config: ControllerConfig
    context: ControllerContext
    store: ZkStore
    rng: random.Random
    ack_waiters: LeaderAckWaiters
    topic_changes: TopicChanges

    def create_partitions(self, event: CreatePartitions) -> Flow[None]:
        """Validate, write the topic nodes, create the partitions; reply after the new leaders have acknowledged."""
        outcomes: dict[str, Growth | PacelineError] = {}
        names = [new.topic for new in event.topics]
        times = Counter(names)
        wanted = {new.topic: new for new in event.topics if times[new.topic] == 1}
        for name in names:
            if name not in wanted:
                outcomes[name] = InvalidRequestError(f"topic {name!r} is listed more than once")
        yield from self._write_all(wanted, event.validate_only, outcomes)
        grown = {name: growth for name, growth in outcomes.items() if not isinstance(growth, PacelineError)}
        if grown and not event.validate_only:
            # Do not wait for the watch: a queued reassignment rewrites the node from memory, which must then have the
            # new partitions.
            yield from self.topic_changes.on_partition_modifications(sorted(grown))

        def answer(late: Mapping[TopicPartition, PacelineError]) -> None:
            errors = {topic_partition.topic: error for topic_partition, error in late.items()}
            event.reply([_result(name, outcomes[name], errors.get(name)) for name in names])

        waited_for = (
            {} if event.validate_only else {TopicPartition(t, p): 0 for t, growth in grown.items() for p in growth}
        )
        self.ack_waiters.wait(waited_for, event.timeout_ms, LATE, answer)

    def _write_all(
        self, wanted: Mapping[str, NewPartitions], validate_only: bool, outcomes: dict[str, Growth | PacelineError]
    ) -> Flow[None]:
        """Read each topic node, add the partitions and write on condition of the version; retry after another write."""
        remaining = list(wanted)
        tried: dict[str, tuple[bytes, Growth]] = {}
        budget = self.config.max_partitions_per_request
        for _ in range(ATTEMPTS):
            if not remaining:
                return
            responses = yield from self.store.read_all([znodes.topic_path(name) for name in remaining])
            writes: dict[str, SetData] = {}
            for name, response in zip(remaining, responses, strict=True):
                if name in tried and response.ok and response.data == tried[name][0]:
                    outcomes[name] = tried[name][1]  # Written by the earlier attempt, whose answer was lost.
                    continue
                try:
                    node, version = _node(self.context, name, response)
                    outcomes[name] = growth = self._growth(wanted[name], node, budget)
                    data = _grown(node, growth)
                except PacelineError as error:
                    outcomes[name] = error
                    continue
                budget -= len(growth)
                tried[name] = (data, growth)
                writes[name] = SetData(znodes.topic_path(name), data, version)
            remaining = []
            if validate_only or not writes:
                return
            answers = yield from self.store.send_fenced([self.store.fenced(write) for write in writes.values()])
            for name, response in zip(writes, answers, strict=True):
                if response.ok:
                    continue
                budget += len(tried[name][1])
                code = first_failure(response)[1]
                if code not in (ZkCode.BAD_VERSION, ZkCode.NO_NODE):
                    outcomes[name] = UnknownServerError(f"ZooKeeper refused to grow topic {name!r}: {code.name}")
                    continue
                remaining.append(name)
                # The node is not read back after the last attempt, so the result of a write in doubt stays unknown.
                kind = RequestTimedOutError if response.in_doubt_before else InvalidUpdateVersionError
                outcomes[name] = kind(f"the node of topic {name!r} keeps changing")

    def _growth(self, new: NewPartitions, node: znodes.TopicAssignment, budget: int) -> Growth:
        present = node.partitions
        moving = [p for p in sorted(present) if present[p].is_being_reassigned]
        if moving or any(tp in self.context.being_reassigned for tp in self.context.partitions_of(new.topic)):
            raise ReassignmentInProgressError(f"a partition of topic {new.topic!r} is being reassigned")
        if 0 not in present:
            raise InvalidTopicError(f"topic {new.topic!r} has no partition 0 to take the number of replicas from")
        first = max(present) + 1
        added = new.count - first
        if added <= 0:
            raise InvalidPartitionsError(
                f"topic {new.topic!r} has {first} partitions already, not fewer than {new.count}"
            )
        if added > budget:
            raise InvalidPartitionsError(f"more than {self.config.max_partitions_per_request} partitions at once")
        if new.assignments:
            rows: Mapping[int, Sequence[int]] = dict(enumerate(_manual(self.context, new, added, present[0]), first))
        else:
            rows = self._automatic(first, added, present[0])
        return {partition: ReplicaAssignment(tuple(replicas)) for partition, replicas in rows.items()}

    def _automatic(self, first: int, added: int, like: ReplicaAssignment) -> Mapping[int, tuple[int, ...]]:
        live = self.context.placeable_broker_ids()
        if len(like.replicas) > len(live):
            raise InvalidReplicationFactorError(
                f"{len(like.replicas)} replicas are needed, {len(live)} brokers are available"
            )
        racks = {broker_id: self.context.brokers[broker_id].rack for broker_id in live}
        start = start_index_for_added_partitions(live, like.replicas[0])
        return place_replicas(racks, added, len(like.replicas), self.rng, start, first)


def _result(name: str, outcome: Growth | PacelineError, late: PacelineError | None) -> NewPartitionsResult:
    if isinstance(outcome, PacelineError):
        return NewPartitionsResult(name, outcome)
    rows = tuple(outcome[partition].replicas for partition in sorted(outcome))
    return NewPartitionsResult(name, late, min(outcome), rows)


def _node(context: ControllerContext, name: str, response: Response) -> tuple[znodes.TopicAssignment, int]:
    if name not in context.topics or not response.ok or response.stat is None:
        raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
    if context.is_queued_for_deletion(name):
        raise InvalidTopicError(f"topic {name!r} is being deleted")
    try:
        return znodes.decode_topic_assignment(znodes.topic_path(name), response.data), response.stat.version
    except MalformedZnodeError as error:
        raise InvalidTopicError(str(error)) from None


def _manual(
    context: ControllerContext, new: NewPartitions, added: int, like: ReplicaAssignment
) -> Sequence[tuple[int, ...]]:
    if len(new.assignments) != added:
        raise InvalidReplicaAssignmentError(f"{added} partitions are new, {len(new.assignments)} are placed")
    check_manual_placement(new.assignments, context.live_broker_ids())
    if len(new.assignments[0]) != len(like.replicas):
        raise InvalidReplicaAssignmentError(
            f"the other partitions have {len(like.replicas)} replicas, not {len(new.assignments[0])}"
        )
    return [tuple(replicas) for replicas in new.assignments]


def _grown(node: znodes.TopicAssignment, growth: Growth) -> bytes:
    data = znodes.encode_topic_assignment(
        znodes.TopicAssignment({**node.partitions, **growth}, node.topic_id, node.version)
    )
    if len(data) > MAX_TOPIC_NODE_BYTES:
        raise InvalidPartitionsError(f"{len(node.partitions) + len(growth)} partitions do not fit into one topic node")
    return data
