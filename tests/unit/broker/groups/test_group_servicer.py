"""Requests that GroupService refuses before they reach the coordinator, and long lists, which it handles in slices."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.broker.groups.group import Group, GroupState
from paceline.broker.groups.requests import GroupDescription
from paceline.broker.service.group_servicer import GroupServicer
from paceline.broker.service.node_handle import CLIENT, NodeHandle
from paceline.model.errors import GroupIdNotFoundError, InvalidRequestError
from paceline.rpc.admission.turns import SLICE, Turns
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorized_requests import authorized
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, acting_as
from paceline.rpc.security.rpc_needs import RPC_NEEDS
from paceline.v1 import group_service_pb2 as pb

CONTEXT: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:4711")


@pytest.mark.parametrize("field", ["member_id", "group_instance_id", "client_id", "protocol_type"])
def test_a_join_with_a_text_that_no_group_record_can_hold_is_refused(field: str) -> None:
    """A longer text stays in memory, and a group with it cannot be written."""
    request = pb.JoinGroupRequest(group_id="g", **{field: "x" * 40_000})
    with pytest.raises(InvalidRequestError, match="40000 characters"):
        asyncio.run(GroupServicer(NodeHandle(), CLIENT, Turns()).JoinGroup(request, CONTEXT))


class _CountedTurns(Turns):
    """Counts the turns; the first slice of a list needs none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def turn(self) -> None:
        self.count += 1


def test_a_commit_and_a_fetch_of_many_offsets_leave_the_event_loop_to_others_after_each_slice() -> None:
    partitions = range(5 * SLICE)
    coordinator = SimpleNamespace(
        commit=lambda request, reply: reply(dict.fromkeys(request.offsets)),
        fetch_offsets=lambda group, wanted: dict.fromkeys(wanted),
    )
    handle: Any = SimpleNamespace(get=lambda: SimpleNamespace(wall_ms=lambda: 0, group_coordinator=lambda: coordinator))
    turns = _CountedTurns()
    servicer = GroupServicer(handle, CLIENT, turns)
    offsets = [pb.OffsetToCommit(topic="t", partition=index, offset=1) for index in partitions]
    committed = asyncio.run(servicer.CommitOffsets(pb.CommitOffsetsRequest(group_id="g", offsets=offsets), CONTEXT))
    assert [one.partition for one in committed.partitions] == list(partitions)
    assert turns.count == 3 * 4, "partitions, offsets and results are converted in five slices each"
    turns.count = 0
    wanted = pb.FetchOffsetsRequest(group_id="g", partitions=[pb.TopicPartitions(topic="t", partitions=partitions)])
    assert len(asyncio.run(servicer.FetchOffsets(wanted, CONTEXT)).partitions) == len(partitions)
    assert turns.count == 4


def test_the_audit_lines_of_deleted_groups_have_their_state_members_and_number_of_offsets() -> None:
    group = Group("g", 0, GroupState.EMPTY, 0)
    group.offsets = dict.fromkeys(range(3))  # type: ignore[assignment, arg-type]
    groups = {"g": group.description(), "lost": GroupDescription("lost", error=GroupIdNotFoundError("lost"))}
    coordinator = SimpleNamespace(describe=groups.__getitem__, delete=lambda _group_id, reply: reply(None))
    handle: Any = SimpleNamespace(get=lambda: SimpleNamespace(group_coordinator=lambda: coordinator))
    method, lines = "/paceline.v1.GroupService/DeleteGroups", list[str]()
    call = Call(Caller("User:admin"), Authorizer(audit=AuditLog(write=lines.append)), method, row=RPC_NEEDS[method])
    request = pb.DeleteGroupsRequest(group_ids=["g", "lost"])
    with acting_as(call):
        asyncio.run(authorized(GroupServicer(handle, CLIENT, Turns()).DeleteGroups, request, CONTEXT))
    assert [json.loads(line)["old"] for line in lines] == [{"state": "EMPTY", "members": 0, "offsets": 3}, None]
