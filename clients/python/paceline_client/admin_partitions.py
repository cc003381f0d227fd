"""The part of `Admin` for partitions: adding partitions, reassignments, elections."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from paceline.model.admin import ElectionResult, NewPartitions, NewPartitionsResult, ReassignmentResult
from paceline.model.errors import ElectionNotNeededError, InvalidRequestError
from paceline.model.identifiers import TopicPartition
from paceline.rpc.convert.common import value_of
from paceline.v1 import admin_service_pb2 as pb
from paceline_client.admin_connection import AdminConnection, checked, error_in
from paceline_client.errors import sendable

ElectionType = Literal["preferred", "unclean"]

_ELECTIONS: Final = {"preferred": pb.ELECTION_TYPE_PREFERRED, "unclean": pb.ELECTION_TYPE_UNCLEAN}
_REASON_PREFIX: Final = "AWAITED_REASON_"


@dataclass(frozen=True, slots=True)
class AwaitedReplica:
    """A replica that a reassignment waits for."""

    broker_id: int
    reason: str
    """``NOT_CAUGHT_UP``, ``BROKER_DEAD``, ``BROKER_SHUTTING_DOWN``, ``LOG_DIR_FAILED`` or ``NO_LEADER``."""
    message: str


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition with a running reassignment."""

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
    """Target replicas first, then the replicas to be removed."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    waiting_for: tuple[AwaitedReplica, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """Target replicas."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def is_stuck(self) -> bool:
        """Whether the reassignment waits for a condition that needs an operator, such as a dead broker."""
        return any(replica.reason != "NOT_CAUGHT_UP" for replica in self.waiting_for)


class PartitionAdmin(AdminConnection):
    """Partitions, reassignments and elections; use `Admin`."""

    def create_partitions(
        self,
        topics: Iterable[NewPartitions] | Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> list[NewPartitionsResult]:
        """Add partitions to topics; returns when each new partition has a leader.

        Adding partitions changes the mapping of keys to partitions.

        Args:
            topics: `NewPartitions`, or ``{name: new number of partitions}``.
            validate_only: check without changing anything.
            timeout_ms: longest wait; a timeout does not undo the change, and the creation of the partitions continues.
            raise_errors: raise the first topic's error; False returns errors in the results.

        Raises:
            InvalidPartitionsError: the topic already has ``count`` partitions or more.
            ReassignmentInProgressError: a partition of the topic is being reassigned.
            UnknownTopicOrPartitionError, InvalidTopicError, InvalidReplicaAssignmentError,
            InvalidReplicationFactorError: the topic was refused.
            RequestTimedOutError: a new partition had no leader in time.
        """
        wanted = (
            [NewPartitions(topic, count) for topic, count in topics.items()]
            if isinstance(topics, Mapping)
            else list(topics)
        )
        with sendable():
            request = pb.CreatePartitionsRequest(
                topics=[
                    pb.NewPartitions(
                        name=each.topic,
                        count=each.count,
                        assignments=[pb.ReplicaAssignment(broker_ids=ids) for ids in each.assignments],
                    )
                    for each in wanted
                ],
                validate_only=validate_only,
            )
        answered = self._change_topics("CreatePartitions", request, timeout_ms)
        results = [
            NewPartitionsResult(
                each.name,
                error_in(each),
                each.first_partition,
                tuple(tuple(assigned.broker_ids) for assigned in each.assignments),
            )
            for each in answered
        ]
        return checked(results, raise_errors)

    def alter_partition_reassignments(
        self,
        targets: Mapping[tuple[str, int], Sequence[int] | None],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> list[ReassignmentResult]:
        """Start or cancel reassignments; returns when they are accepted, not when they are complete.

        Args:
            targets: target brokers per ``(topic, partition)``, the preferred leader first; None cancels.
            validate_only: check without changing anything.
            timeout_ms: longest wait.
            raise_errors: raise the first partition's error; False returns errors in the results.

        Raises:
            InvalidReplicaAssignmentError: the target is not possible, or a cancellation would lose records.
            NoReassignmentInProgressError: there is no reassignment to cancel.
            UnknownTopicOrPartitionError: the partition does not exist.
        """
        with sendable():
            request = pb.AlterPartitionReassignmentsRequest(
                partitions=[
                    pb.PartitionReassignment(
                        topic=topic,
                        partition=partition,
                        target=None if target is None else pb.ReplicaAssignment(broker_ids=target),
                    )
                    for (topic, partition), target in targets.items()
                ],
                validate_only=validate_only,
            )
        answer = self._change("AlterPartitionReassignments", request, timeout_ms)
        results = [value_of(ReassignmentResult, each, error=error_in(each)) for each in answer.partitions]
        return checked(results, raise_errors)

    def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_ms: int | None = None
    ) -> list[Reassignment]:
        """Return running reassignments and their awaited replicas, by partition; None means all partitions."""
        named = None if partitions is None else _wire_partitions(partitions)
        if named == []:
            return []
        with sendable():
            request = pb.ListPartitionReassignmentsRequest(partitions=named or [])
        answer = self._list("ListPartitionReassignments", request, timeout_ms, "reassignments")
        return [_reassignment(each) for each in answer.reassignments]

    def elect_leaders(
        self,
        election: ElectionType,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        raise_errors: bool = True,
    ) -> list[ElectionResult]:
        """Elect leaders; returns when each leader has acknowledged.

        Args:
            election: ``"preferred"``: the first assigned replica; no record is lost. ``"unclean"``: an online replica,
                even outside the ISR; records that it has not copied are lost permanently.
            partitions: ``(topic, partition)`` pairs; None means every partition that needs the election.
            validate_only: return the leaders that would be elected, without electing them.
            timeout_ms: longest wait; an election stays in effect even if the leader has not acknowledged by then.
            raise_errors: raise the first partition's error, except `ElectionNotNeededError`; False returns errors in
                the results.

        Raises:
            PreferredLeaderNotAvailableError: the preferred replica is not online or not in sync.
            EligibleLeadersNotAvailableError: no replica is online.
            UnknownTopicOrPartitionError: the partition does not exist.
            RequestTimedOutError: a leader has not acknowledged in time.
        """
        if election not in _ELECTIONS:
            raise InvalidRequestError(f"election must be preferred or unclean, not {election!r}")
        named = None if partitions is None else _wire_partitions(partitions)
        if named == []:
            return []
        with sendable():
            request = pb.ElectLeadersRequest(
                type=_ELECTIONS[election], partitions=named or [], validate_only=validate_only
            )
        answer = self._change("ElectLeaders", request, timeout_ms)
        results = [value_of(ElectionResult, each, error=error_in(each)) for each in answer.partitions]
        failed = [each for each in results if not isinstance(each.error, ElectionNotNeededError)]
        checked(failed, raise_errors)
        return results


def _wire_partitions(partitions: Iterable[tuple[str, int]]) -> list[pb.TopicPartition]:
    with sendable():
        return [pb.TopicPartition(topic=topic, partition=partition) for topic, partition in partitions]


def _reassignment(wire: pb.OngoingReassignment) -> Reassignment:
    waiting_for = tuple(
        value_of(AwaitedReplica, each, reason=pb.AwaitedReason.Name(each.reason).removeprefix(_REASON_PREFIX))
        for each in wire.waiting_for
    )
    adding, removing = tuple(wire.adding_replicas), tuple(wire.removing_replicas)
    return value_of(Reassignment, wire, adding=adding, removing=removing, waiting_for=waiting_for)
