"""Access lists in ZooKeeper: Kafka's bytes, the reader's view after changes, disconnects and malformed nodes."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.coordination import znodes
from paceline.coordination.access_lists import CHANGES_KEPT_MS, AccessListReader, AclChange
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.interface import (
    Create,
    Delete,
    GetChildren,
    GetData,
    GetMany,
    Response,
    SetData,
    ZkCode,
)
from paceline.coordination.patient_zookeeper import WrappedZooKeeper
from paceline.model.acls import (
    AccessRules,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    UnreadableResource,
)
from paceline.model.errors import InvalidRequestError
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder

RIDES = ResourcePattern(ResourceType.TOPIC, "rides")
TEAM = ResourcePattern(ResourceType.TOPIC, "team-", PatternType.PREFIXED)
ALICE_READS = AclEntry("User:alice", Permission.ALLOW, Operation.READ)
BOB_DENIED = AclEntry("User:bob", Permission.DENY, Operation.WRITE, "10.0.0.1")
KAFKA_BYTES = (
    b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"},'
    b'{"principal":"User:bob","permissionType":"Deny","operation":"Write","host":"10.0.0.1"}]}'
)


def test_a_node_has_the_bytes_that_kafka_writes() -> None:
    assert znodes.acl_path(RIDES) == "/kafka-acl/Topic/rides"
    assert znodes.acl_path(TEAM) == "/kafka-acl-extended/prefixed/Topic/team-"
    assert znodes.encode_acls([ALICE_READS, BOB_DENIED]) == KAFKA_BYTES
    assert znodes.decode_acls("/x", KAFKA_BYTES) == (ALICE_READS, BOB_DENIED)


@pytest.mark.parametrize(
    ("resource", "path", "data"),
    [
        (RIDES, "/kafka-acl-changes/acl_changes_", b"TOPIC:rides"),
        (
            TEAM,
            "/kafka-acl-extended-changes/acl_changes_",
            b'{"version":1,"resourceType":"TOPIC","name":"team-","patternType":"PREFIXED"}',
        ),
    ],
)
def test_a_change_node_has_the_bytes_that_kafka_writes(resource: ResourcePattern, path: str, data: bytes) -> None:
    assert znodes.acl_change_prefix(resource.pattern) == path
    assert znodes.encode_acl_change(resource) == data
    assert znodes.decode_acl_change(path + "0", data) == resource


def test_change_nodes_of_older_kafka_versions_are_read() -> None:
    assert znodes.decode_acl_change("/kafka-acl-changes/acl_changes_1", b"Topic:a:b").name == "a:b"
    transactional = znodes.decode_acl_change("/kafka-acl-changes/acl_changes_1", b"TransactionalId:t")
    assert transactional.type is ResourceType.TRANSACTIONAL_ID


@pytest.mark.parametrize(
    "data",
    [
        None, b"", b"{}", b"[]", b'{"version":2,"acls":[]}', b'{"version":1,"acls":{}}', b'{"version":1,"acls":[1]}',
        KAFKA_BYTES.replace(b"Allow", b"Maybe"), KAFKA_BYTES.replace(b"Read", b"Peek"),
        KAFKA_BYTES.replace(b'"host"', b'"hosts"'), KAFKA_BYTES.replace(b'"User:bob"', b"7"), b"\xff",
    ],
)  # fmt: skip
def test_a_malformed_node_is_refused_as_a_whole(data: bytes | None) -> None:
    with pytest.raises(MalformedZnodeError, match="/kafka-acl/Topic/rides"):
        znodes.decode_acls("/kafka-acl/Topic/rides", data)


@pytest.mark.parametrize("data", [b"", b"rides", b"Planet:earth", b"\xff", None])
def test_a_malformed_change_is_refused(data: bytes | None) -> None:
    for folder in ("/kafka-acl-changes", "/kafka-acl-extended-changes"):
        with pytest.raises(MalformedZnodeError):
            znodes.decode_acl_change(f"{folder}/acl_changes_0", data)


class World:
    """A server, a client that stands for Kafka's tool, and readers."""

    def __init__(self) -> None:
        self.scheduler = VirtualTime()
        self.server = MemoryZooKeeperServer(self.scheduler)
        tool = MemoryZooKeeper(self.server, self.scheduler, session_timeout_ms=60_000, link=Link())
        self.tool = Recorder(tool)
        self.settle(lambda: tool.connected)
        self.readers: list[Reader] = []

    def settle(self, until: Callable[[], bool]) -> None:
        self.scheduler.run_until(until)

    def reader(self, connected: bool = True) -> "Reader":
        reader = Reader(self)
        self.readers.append(reader)
        if connected:
            self.settle(lambda: reader.rules is not None)
        return reader

    def do(self, *requests: Any) -> list[Any]:
        done = self.tool.submit(*requests)
        self.settle(lambda: bool(done))
        return done

    def pass_ms(self, ms: float) -> None:
        self.scheduler.run_for(ms)


class Reader:
    """A node's client with the reader around it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.link = Link()
        self.client = MemoryZooKeeper(world.server, world.scheduler, session_timeout_ms=6_000, link=self.link)
        self.generations: list[AccessRules] = []
        self.lists = AccessListReader(self.client, world.scheduler, random.Random(1), self.generations.append)
        self.node = Recorder(self.lists)

    @property
    def rules(self) -> AccessRules | None:
        return self.lists.rules

    def names(self) -> list[str]:
        assert self.rules is not None
        return [str(acl.resource) for acl in self.rules.acls()]

    def write(self, resource: ResourcePattern, *entries: AclEntry) -> AclChange:
        answers: list[AclChange | Exception] = []
        self.lists.change(resource, lambda _old: entries, answers.append)
        self.world.settle(lambda: bool(answers))
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


def test_the_nodes_that_kafkas_tools_expect_exist_after_the_start(world: World) -> None:
    reader = world.reader()
    assert reader.names() == []
    (topics, changes) = world.do(GetChildren("/kafka-acl"), GetChildren("/kafka-acl-extended-changes"))
    assert set(topics.children) == {"Topic", "Group", "Cluster", "TransactionalId", "DelegationToken"}
    assert changes.ok


def test_a_reader_follows_the_changes_of_another_client(world: World) -> None:
    reader = world.reader()
    world.do(Create("/kafka-acl/Topic/rides", KAFKA_BYTES))
    world.do(Create("/kafka-acl-changes/acl_changes_", b"TOPIC:rides", sequential=True))
    world.pass_ms(1_000)
    assert reader.names() == ["Topic:LITERAL:rides"] * 2
    world.do(Delete("/kafka-acl/Topic/rides"))
    world.do(Create("/kafka-acl-changes/acl_changes_", b"TOPIC:rides", sequential=True))
    world.pass_ms(1_000)
    assert reader.names() == []


def test_a_written_rule_reaches_every_reader_within_a_second(world: World) -> None:
    writer, other = world.reader(), world.reader()
    assert writer.write(TEAM, ALICE_READS) == ((), (ALICE_READS,))
    assert writer.names() == ["Topic:PREFIXED:team-"], "the writer obeys at once"
    world.pass_ms(1_000)
    assert other.names() == ["Topic:PREFIXED:team-"]
    (data,) = world.do(GetData(znodes.acl_path(TEAM)))
    assert data.data == znodes.encode_acls([ALICE_READS])


def test_the_last_rule_removed_deletes_the_node(world: World) -> None:
    reader = world.reader()
    reader.write(RIDES, ALICE_READS)
    assert reader.write(RIDES) == ((ALICE_READS,), ())
    (found,) = world.do(GetData(znodes.acl_path(RIDES)))
    assert not found.ok


def test_no_change_writes_nothing(world: World) -> None:
    reader = world.reader()
    reader.write(RIDES, ALICE_READS)
    reader.write(RIDES, ALICE_READS, ALICE_READS)
    (data, changes) = world.do(GetData(znodes.acl_path(RIDES)), GetChildren("/kafka-acl-changes"))
    assert data.stat.version == 0 and len(changes.children) == 1


def test_two_writers_lose_no_rule(world: World) -> None:
    first, second = world.reader(), world.reader()
    done: list[AclChange | Exception] = []
    first.lists.change(RIDES, lambda old: (*old, ALICE_READS), done.append)
    second.lists.change(RIDES, lambda old: (*old, BOB_DENIED), done.append)
    world.settle(lambda: len(done) == 2)
    (data,) = world.do(GetData(znodes.acl_path(RIDES)))
    assert set(znodes.decode_acls("", data.data)) == {ALICE_READS, BOB_DENIED}


def test_a_lost_reply_of_a_write_is_settled_by_reading_back(world: World) -> None:
    reader = world.reader()
    reader.link.lose_next_reply()
    assert reader.write(RIDES, ALICE_READS)[1] == (ALICE_READS,)
    world.pass_ms(5_000)
    assert reader.names() == ["Topic:LITERAL:rides"]


def test_a_reader_that_was_away_reads_everything_again(world: World) -> None:
    writer, away = world.reader(), world.reader()
    away.link.cut()
    writer.write(RIDES, ALICE_READS)
    world.do(
        *(Delete(f"/kafka-acl-changes/{name}") for name in world.do(GetChildren("/kafka-acl-changes"))[0].children)
    )
    world.pass_ms(4_000)
    away.client.disconnect()
    assert away.names() == [], "the last known rules hold"
    away.link.heal()
    world.pass_ms(10_000)
    assert away.names() == ["Topic:LITERAL:rides"]


def test_a_new_session_reads_everything_again_and_keeps_the_rules_until_then(world: World) -> None:
    writer, away = world.reader(), world.reader()
    writer.write(TEAM, ALICE_READS)
    world.pass_ms(1_000)
    away.link.cut()
    world.pass_ms(60_000)
    writer.write(TEAM)
    assert away.names() == ["Topic:PREFIXED:team-"]
    away.link.heal()
    world.pass_ms(20_000)
    assert away.names() == []


class OlderServer(WrappedZooKeeper):
    """A client of a server without GetMany."""

    def submit(self, requests: Any, on_done: Any) -> None:
        if any(isinstance(request, GetMany) for request in requests):
            on_done([Response(ZkCode.UNIMPLEMENTED)] * len(requests))
        else:
            self._inner.submit(requests, on_done)


def test_an_older_server_is_read_node_by_node(world: World) -> None:
    world.reader().write(RIDES, ALICE_READS)
    client = MemoryZooKeeper(world.server, world.scheduler, session_timeout_ms=6_000, link=Link())
    lists = AccessListReader(OlderServer(client), world.scheduler, random.Random(1), lambda _rules: None)
    Recorder(lists)
    world.settle(lambda: lists.rules is not None)
    assert lists.rules is not None and [str(acl.resource) for acl in lists.rules.acls()] == ["Topic:LITERAL:rides"]


def test_a_reader_that_never_connected_has_no_rules(world: World) -> None:
    reader = Reader(world)
    reader.link.cut()
    world.pass_ms(60_000)
    assert reader.rules is None and not reader.generations


def test_rules_that_cannot_be_parsed_refuse_and_are_repaired_by_removing_all(world: World) -> None:
    world.reader().write(RIDES, ALICE_READS)
    world.do(SetData("/kafka-acl/Topic/rides", b"{"))
    reader = world.reader()
    assert reader.rules is not None and isinstance(reader.rules.resources[RIDES], UnreadableResource)
    assert not reader.rules.decide("User:alice", "", Operation.READ, ResourceType.TOPIC, "rides", True).allowed
    with pytest.raises(InvalidRequestError, match="remove all rules on Topic:LITERAL:rides first"):
        reader.write(RIDES, ALICE_READS)
    reader.write(RIDES)
    assert reader.rules.resources == {}
    reader.write(RIDES, ALICE_READS)
    assert reader.names() == ["Topic:LITERAL:rides"]


def test_a_change_node_that_cannot_be_parsed_makes_readers_read_everything(world: World) -> None:
    reader = world.reader()
    world.do(Create("/kafka-acl/Topic/rides", KAFKA_BYTES))
    world.do(Create("/kafka-acl-changes/acl_changes_", b"nonsense", sequential=True))
    world.pass_ms(1_000)
    assert len(reader.names()) == 2
    generations = len(reader.generations)
    world.pass_ms(60_000)
    assert len(reader.generations) == generations, "the node is not read again and again"


def test_old_change_nodes_are_deleted(world: World) -> None:
    reader = world.reader()
    reader.write(RIDES, ALICE_READS)
    world.pass_ms(CHANGES_KEPT_MS + 1_000)
    reader.write(RIDES, BOB_DENIED)
    world.pass_ms(1_000)
    (changes,) = world.do(GetChildren("/kafka-acl-changes"))
    assert len(changes.children) == 1
    reader.write(RIDES)
    world.pass_ms(1_000)
    assert reader.names() == []


def test_a_deleted_folder_of_changes_is_created_again(world: World) -> None:
    reader = world.reader()
    world.do(Delete("/kafka-acl-changes"))
    world.pass_ms(10_000)
    reader.write(RIDES, ALICE_READS)
    other = world.reader()
    assert other.names() == ["Topic:LITERAL:rides"] == reader.names()
    (changes,) = world.do(GetChildren("/kafka-acl-changes"))
    assert changes.ok and len(changes.children) == 1


def test_watches_of_access_lists_do_not_reach_the_node(world: World) -> None:
    reader = world.reader()
    reader.node.submit(GetChildren("/kafka-acl", watch=True))
    world.pass_ms(100)
    reader.write(RIDES, ALICE_READS)
    world.do(Create("/kafka-acl/other", b""))
    world.pass_ms(1_000)
    assert [event.path for event in reader.node.watch_events] == ["/kafka-acl"]
