"""GroupService of one listener. It checks and converts requests, and calls the coordinator on the node's event loop."""

import functools
from typing import Any, Final

from paceline.broker.groups.requests import (
    CommitRequest,
    CommitResults,
    JoinRequest,
    JoinResult,
    LeavingMember,
    Protocol,
    SyncRequest,
    SyncResult,
)
from paceline.broker.service import group_values as values
from paceline.broker.service.log_servicer import answer_of
from paceline.broker.service.node_handle import Listener, NodeHandle
from paceline.model.errors import (
    CoordinatorNotAvailableError,
    InvalidGroupIdError,
    InvalidRequestError,
    PacelineError,
)
from paceline.model.identifiers import TopicPartition
from paceline.rpc.admission.turns import Turns
from paceline.rpc.convert import common
from paceline.rpc.security.authorizer import current_call, host_of
from paceline.v1 import errors_pb2, group_service_pb2_grpc
from paceline.v1 import group_service_pb2 as pb

GROUP_SERVICE: Final = "paceline.v1.GroupService"
MAX_ID_CHARACTERS: Final = 249
"""Maximum length of a group id, member id, instance id or client id."""
MAX_GROUPS: Final = 1_000
"""Maximum groups in a request."""
MAX_PROTOCOLS: Final = 64
MAX_ASSIGNMENTS: Final = 10_000
DEFAULT_CLIENT_ID: Final = "member"
_WRITE_TIMEOUT_MS: Final = 30_000
_JOIN_GRACE_MS: Final = 300_000
"""Added to the caller's rebalance timeout in JoinGroup, because a rebalance waits for the member with the longest
timeout; also the longest wait of SyncGroup."""


class GroupServicer(group_service_pb2_grpc.GroupServiceServicer):
    """Consumer groups for the clients of one listener."""

    def __init__(self, core: NodeHandle, listener: str, turns: Turns) -> None:
        self._core = core
        self._turns = turns
        self._listener = Listener(listener, core)

    async def FindCoordinator(  # noqa: N802
        self, request: pb.FindCoordinatorRequest, context: Any
    ) -> pb.FindCoordinatorResponse:
        """Return the coordinator of a group."""
        broker_id = self._core.get().group_coordinator().find_coordinator(_group_id(request.group_id))
        endpoint = self._listener.address_of(broker_id)
        if endpoint is None:
            raise CoordinatorNotAvailableError(f"broker {broker_id}, the coordinator, is not alive")
        return pb.FindCoordinatorResponse(broker_id=broker_id, host=endpoint.host, port=endpoint.port)

    async def JoinGroup(self, request: pb.JoinGroupRequest, context: Any) -> pb.JoinGroupResponse:  # noqa: N802
        """Make the caller a member, or let it take part in a rebalance."""
        join = JoinRequest(
            _group_id(request.group_id),
            _id(request.member_id, "member id"),
            _id(request.group_instance_id, "group instance id") or None,
            _id(request.client_id, "client id") or DEFAULT_CLIENT_ID,
            "/" + host_of(context.peer()),  # as in Kafka
            common.at_least(request.rebalance_timeout_ms, 0, "rebalance time-out") or request.session_timeout_ms,
            common.at_least(request.session_timeout_ms, 0, "session time-out"),
            _id(request.protocol_type, "protocol type") or values.CONSUMER,
            tuple(
                Protocol(_id(one.name, "assignor"), values.subscription_to_bytes(one.subscription))
                for one in common.bounded(request.protocols, MAX_PROTOCOLS, "assignors")
            ),
        )
        if len({one.name for one in join.protocols}) != len(join.protocols):
            raise InvalidRequestError("an assignor is listed twice")
        coordinator = self._core.get().group_coordinator()
        answer: JoinResult | PacelineError = await answer_of(
            lambda reply: coordinator.join(join, reply), join.rebalance_timeout_ms + _JOIN_GRACE_MS
        )
        if isinstance(answer, PacelineError):
            raise answer
        return values.join_to_proto(answer)

    async def SyncGroup(self, request: pb.SyncGroupRequest, context: Any) -> pb.SyncGroupResponse:  # noqa: N802
        """Store the assignments, which only the group leader sends, and return the caller's assignment."""
        assignments = {
            one.member_id: values.assignment_to_bytes(one.assignment)
            for one in common.bounded(request.assignments, MAX_ASSIGNMENTS, "assignments")
        }
        sync = SyncRequest(
            _group_id(request.group_id),
            request.generation_id,
            _id(request.member_id, "member id"),
            _id(request.group_instance_id, "group instance id") or None,
            request.protocol_type or None,
            request.protocol_name or None,
            assignments,
        )
        coordinator = self._core.get().group_coordinator()
        answer: SyncResult | PacelineError = await answer_of(
            lambda reply: coordinator.sync(sync, reply), _JOIN_GRACE_MS
        )
        if isinstance(answer, PacelineError):
            raise answer
        return values.sync_to_proto(answer)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:  # noqa: N802
        """Renew a member's session."""
        self._core.get().group_coordinator().heartbeat(
            _group_id(request.group_id), request.generation_id, request.member_id, request.group_instance_id or None
        )
        return pb.HeartbeatResponse()

    async def LeaveGroup(self, request: pb.LeaveGroupRequest, context: Any) -> pb.LeaveGroupResponse:  # noqa: N802
        """Remove members from a group; the response has a result for each member."""
        members = [
            LeavingMember(one.member_id, one.group_instance_id or None)
            for one in common.bounded(request.members, MAX_ASSIGNMENTS, "members")
        ]
        errors = self._core.get().group_coordinator().leave(_group_id(request.group_id), members)
        return pb.LeaveGroupResponse(
            members=[
                pb.LeavingMemberResult(
                    member_id=one.member_id,
                    group_instance_id=one.group_instance_id or "",
                    error=common.error_to_proto(pb.GroupError, error),
                )
                for one, error in zip(members, errors, strict=True)
            ]
        )

    async def CommitOffsets(  # noqa: N802
        self, request: pb.CommitOffsetsRequest, context: Any
    ) -> pb.CommitOffsetsResponse:
        """Commit offsets; the response has a result for each partition."""
        offsets = common.bounded(request.offsets, common.MAX_CLIENT_PARTITIONS, "partitions")
        core = self._core.get()
        now_ms = core.wall_ms()
        partitions = await self._turns.each(common.partition_of, offsets)
        common.refuse_duplicates(partitions)
        committed = await self._turns.each(functools.partial(values.offset_from_proto, now_ms=now_ms), offsets)
        commit = CommitRequest(
            _group_id(request.group_id),
            request.generation_id if request.HasField("generation_id") else -1,
            _id(request.member_id, "member id"),
            _id(request.group_instance_id, "group instance id") or None,
            dict(zip(partitions, committed, strict=True)),
        )
        coordinator = core.group_coordinator()
        answer: CommitResults | PacelineError = await answer_of(
            lambda reply: coordinator.commit(commit, reply), _WRITE_TIMEOUT_MS
        )
        if isinstance(answer, PacelineError):
            raise answer

        response = pb.CommitOffsetsResponse()

        def add(one: TopicPartition) -> None:
            error = common.error_to_proto(errors_pb2.PartitionError, answer[one])
            response.partitions.add(topic=one.topic, partition=one.partition, error=error)

        await self._turns.each(add, partitions)
        return response

    async def FetchOffsets(  # noqa: N802
        self, request: pb.FetchOffsetsRequest, context: Any
    ) -> pb.FetchOffsetsResponse:
        """Return the committed offsets of the named partitions, or of all partitions if none is named."""
        wanted = None
        if request.partitions:
            wanted = [
                TopicPartition(one.topic, index)
                for one in common.bounded(request.partitions, common.MAX_CLIENT_PARTITIONS, "topics")
                for index in common.bounded(one.partitions, common.MAX_CLIENT_PARTITIONS, "partitions")
            ]
            common.bounded(wanted, common.MAX_CLIENT_PARTITIONS, "partitions")
        found = self._core.get().group_coordinator().fetch_offsets(_group_id(request.group_id), wanted)
        response = pb.FetchOffsetsResponse()
        add = response.partitions.append
        await self._turns.each(lambda one: add(values.committed_to_proto(*one)), list(found.items()))
        return response

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsResponse:  # noqa: N802
        """List the groups that this broker coordinates."""
        listings, loading = self._core.get().group_coordinator().list_groups(values.state_names(request.states))
        return pb.ListGroupsResponse(groups=[values.listing_to_proto(one) for one in listings], loading=loading)

    async def DescribeGroups(  # noqa: N802
        self, request: pb.DescribeGroupsRequest, context: Any
    ) -> pb.DescribeGroupsResponse:
        """Describe groups; a group that does not exist has the state DEAD."""
        coordinator = self._core.get().group_coordinator()
        names = common.bounded(request.group_ids, MAX_GROUPS, "groups")
        return pb.DescribeGroupsResponse(
            groups=[values.description_to_proto(coordinator.describe(name)) for name in names]
        )

    async def DeleteGroups(  # noqa: N802
        self, request: pb.DeleteGroupsRequest, context: Any
    ) -> pb.DeleteGroupsResponse:
        """Delete groups without members."""
        coordinator = self._core.get().group_coordinator()
        results = []
        for name in list(common.bounded(request.group_ids, MAX_GROUPS, "groups")):
            old = coordinator.describe(name)
            shown = {"state": old.state, "members": len(old.members), "offsets": old.offset_count}
            current_call().note_old(name, None if old.error is not None else shown)
            error: PacelineError | None = await answer_of(
                functools.partial(coordinator.delete, name), _WRITE_TIMEOUT_MS
            )
            results.append(pb.DeleteGroupResult(group_id=name, error=common.error_to_proto(pb.GroupError, error)))
        return pb.DeleteGroupsResponse(groups=results)


def _group_id(text: str) -> str:
    if not text or len(text) > MAX_ID_CHARACTERS:
        raise InvalidGroupIdError(f"a group id has 1 to {MAX_ID_CHARACTERS} characters, not {len(text)}")
    return text


def _id(text: str, what: str) -> str:
    if len(text) > 2 * MAX_ID_CHARACTERS:
        raise InvalidRequestError(f"the {what} has {len(text)} characters, the limit is {2 * MAX_ID_CHARACTERS}")
    return text
