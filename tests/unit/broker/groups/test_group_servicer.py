"""Requests that GroupService refuses before they reach the coordinator."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.broker.service.group_servicer import GroupServicer
from paceline.broker.service.node_handle import CLIENT, NodeHandle
from paceline.model.errors import InvalidRequestError
from paceline.rpc.admission.turns import Turns
from paceline.v1 import group_service_pb2 as pb

CONTEXT: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:4711")


@pytest.mark.parametrize("field", ["member_id", "group_instance_id", "client_id", "protocol_type"])
def test_a_join_with_a_text_that_no_group_record_can_hold_is_refused(field: str) -> None:
    """A longer text stays in memory, and a group with it cannot be written."""
    request = pb.JoinGroupRequest(group_id="g", **{field: "x" * 40_000})
    with pytest.raises(InvalidRequestError, match="40000 characters"):
        asyncio.run(GroupServicer(NodeHandle(), CLIENT, Turns()).JoinGroup(request, CONTEXT))
