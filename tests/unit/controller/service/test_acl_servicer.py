"""AclService on an in-memory ZooKeeper: what it adds, selects, removes, repairs and tells, and its lines of audit."""

import asyncio
import json
import random
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from paceline.controller.service.acl_servicer import AclServicer
from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.coordination.access_lists import AccessListReader
from paceline.coordination.interface import Create, SetData
from paceline.model.errors import BrokerNotAvailableError, InvalidRequestError
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, Mode, acting_as
from paceline.v1 import acl_service_pb2 as pb
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder

T = TypeVar("T")
RIDES = {"resource_type": "Topic", "resource_name": "rides", "pattern_type": "LITERAL"}


def rule(**more: str) -> pb.Acl:
    return pb.Acl(
        **{**RIDES, "principal": "User:alice", "operation": "Read", "permission": "Allow", "host": "*", **more}
    )


class Served:
    """The service of a controller whose reader is connected."""

    def __init__(self, mode: Mode = Mode.ENFORCE) -> None:
        self.time = VirtualTime()
        server = MemoryZooKeeperServer(self.time)
        client = MemoryZooKeeper(server, self.time, session_timeout_ms=6_000, link=Link())
        self.texts: list[str] = []
        self.authorizer = Authorizer(mode, {"User:admin"}, audit=AuditLog("controller/1", self.texts.append))
        self.lists = AccessListReader(client, self.time, random.Random(1), self.authorizer.use)
        self.node = Recorder(self.lists)
        self.time.run_until(lambda: self.lists.rules is not None)
        handle = NodeHandle()
        handle.set(SimpleNamespace())  # type: ignore[arg-type]
        handle.access_lists = self.lists
        self.service = AclServicer(handle)
        self.call = Call(Caller("User:admin"), self.authorizer, "/x/Y", "CLIENT", "ipv4:10.0.0.1:1")

    async def ask(self, awaitable: Awaitable[T]) -> T:
        with acting_as(self.call):
            task = asyncio.ensure_future(awaitable)
            while not task.done():
                await asyncio.sleep(0)
                self.time.run_for(10)
            return await task

    async def create(self, *acls: pb.Acl) -> None:
        context: Any = SimpleNamespace(time_remaining=lambda: None)
        await self.ask(self.service.CreateAcls(pb.CreateAclsRequest(acls=acls), context))

    async def delete(self, **selected: str) -> list[pb.Acl]:
        context: Any = SimpleNamespace(time_remaining=lambda: None)
        request = pb.DeleteAclsRequest(filter=pb.AclFilter(**selected))
        return list((await self.ask(self.service.DeleteAcls(request, context))).acls)

    async def listed(self, **selected: str) -> list[pb.Acl]:
        request = pb.DescribeAclsRequest(filter=pb.AclFilter(**selected))
        return list((await self.ask(self.service.DescribeAcls(request, None))).acls)


async def test_rules_are_added_listed_and_removed_with_their_lines_of_audit() -> None:
    served = Served()
    await served.create(rule(), rule(operation="write", pattern_type=""), rule(principal="User:bob"))
    await served.create(rule())
    assert len(await served.listed()) == 3
    assert [one.operation for one in await served.listed(principal="User:alice", operation="WRITE")] == ["Write"]
    assert await served.delete(principal="User:alice") == [rule(), rule(operation="Write")]
    assert await served.listed() == [rule(principal="User:bob")]
    added, removed = map(json.loads, served.texts)
    assert (added["old"], len(added["new"])) == ([], 3)
    assert (len(removed["old"]), removed["new"]) == (3, ["Allow User:bob Read from *"])
    assert removed["resource"] == "Topic:LITERAL:rides" and removed["rule"]


@pytest.mark.parametrize(
    "bad",
    [
        {"resource_name": ""}, {"resource_name": "a/b"}, {"resource_name": "*", "pattern_type": "PREFIXED"},
        {"resource_name": "", "pattern_type": "PREFIXED"}, {"operation": "Peek"}, {"operation": ""},
        {"permission": "Maybe"}, {"resource_type": "Planet"}, {"pattern_type": "MATCH"}, {"principal": "alice"},
        {"host": "example.com"}, {"resource_type": "Group", "operation": "Write"},
        {"resource_type": "Cluster", "operation": "Alter"},
    ],
)  # fmt: skip
async def test_one_invalid_rule_adds_none(bad: dict[str, str]) -> None:
    served = Served()
    with pytest.raises(InvalidRequestError):
        await served.create(rule(), rule(**bad))
    assert await served.listed() == [] and not served.texts


async def test_match_selects_what_applies_to_a_resource() -> None:
    served = Served()
    rules = [rule(resource_name="*"), rule(), rule(resource_name="ri", pattern_type="PREFIXED")]
    others = [rule(resource_name="trips"), rule(resource_name="rides-", pattern_type="PREFIXED")]
    others.append(rule(resource_type="Group"))
    await served.create(*rules, *others)
    found = await served.listed(resource_type="Topic", resource_name="rides", pattern_type="MATCH")
    assert sorted(map(str, found)) == sorted(map(str, rules))
    with pytest.raises(InvalidRequestError, match="needs the name"):
        await served.listed(pattern_type="MATCH")


async def test_an_empty_or_unknown_filter_removes_nothing() -> None:
    served = Served()
    await served.create(rule())
    for selected in ({}, {"operation": "Peek"}, {"resource_type": "Planet"}):
        with pytest.raises(InvalidRequestError):
            await served.delete(**selected)
    assert await served.delete(host="10.0.0.9") == [] and await served.listed() == [rule()]


async def test_rules_that_cannot_be_parsed_are_shown_and_removed_by_their_resource_alone() -> None:
    served = Served()
    await served.create(rule())
    served.node.submit(SetData("/kafka-acl/Topic/rides", b"{"))
    served.node.submit(Create("/kafka-acl-changes/acl_changes_", b"TOPIC:rides", sequential=True))
    served.time.run_for(1_000)
    response = await served.ask(served.service.DescribeAcls(pb.DescribeAclsRequest(), None))
    assert not response.acls and response.unreadable[0].startswith("Topic:LITERAL:rides: ")
    await served.delete(principal="User:alice")
    assert served.authorizer.rules is not None and served.authorizer.rules.unreadable_count == 1
    await served.delete(**RIDES)
    assert served.authorizer.rules.unreadable_count == 0
    await served.create(rule())


async def test_check_and_who_am_i_tell_what_applies() -> None:
    served = Served()
    await served.create(rule(), rule(principal="User:*", permission="Deny", host="10.0.0.7"))

    async def check(principal: str, **more: str) -> tuple[bool, str]:
        fields = {
            "operation": "read",
            "resource_type": "topic",
            "resource_name": "rides",
            "principal": principal,
            **more,
        }
        answer = await served.ask(served.service.CheckAcls(pb.CheckAclsRequest(**fields), None))
        assert answer.mode == "enforce"
        return answer.allowed, answer.rule

    assert await check("User:alice") == (True, "Allow User:alice Read on Topic:LITERAL:rides from *")
    assert await check("User:alice", host="10.0.0.7") == (
        False,
        "Deny User:* Read on Topic:LITERAL:rides from 10.0.0.7",
    )
    assert (await check("User:bob"))[0] is False
    assert await check("User:admin") == (True, "super user")
    assert await check("User:broker/1") == (True, "node of the cluster")
    me = await served.ask(served.service.WhoAmI(pb.WhoAmIRequest(), None))
    assert (me.principal, me.host, me.super_user, me.mode) == ("User:admin", "10.0.0.1", True, "enforce")


async def test_without_access_lists_or_before_they_are_read_the_answer_says_so() -> None:
    off = Served(Mode.OFF)
    with pytest.raises(InvalidRequestError, match="is off"):
        await off.listed()
    starting = Served()
    starting.lists.rules = None
    with pytest.raises(BrokerNotAvailableError, match="not been read"):
        await starting.listed()
