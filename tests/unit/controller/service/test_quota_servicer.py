"""AclService's quotas on an in-memory ZooKeeper, and the quota of partitions that requests of AdminService change."""

import asyncio
import json
import random
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from paceline.controller.service.acl_servicer import AclServicer
from paceline.controller.service.metadata_servicer import NodeHandle
from paceline.controller.service.quota_servicer import within_mutation_quota
from paceline.coordination.client_quotas import QuotaReader
from paceline.model.admin import TopicResult
from paceline.model.errors import (
    BrokerNotAvailableError,
    InvalidRequestError,
    PacelineError,
    RequestTimedOutError,
    ThrottlingQuotaExceededError,
    TopicAlreadyExistsError,
)
from paceline.model.quotas import DEFAULT, MUTATION, ClientQuotas, QuotaEntity
from paceline.rpc.admission.caller_quota import CallerQuota
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorizer import Authorizer, Call, Caller, acting_as
from paceline.v1 import acl_service_pb2 as pb
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder

WITHOUT_METADATA: Any = SimpleNamespace(invocation_metadata=lambda: ())

T = TypeVar("T")


class Served:
    """The service of a controller whose reader is connected."""

    def __init__(self, connected: bool = True) -> None:
        self.time = VirtualTime()
        server = MemoryZooKeeperServer(self.time)
        client = MemoryZooKeeper(server, self.time, session_timeout_ms=6_000, link=Link())
        self.texts: list[str] = []
        self.quotas = QuotaReader(client, self.time, random.Random(1), lambda _quotas: None)
        self.node = Recorder(self.quotas)
        handle = NodeHandle()
        handle.set(SimpleNamespace())  # type: ignore[arg-type]
        if connected:
            self.time.run_until(lambda: self.quotas.quotas is not None)
        handle.quotas = self.quotas
        self.service = AclServicer(handle)
        authorizer = Authorizer(audit=AuditLog("controller/1", self.texts.append))
        self.call = Call(Caller("User:admin"), authorizer, "/x/Y", "CLIENT", "ipv4:10.0.0.1:1")

    async def ask(self, awaitable: Awaitable[T]) -> T:
        with acting_as(self.call):
            task = asyncio.ensure_future(awaitable)
            while not task.done():
                await asyncio.sleep(0)
                self.time.run_for(10)
            return await task

    async def alter(self, *changes: pb.QuotaChange) -> None:
        context: Any = SimpleNamespace(time_remaining=lambda: None)
        await self.ask(self.service.AlterClientQuotas(pb.AlterClientQuotasRequest(changes=changes), context))

    async def listed(self, **named: str) -> list[tuple[str | None, str | None, dict[str, float]]]:
        request = pb.DescribeClientQuotasRequest(filter=pb.QuotaEntity(**named))
        answer = await self.ask(self.service.DescribeClientQuotas(request, None))
        return [(one.entity.user, one.entity.client_id, dict(one.values)) for one in answer.quotas]


def change(key: str, value: float | None, **named: str) -> pb.QuotaChange:
    return pb.QuotaChange(entity=pb.QuotaEntity(**named), key=key, value=value)


async def test_quotas_are_set_listed_and_removed_with_old_and_new_value_in_the_audit_log() -> None:
    served = Served()
    await served.alter(
        change("producer_byte_rate", 1000, user="alice"), change("request_percentage", 12.5, user="alice"),
        change("consumer_byte_rate", 7, client_id=DEFAULT),
    )  # fmt: skip
    assert await served.listed() == [
        ("", DEFAULT, {"consumer_byte_rate": 7}),
        ("alice", "", {"producer_byte_rate": 1000, "request_percentage": 12.5}),
    ]
    assert len(await served.listed(user="alice")) == 1 and await served.listed(user="bob") == []
    await served.alter(change("producer_byte_rate", None, user="alice"))
    first, *_, last = map(json.loads, served.texts)
    assert (first["old"], first["new"]) == ({}, {"producer_byte_rate": 1000.0, "request_percentage": 12.5})
    assert last["resource"] == "quota of user alice" and last["new"] == {"request_percentage": 12.5}
    assert last["old"] == first["new"] and last["principal"] == "User:admin"
    lines = len(served.texts)
    await served.alter(change("producer_byte_rate", None, user="alice"))
    assert len(served.texts) == lines, "no change, no line"


@pytest.mark.parametrize(
    "bad",
    [
        change("producer_byte_rates", 1, user="alice"), change("producer_byte_rate", -1, user="alice"),
        change("producer_byte_rate", 0.5, user="alice"), change("producer_byte_rate", 1), change("", 1, user="alice"),
        change("producer_byte_rate", 1, user=""), change("producer_byte_rate", 1, user="alice", client_id=""),
        change("request_percentage", float("nan"), user="alice"), change("consumer_byte_rate", 5, user="bob"),
    ],
)  # fmt: skip
async def test_one_invalid_change_sets_nothing(bad: pb.QuotaChange) -> None:
    served = Served()
    with pytest.raises(InvalidRequestError):
        await served.alter(change("consumer_byte_rate", 5, user="bob"), bad)
    assert await served.listed() == [] and not served.texts


async def test_before_the_first_read_the_answer_says_so() -> None:
    with pytest.raises(BrokerNotAvailableError):
        await Served(connected=False).listed()


class Mutations:
    """Topics that a caller with a quota of one partition per second changes; ten at once."""

    def __init__(self) -> None:
        quotas = ClientQuotas()
        quotas.use({QuotaEntity("alice"): {MUTATION: 1.0}})
        self.now_s = 0.0
        self.call = Call(Caller("User:alice"), Authorizer())
        self.call.quota = CallerQuota(quotas, "User:alice", WITHOUT_METADATA, "/x/CreateTopics", lambda: self.now_s)
        self.asked: list[tuple[str, ...]] = []

    async def create(self, sizes: dict[str, int], **errors: PacelineError) -> tuple[list[TopicResult], int]:
        async def change(names: tuple[str, ...]) -> Sequence[TopicResult]:
            self.asked.append(names)
            if "all" in errors:
                raise errors["all"]
            return [TopicResult(name, errors.get(name)) for name in names]

        with acting_as(self.call):
            return await within_mutation_quota(list(sizes), list(sizes.values()), change, TopicResult)

    async def refused(self, sizes: dict[str, int], **errors: PacelineError) -> list[str]:
        results, _ = await self.create(sizes, **errors)
        return [one.name for one in results if isinstance(one.error, ThrottlingQuotaExceededError)]


async def test_topics_are_refused_once_the_account_is_overdrawn_and_keep_their_places() -> None:
    world = Mutations()
    results, pause_ms = await world.create({"a": 8, "b": 5, "c": 1, "d": 0})
    assert [one.name for one in results] == ["a", "b", "c", "d"]
    assert [one.error is None for one in results] == [True, True, False, True]
    assert world.asked == [("a", "b", "d")] and pause_ms == pytest.approx(3_000, abs=1)
    assert await world.refused({"e": 1}) == ["e"] and len(world.asked) == 1, "nothing is asked of the node"
    world.now_s = 3.1
    assert await world.refused({"e": 1}) == []


async def test_what_was_not_changed_is_not_charged() -> None:
    world = Mutations()
    await world.create({"a": 100}, a=TopicAlreadyExistsError("a"))
    assert await world.refused({"b": 1}) == []
    with pytest.raises(InvalidRequestError):
        await world.create({"a": 100}, all=InvalidRequestError("twice"))
    assert await world.refused({"b": 1}) == []
    await world.create({"a": 100}, a=RequestTimedOutError("may be made"))
    assert await world.refused({"b": 1}) == ["b"]


async def test_a_request_without_topics_is_asked_as_it_is() -> None:
    world = Mutations()
    assert await world.create({}) == ([], 0) and world.asked == [()]
