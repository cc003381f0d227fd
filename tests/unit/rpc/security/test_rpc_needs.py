"""Every public RPC against every kind of rule, driven by the table; handlers get what the rules allow and no more."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from paceline.model.acls import (
    ANY,
    CLUSTER_NAME,
    AccessRules,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    UnreadableResource,
)
from paceline.model.errors import ErrorCode, PacelineError
from paceline.rpc.pages import topics_page
from paceline.rpc.security.audit_log import AuditLog
from paceline.rpc.security.authorized_requests import authorized
from paceline.rpc.security.authorizer import (
    Authorizer,
    Call,
    Caller,
    Mode,
    acting_as,
    current_call,
    host_of,
)
from paceline.rpc.security.rpc_needs import RPC_NEEDS, Need
from paceline.v1 import (
    acl_service_pb2,
    admin_service_pb2,
    group_service_pb2,
    log_service_pb2,
    metadata_service_pb2,
)

MODULES = (acl_service_pb2, admin_service_pb2, group_service_pb2, log_service_pb2, metadata_service_pb2)
PUBLIC = [
    f"/{service.full_name}/{method.name}"
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
BY_HAND = {"/paceline.v1.LogService/Produce", "/paceline.v1.LogService/ProduceStream",
           "/paceline.v1.LogService/Fetch", "/paceline.v1.LogService/FetchStream"}  # fmt: skip
"""RPCs whose servicer checks the partitions itself: tests/unit/broker/service/test_access.py."""
FREE = [method for method in PUBLIC if not list(RPC_NEEDS[method].needs())] if set(PUBLIC) <= set(RPC_NEEDS) else []
NAME, HOST = "rides", "10.0.0.9"
CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def test_every_public_rpc_has_a_row() -> None:
    assert set(PUBLIC) <= set(RPC_NEEDS), "add the RPC to services/paceline/rpc/security/rpc_needs.py"
    named = {method for method in RPC_NEEDS if method.startswith("/paceline.")}
    assert named == set(PUBLIC)


def test_the_fields_that_rows_name_exist() -> None:
    for method in PUBLIC:
        row = RPC_NEEDS[method]
        for message, field in ((request_class(method), row.field), (answer_class(method), row.answers or row.listed)):
            assert not field or field in message.DESCRIPTOR.fields_by_name, (method, field)


def _descriptor(method: str) -> Any:
    service, _, name = method[1:].rpartition("/")
    return descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]


def request_class(method: str) -> Any:
    return GetMessageClass(_descriptor(method).input_type)


def answer_class(method: str) -> Any:
    return GetMessageClass(_descriptor(method).output_type)


def request_of(method: str, *names: str) -> Any:
    """Return a request that names a topic, or a group, in every field that can."""
    row, request = RPC_NEEDS[method], request_class(method)()
    for field in ("topic", "group_id"):
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, names[0])
    for name in names if row.field else ():
        known = request.DESCRIPTOR.fields_by_name[row.field]
        if known.message_type is None:
            getattr(request, row.field).append(name)
            continue
        entry = getattr(request, row.field).add()
        if "resource" in known.message_type.fields_by_name:
            entry.resource.name, entry.resource.type = name, admin_service_pb2.CONFIG_RESOURCE_TYPE_TOPIC
        else:
            setattr(entry, "topic" if "topic" in known.message_type.fields_by_name else "name", name)
    return request


def echo(method: str, request: Any) -> Any:
    """Return an answer with a result for each entry of the request, as a handler does."""
    row, answer = RPC_NEEDS[method], answer_class(method)()
    field = row.answers or row.listed
    for entry in getattr(request, row.field) if row.field and field else ():
        result = getattr(answer, field).add()
        for key in ("topic", "name", "group_id"):
            if key in result.DESCRIPTOR.fields_by_name:
                setattr(result, key, entry if isinstance(entry, str) else getattr(entry, key))
    return answer


class World:
    """An authorizer, the requests that reached a handler, and the lines of the audit log."""

    def __init__(self, mode: Mode = Mode.ENFORCE) -> None:
        self.texts: list[str] = []
        self.authorizer = Authorizer(mode, {"User:admin"}, audit=AuditLog("broker/1", self.texts.append))
        self.authorizer.use(AccessRules({}))
        self.handled: list[Any] = []

    def allow(self, method: str, pattern: PatternType = PatternType.LITERAL, name: str = NAME, host: str = ANY,
              permission: Permission = Permission.ALLOW, who: str = "User:alice") -> None:  # fmt: skip
        assert self.authorizer.rules is not None
        changed: dict[ResourcePattern, tuple[AclEntry, ...]] = {}
        for need in RPC_NEEDS[method].needs():
            on_cluster = need.kind is ResourceType.CLUSTER
            resource = ResourcePattern(
                need.kind,
                CLUSTER_NAME if on_cluster else name,
                PatternType.LITERAL if on_cluster else pattern,
            )
            known: Any = self.authorizer.rules.resources.get(resource, ())
            entry = AclEntry(who, permission, need.operation, host)
            changed[resource] = (*known, *changed.get(resource, ()), entry)
        self.authorizer.use(self.authorizer.rules.changed(changed))

    def call_of(self, method: str, who: str) -> Call:
        peer = f"ipv4:{HOST}:4711"
        call = Call(Caller(who), self.authorizer, method, "CLIENT", peer, RPC_NEEDS.get(method))
        call.exempt = self.authorizer.exemption(who) if self.authorizer.mode is not Mode.OFF else call.exempt
        return call

    async def call(self, method: str, *names: str, who: str = "User:alice") -> Any:
        async def handler(request: Any, _context: Any) -> Any:
            self.handled.append(request)
            return echo(method, request)

        with acting_as(self.call_of(method, who)):
            return await authorized(handler, request_of(method, *(names or (NAME,))), None)

    async def is_allowed(self, method: str, who: str = "User:alice") -> bool:
        """Whether a request reaches the handler; a refusal must have the right code, as an error or in the answer."""
        self.handled.clear()
        kinds = {CODES[need.kind] for need in RPC_NEEDS[method].needs()}
        try:
            answer = await self.call(method, who=who)
        except PacelineError as error:
            assert error.code in kinds and not self.handled and error.definite
            return False
        if self.handled:
            return True
        row = RPC_NEEDS[method]
        (result,) = getattr(answer, row.answers)
        assert ErrorCode(result.error.code) in kinds and NAME in str(result)
        return False

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.texts) if line["event"] == event]


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


RESTRICTED = [
    method for method in PUBLIC
    if method not in BY_HAND and method not in FREE and not method.endswith(("/ListGroups", "/WatchEvents"))
]  # fmt: skip
NAMED = [
    method for method in RESTRICTED
    if all(need.kind is not ResourceType.CLUSTER for need in RPC_NEEDS[method].needs())
]  # fmt: skip


@pytest.mark.parametrize("method", RESTRICTED)
async def test_without_a_rule_an_rpc_is_refused_and_the_refusal_is_in_the_audit_log(world: World, method: str) -> None:
    assert not await world.is_allowed(method)
    (line,) = world.lines("denied")
    assert (line["principal"], line["rpc"], line["rule"]) == ("User:alice", method, "no rule allows it")
    assert line["resource"] and line["operation"] and line["address"] == f"ipv4:{HOST}:4711"


@pytest.mark.parametrize("method", RESTRICTED)
async def test_an_allow_is_enough_and_is_for_its_principal_only(world: World, method: str) -> None:
    world.allow(method)
    assert await world.is_allowed(method)
    assert not await world.is_allowed(method, "User:bob")


@pytest.mark.parametrize("method", RESTRICTED)
async def test_every_need_is_needed(world: World, method: str) -> None:
    needs = list(RPC_NEEDS[method].needs())
    for missing in needs:
        world.authorizer.use(AccessRules({}))
        world.allow(method)
        assert world.authorizer.rules is not None
        kept = {
            resource: tuple(
                entry for entry in entries if (resource.type, entry.operation) != (missing.kind, missing.operation)
            )
            for resource, entries in world.authorizer.rules.resources.items()
            if not isinstance(entries, UnreadableResource)
        }
        world.authorizer.use(AccessRules(kept))
        assert not await world.is_allowed(method)


@pytest.mark.parametrize("method", RESTRICTED)
async def test_a_deny_wins(world: World, method: str) -> None:
    world.allow(method)
    world.allow(method, permission=Permission.DENY)
    assert not await world.is_allowed(method)
    assert world.lines("denied")[0]["rule"].startswith("Deny User:alice")


@pytest.mark.parametrize("method", NAMED)
async def test_a_prefix_allows_the_names_that_begin_with_it(world: World, method: str) -> None:
    world.allow(method, PatternType.PREFIXED, "ri")
    assert await world.is_allowed(method)
    world.authorizer.use(AccessRules({}))
    world.allow(method, PatternType.PREFIXED, "ridesx")
    assert not await world.is_allowed(method)


@pytest.mark.parametrize("method", NAMED)
async def test_a_wildcard_allows_every_name(world: World, method: str) -> None:
    world.allow(method, name=ANY, who="User:*")
    assert await world.is_allowed(method)


@pytest.mark.parametrize("method", RESTRICTED)
async def test_a_super_user_needs_no_rule_not_even_when_none_could_be_read(world: World, method: str) -> None:
    assert await world.is_allowed(method, "User:admin")
    world.authorizer.rules = None
    assert await world.is_allowed(method, "User:admin")
    assert await world.is_allowed(method, "User:broker/1")


@pytest.mark.parametrize("method", RESTRICTED)
async def test_a_rule_for_another_host_does_not_apply(world: World, method: str) -> None:
    world.allow(method, host="10.0.0.8")
    assert not await world.is_allowed(method)
    world.allow(method, host=HOST)
    assert await world.is_allowed(method)


@pytest.mark.parametrize("method", RESTRICTED)
async def test_rules_that_were_never_read_refuse(world: World, method: str) -> None:
    world.authorizer.rules = None
    assert not await world.is_allowed(method)
    assert "not been read" in world.lines("denied")[0]["rule"]


@pytest.mark.parametrize("method", RESTRICTED)
async def test_the_mode_log_lets_pass_what_it_would_refuse(method: str) -> None:
    world = World(Mode.LOG)
    assert await world.is_allowed(method)
    assert world.lines("would_deny")[0]["rpc"] == method and not world.lines("denied")


@pytest.mark.parametrize("method", RESTRICTED)
async def test_the_mode_off_reads_and_logs_nothing(method: str) -> None:
    world = World(Mode.OFF)
    world.authorizer.rules = None
    assert await world.is_allowed(method)
    assert not world.lines("would_deny") and not world.lines("denied")


@pytest.mark.parametrize("method", FREE)
async def test_an_rpc_without_needs_serves_everybody(world: World, method: str) -> None:
    world.authorizer.rules = None
    assert await world.is_allowed(method)


@pytest.mark.parametrize("method", [method for method in NAMED if RPC_NEEDS[method].answers])
async def test_refused_entries_have_their_error_in_the_order_of_the_request(world: World, method: str) -> None:
    row = RPC_NEEDS[method]
    for need in row.call:  # of the group
        world.authorizer.use(
            AccessRules({ResourcePattern(need.kind, "a"): (AclEntry("User:alice", Permission.ALLOW, need.operation),)})
        )
    assert row.each is not None and world.authorizer.rules is not None
    kind, entry = row.each.kind, AclEntry("User:alice", Permission.ALLOW, row.each.operation)
    both = {ResourcePattern(kind, name): (entry,) for name in ("a", "c")}
    world.authorizer.use(world.authorizer.rules.changed(both))
    answer = await world.call(method, "a", "b", "c", "d")
    (handled,) = world.handled
    assert len(getattr(handled, row.field)) == 2
    errors = [result.error.code if result.HasField("error") else 0 for result in getattr(answer, row.answers)]
    code = int(CODES[kind])
    assert errors == [0, code, 0, code]


@pytest.mark.parametrize("method", [method for method in NAMED if RPC_NEEDS[method].answers])
async def test_absent_and_forbidden_have_the_same_answer(world: World, method: str) -> None:
    """The handler, which alone knows whether a resource exists, never sees its name."""
    for need in RPC_NEEDS[method].call:
        entry = (AclEntry("User:alice", Permission.ALLOW, need.operation),)
        both = {ResourcePattern(need.kind, name): entry for name in ("present", "absent7")}
        world.authorizer.use(AccessRules(both))
    present = await world.call(method, "present")
    absent = await world.call(method, "absent7")
    assert not world.handled
    assert str(present).replace("present", "absent7") == str(absent)


async def test_settings_of_brokers_need_the_cluster(world: World) -> None:
    method = "/paceline.v1.AdminService/IncrementalAlterConfigs"
    world.allow(method)
    request = admin_service_pb2.IncrementalAlterConfigsRequest()
    request.resources.add().resource.type = admin_service_pb2.CONFIG_RESOURCE_TYPE_BROKER

    async def handler(request: Any, _context: Any) -> Any:
        world.handled.append(request)
        return admin_service_pb2.IncrementalAlterConfigsResponse()

    with acting_as(world.call_of(method, "User:alice")):
        answer = await authorized(handler, request, None)
    assert answer.resources[0].error.code == 31 and not world.handled


async def test_create_on_the_cluster_is_enough_to_create_any_topic(world: World) -> None:
    entry = AclEntry("User:alice", Permission.ALLOW, Operation.CREATE)
    world.authorizer.use(AccessRules({ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME): (entry,)}))
    assert await world.is_allowed("/paceline.v1.AdminService/CreateTopics")
    assert not await world.is_allowed("/paceline.v1.AdminService/DeleteTopics")


async def test_write_on_any_topic_is_enough_for_a_producer_id(world: World) -> None:
    method = "/paceline.v1.LogService/InitProducerId"
    entry = AclEntry("User:alice", Permission.ALLOW, Operation.WRITE)
    world.authorizer.use(AccessRules({ResourcePattern(ResourceType.TOPIC, "ri", PatternType.PREFIXED): (entry,)}))
    assert await world.is_allowed(method)
    assert not await world.is_allowed(method, "User:bob")


async def test_a_list_leaves_out_groups_and_topics_without_describe(world: World) -> None:
    method = "/paceline.v1.GroupService/ListGroups"
    entry = AclEntry("User:alice", Permission.ALLOW, Operation.READ)
    team = PatternType.PREFIXED
    world.authorizer.use(AccessRules({
        ResourcePattern(kind, "team-", team): (entry,) for kind in (ResourceType.GROUP, ResourceType.TOPIC)
    }))  # fmt: skip
    names = ["other", "team-a", "team-b", "zoo"]

    async def groups(_request: Any, _context: Any) -> Any:
        return group_service_pb2.ListGroupsResponse(
            groups=[group_service_pb2.ListedGroup(group_id=name) for name in names]
        )

    with acting_as(world.call_of(method, "User:alice")):
        answer = await authorized(groups, group_service_pb2.ListGroupsRequest(), None)
        assert [one.group_id for one in answer.groups] == names[1:3]
        page = topics_page(
            metadata_service_pb2.DescribeTopicsRequest(page_size=1), lambda: names,
            lambda name: metadata_service_pb2.TopicDescription(name=name),
        )  # fmt: skip
        assert [one.name for one in page.topics] == ["team-a"]
        rest = topics_page(
            metadata_service_pb2.DescribeTopicsRequest(page_token=page.next_page_token), lambda: names,
            lambda name: metadata_service_pb2.TopicDescription(name=name),
        )  # fmt: skip
    assert [one.name for one in rest.topics] == ["team-b"] and not rest.next_page_token
    assert not world.texts, "what a list leaves out is no refusal"


@pytest.mark.parametrize("method", [method for method in PUBLIC if RPC_NEEDS[method].is_change])
async def test_a_change_has_a_line_with_its_rule_and_new_value(world: World, method: str) -> None:
    world.allow(method)
    await world.call(method)
    (line,) = world.lines("changed")
    assert (line["principal"], line["rpc"], line["error"]) == ("User:alice", method, None)
    assert line["rule"].startswith("Allow User:alice") and line["resource"] and line["operation"]
    await world.call(method, who="User:admin")
    assert world.lines("changed")[1]["rule"] == "super user"


async def test_a_change_line_has_the_old_value_and_the_error(world: World) -> None:
    method = "/paceline.v1.AdminService/DeleteTopics"

    async def handler(request: Any, _context: Any) -> Any:
        current_call().note_old("a", {"partitions": 3})
        answer = admin_service_pb2.DeleteTopicsResponse()
        answer.topics.add(name="a")
        answer.topics.add(name="b").error.code = 3  # type: ignore[assignment]
        return answer

    with acting_as(world.call_of(method, "User:admin")):
        await authorized(handler, request_of(method, "a", "b"), None)
    first, second = world.lines("changed")
    assert (first["resource"], first["old"], first["error"]) == ("Topic:LITERAL:a", {"partitions": 3}, None)
    assert (second["old"], second["error"]) == (None, "UNKNOWN_TOPIC_OR_PARTITION")


async def test_the_lines_of_one_request_have_an_id_which_the_caller_gets(world: World) -> None:
    method = "/paceline.v1.AdminService/DeleteTopics"
    world.allow(method)
    told: list[Any] = []
    context = SimpleNamespace(set_trailing_metadata=told.append)

    async def handler(request: Any, _context: Any) -> Any:
        return echo(method, request)

    for _ in range(2):
        with acting_as(world.call_of(method, "User:alice")):
            await authorized(handler, request_of(method, NAME, "other", NAME), context)
    lines = [*world.lines("denied"), *world.lines("changed")]
    ids = [line["request_id"] for line in lines]
    assert [line["event"] for line in lines] == ["denied", *["changed"] * 4]
    assert told == [(("paceline-request-id", one),) for one in (ids[1], ids[3])]
    assert ids[0] == ids[1] == ids[2] != ids[3] == ids[4] and all(ids)
    world.authorizer.audit.flush(all_now=True)
    assert world.lines("denied")[1]["request_id"] == "", "a sum is of several requests"


async def test_a_change_has_a_line_although_its_caller_disconnects(world: World) -> None:
    method = "/paceline.v1.AdminService/CreateTopics"

    async def handler(_request: Any, _context: Any) -> Any:
        raise asyncio.CancelledError

    with acting_as(world.call_of(method, "User:admin")), pytest.raises(asyncio.CancelledError):
        await authorized(handler, request_of(method, "a"), None)
    (line,) = world.lines("changed")
    assert (line["resource"], line["error"]) == ("Topic:LITERAL:a", "CANCELLED")


def test_a_permission_is_cached_until_the_rules_change_and_a_withdrawn_one_ends_a_stream(world: World) -> None:
    method = "/paceline.v1.LogService/FetchStream"
    world.allow(method)
    call = world.call_of(method, "User:alice")
    read = (Operation.READ, ResourceType.TOPIC, NAME)
    assert call.may(*read) and call.withdrawn() is None
    world.allow(method, name="other")
    assert call.may(*read) and call.withdrawn() is None, "a new generation with the same permission"
    assert not call.may(Operation.READ, ResourceType.TOPIC, "third") and call.withdrawn() is None
    world.authorizer.use(AccessRules({}))
    error = call.withdrawn()
    assert error is not None and error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED and NAME in str(error)
    assert not call.may(*read)


def test_the_mode_log_ends_no_stream() -> None:
    world = World(Mode.LOG)
    method = "/paceline.v1.LogService/FetchStream"
    world.allow(method)
    call = world.call_of(method, "User:alice")
    assert call.may(Operation.READ, ResourceType.TOPIC, NAME)
    world.authorizer.use(AccessRules({}))
    assert call.withdrawn() is None and world.lines("would_deny")


def test_only_nodes_write_to_the_topic_of_cluster_events(world: World) -> None:
    call = world.call_of("/paceline.v1.LogService/Produce", "User:alice")
    entry = AclEntry("User:alice", Permission.ALLOW, Operation.ALL)
    world.authorizer.use(AccessRules({ResourcePattern(ResourceType.TOPIC, ANY): (entry,)}))
    assert call.may(Operation.READ, ResourceType.TOPIC, "__cluster_events")
    assert not call.may(Operation.WRITE, ResourceType.TOPIC, "__cluster_events")
    assert world.call_of("/paceline.v1.LogService/Produce", "User:broker/1").may(
        Operation.WRITE, ResourceType.TOPIC, "__cluster_events"
    )


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[fe80::1]:1", "fe80::1"),
        ("unix:", ""),
    ],
)
def test_the_host_of_a_peer(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_the_table_reads_well_in_the_documentation() -> None:
    assert str(Need(Operation.CREATE, ResourceType.TOPIC, or_cluster=True)) == "Create on the topic or on the cluster"
