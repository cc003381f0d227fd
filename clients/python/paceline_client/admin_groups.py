"""The calls of `Admin` for consumer groups: list, describe, delete and offsets."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from paceline.model.addresses import address_of
from paceline.model.errors import (
    CoordinatorNotAvailableError,
    ErrorCode,
    PacelineError,
    error_for,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.convert.common import value_of
from paceline.rpc.retry import RetryPolicy, call_with_retry
from paceline.v1.group_service_pb2 import (
    ConsumerAssignment,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupState,
    ListGroupsRequest,
)
from paceline.v1.group_service_pb2_grpc import GroupServiceStub
from paceline_client.admin_connection import (
    ONE_CALL_S,
    AdminConnection,
    checked,
    describe_cluster_once,
    named,
    names_anybody,
    names_in,
)
from paceline_client.errors import sendable
from paceline_client.groups.committed import check_committed, commit_request, fetch_offsets_request, read_committed
from paceline_client.groups.values import OffsetAndMetadata

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the result of `GroupAdmin.list_groups`."""

    group_id: str
    state: str
    """State as named by Kafka's tools, for example "Stable" or "Empty"."""
    protocol_type: str
    member_count: int
    coordinator: int
    """Broker id of the coordinator."""


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group."""

    member_id: str
    group_instance_id: str
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members; the state of a group that does not exist is "Dead"."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    leader: str
    coordinator: int
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Result for one group; ``error`` is None on success."""

    group_id: str
    error: PacelineError | None = None


class GroupAdmin(AdminConnection):
    """Calls for consumer groups; applications use the subclass `Admin`."""

    def list_groups(self, states: Iterable[str] = (), timeout_ms: int | None = None) -> list[GroupListing]:
        """Return the groups of all brokers sorted by name, optionally only groups in these states.

        Raises:
            BootstrapError: no address answered.
            PacelineError: a broker did not answer, or was still loading groups at the deadline.
        """
        request = ListGroupsRequest(states=[_state_number(state) for state in states])

        def once(left_s: float | None) -> list[GroupListing]:
            found = []
            cluster = self._anywhere(describe_cluster_once, timeout_ms, names_anybody)
            for broker in cluster.brokers:
                address = address_of(broker.host, broker.port)
                try:
                    answer = GroupServiceStub(self._channel(address)).ListGroups(
                        request, timeout=min(left_s or ONE_CALL_S, ONE_CALL_S)
                    )
                except grpc.RpcError as failure:
                    raise named(f"broker {broker.id}", failure) from failure
                if answer.loading:
                    raise CoordinatorNotAvailableError(f"broker {broker.id} is loading groups")
                found += [
                    value_of(GroupListing, one, state=_state_name(one.state), coordinator=broker.id)
                    for one in answer.groups
                ]
            return sorted(found, key=lambda one: one.group_id)

        return call_with_retry(RetryPolicy(deadline_ms=self._group_timeout_ms(timeout_ms)), once)

    def describe_groups(self, group_ids: Iterable[str], timeout_ms: int | None = None) -> list[GroupDescription]:
        """Return groups with their members.

        Raises:
            CoordinatorNotAvailableError: a group has no coordinator at the moment.
        """
        return [self._describe_group(group_id, timeout_ms) for group_id in names_in(group_ids)]

    def _describe_group(self, group_id: str, timeout_ms: int | None) -> GroupDescription:
        def call(stub: GroupServiceStub, broker: int, left_s: float) -> GroupDescription:
            (one,) = stub.DescribeGroups(DescribeGroupsRequest(group_ids=[group_id]), timeout=left_s).groups
            if one.HasField("error"):
                raise error_for(one.error.code, f"group {group_id}: {one.error.message}")
            return _described(one, broker)

        return self._on_coordinator(group_id, call, timeout_ms)

    def group_offsets(
        self, group_id: str, timeout_ms: int | None = None, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, by default of all partitions.

        Raises:
            InvalidRequestError: the offsets of all partitions take more than 1 MiB; name a part of the partitions.
            CoordinatorNotAvailableError: the group has no coordinator at the moment.
        """
        wanted = None if partitions is None else [TopicPartition(*one) for one in partitions]
        request = fetch_offsets_request(group_id, wanted)
        if request is None:
            return {}

        def call(stub: GroupServiceStub, _broker: int, left_s: float) -> dict[TopicPartition, OffsetAndMetadata]:
            found = read_committed(stub.FetchOffsets(request, timeout=left_s))
            return {tp: value for tp, value in sorted(found.items()) if value is not None}

        return self._on_coordinator(group_id, call, timeout_ms)

    def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata],
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets for a group without members; the group is created when it does not exist.

        Raises:
            UnknownMemberIdError: the group has members; stop them first.
            PacelineError: the coordinator refused, or did not answer in time.
        """
        checked_offsets = {
            TopicPartition(*tp): value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
            for tp, value in offsets.items()
        }
        request = commit_request(group_id, checked_offsets)
        self._on_coordinator(
            group_id,
            lambda stub, _broker, left_s: check_committed(stub.CommitOffsets(request, timeout=left_s)),
            timeout_ms,
        )

    def delete_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None, raise_errors: bool = True
    ) -> list[GroupResult]:
        """Delete groups without members and their offsets.

        Raises:
            NonEmptyGroupError: the group has members.
            GroupIdNotFoundError: the group does not exist.
        """
        results = []
        for group_id in names_in(group_ids):
            request = DeleteGroupsRequest(group_ids=[group_id])

            def call(
                stub: GroupServiceStub, _broker: int, left_s: float, request: DeleteGroupsRequest = request
            ) -> None:
                (one,) = stub.DeleteGroups(request, timeout=left_s).groups
                if one.HasField("error"):
                    raise error_for(one.error.code, f"group {request.group_ids[0]}: {one.error.message}")

            problem: PacelineError | None = None
            try:
                self._on_coordinator(group_id, call, timeout_ms)
            except PacelineError as error:
                # An absent group is a success if an earlier attempt, whose answer was lost, may have deleted it.
                problem = None if error.code is ErrorCode.GROUP_ID_NOT_FOUND and not error.definite else error
            results.append(GroupResult(group_id, problem))
        return checked(results, raise_errors)

    def _on_coordinator(
        self, group_id: str, call: Callable[[GroupServiceStub, int, float], T], timeout_ms: int | None
    ) -> T:
        """Call the coordinator of a group; after the group moves, find the new coordinator and call it.

        The error is not ``definite`` if any attempt may have been carried out.
        """
        may_be_done = False

        def attempt(left_s: float | None) -> T:
            nonlocal may_be_done
            limit_s = min(left_s or ONE_CALL_S, ONE_CALL_S)
            cluster = self._anywhere(describe_cluster_once, int(limit_s * 1000), names_anybody)
            problem: PacelineError = CoordinatorNotAvailableError("no broker is known")
            for broker in cluster.brokers:
                stub = GroupServiceStub(self._channel(address_of(broker.host, broker.port)))
                try:
                    with sendable():
                        request = FindCoordinatorRequest(group_id=group_id)
                    found = stub.FindCoordinator(request, timeout=limit_s)
                except grpc.RpcError as failure:
                    problem = named(f"broker {broker.id}", failure)
                    if not problem.retriable:
                        raise problem from failure
                    continue
                coordinator = GroupServiceStub(self._channel(address_of(found.host, found.port)))
                try:
                    return call(coordinator, found.broker_id, limit_s)
                except grpc.RpcError as failure:
                    error = named(f"coordinator {found.broker_id}", failure)
                    may_be_done = may_be_done or not error.definite
                    raise error from failure
                except PacelineError as error:
                    may_be_done = may_be_done or not error.definite
                    raise
            raise problem

        try:
            return call_with_retry(RetryPolicy(deadline_ms=self._group_timeout_ms(timeout_ms)), attempt)
        except PacelineError as error:
            error.definite = error.definite and not may_be_done
            raise

    def _group_timeout_ms(self, timeout_ms: int | None) -> int:
        return self._describe_timeout_ms if timeout_ms is None else timeout_ms


def _state_name(number: int) -> str:
    """Return Kafka's name of a state: GROUP_STATE_PREPARING_REBALANCE is PreparingRebalance."""
    if number not in GroupState.values():
        return f"State{number}"
    words = GroupState.Name(number).removeprefix("GROUP_STATE_").split("_")  # type: ignore[arg-type]
    return "".join(word.capitalize() for word in words)


def _state_number(name: str) -> Any:
    wanted = name.replace("_", "").lower()
    for number in GroupState.values():
        if _state_name(number).lower() == wanted:
            return number
    raise error_for(ErrorCode.INVALID_REQUEST, f"unknown group state {name!r}")


def _described(wire: DescribedGroup, broker: int) -> GroupDescription:
    members = tuple(
        value_of(MemberDescription, one, topics=tuple(one.subscription.topics), assignment=_partitions(one.assignment))
        for one in wire.members
    )
    return value_of(
        GroupDescription,
        wire,
        state=_state_name(wire.state),
        protocol=wire.protocol_name,
        generation=wire.generation_id,
        coordinator=broker,
        members=members,
    )


def _partitions(assignment: ConsumerAssignment) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(one.topic, index) for one in assignment.partitions for index in one.partitions)
