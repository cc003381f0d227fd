"""Client quotas in ZooKeeper: Kafka's bytes, the reader's view after changes, disconnects and malformed nodes."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.coordination import znodes
from paceline.coordination.client_quotas import QuotaChange, QuotaReader, Quotas
from paceline.coordination.errors import MalformedZnodeError
from paceline.coordination.interface import Create, Delete, GetChildren, GetData, SetData
from paceline.model.quotas import CONSUMER, DEFAULT, MUTATION, PRODUCER, REQUEST, QuotaEntity
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder

ALICE = QuotaEntity("alice")
PAIR = QuotaEntity("alice", "etl")
KAFKA_BYTES = b'{"version":1,"config":{"producer_byte_rate":"1048576","request_percentage":"12.5"}}'


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (ALICE, "users/alice"),
        (QuotaEntity(DEFAULT), "users/<default>"),
        (PAIR, "users/alice/clients/etl"),
        (QuotaEntity("alice", DEFAULT), "users/alice/clients/<default>"),
        (QuotaEntity(DEFAULT, DEFAULT), "users/<default>/clients/<default>"),
        (QuotaEntity(None, "etl"), "clients/etl"),
        (QuotaEntity("CN=a b*,O=ü~/x+y"), "users/CN%3Da%20b%2A%2CO%3D%C3%BC%7E%2Fx%2By"),  # as Kafka's Sanitizer
        (QuotaEntity("a.b-c_d"), "users/a.b-c_d"),
    ],
)
def test_names_are_encoded_as_by_kafka(entity: QuotaEntity, path: str) -> None:
    assert znodes.quota_entity_path(entity) == path
    assert znodes.quota_entity(path) == entity


@pytest.mark.parametrize("path", ["topics/t", "brokers/1", "brokers/<default>", "ips/1.2.3.4", "users/a/b/c", "x"])
def test_other_entities_have_no_quotas(path: str) -> None:
    assert znodes.quota_entity(path) is None


def test_values_that_are_not_numbers_are_named() -> None:
    config = {PRODUCER: "10", CONSUMER: "ten", REQUEST: "-1", MUTATION: "nan", "SCRAM-SHA-256": "salt=x"}
    values, unusable = znodes.quotas_in(config)
    assert values == {PRODUCER: 10.0} and set(unusable) == {CONSUMER, REQUEST, MUTATION}


class World:
    """A server, a client that stands for Kafka's tool, and readers."""

    def __init__(self) -> None:
        self.scheduler = VirtualTime()
        self.server = MemoryZooKeeperServer(self.scheduler)
        tool = MemoryZooKeeper(self.server, self.scheduler, session_timeout_ms=60_000, link=Link())
        self.tool = Recorder(tool)
        self.settle(lambda: tool.connected)

    def settle(self, until: Callable[[], bool]) -> None:
        self.scheduler.run_until(until)

    def reader(self) -> "Reader":
        reader = Reader(self)
        self.settle(lambda: reader.quotas.quotas is not None)
        return reader

    def do(self, *requests: Any) -> list[Any]:
        done = self.tool.submit(*requests)
        self.settle(lambda: bool(done))
        return done

    def announce(self, path: str) -> None:
        self.do(Create(znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(path), sequential=True))
        self.scheduler.run_for(1_000)


class Reader:
    """A node's client with the reader around it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.link = Link()
        self.client = MemoryZooKeeper(world.server, world.scheduler, session_timeout_ms=6_000, link=self.link)
        self.reads: list[Quotas] = []
        self.quotas = QuotaReader(self.client, world.scheduler, random.Random(1), self.reads.append)
        self.node = Recorder(self.quotas)

    def set(self, entity: QuotaEntity, **changes: float | None) -> QuotaChange:
        answers: list[QuotaChange | Exception] = []
        self.quotas.change(entity, changes, answers.append)
        self.world.settle(lambda: bool(answers))
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


def test_a_written_quota_has_kafkas_bytes_and_is_announced(world: World) -> None:
    writer = world.reader()
    assert writer.set(PAIR, producer_byte_rate=1048576.0, request_percentage=12.5)[0] == {}
    data, changes = world.do(GetData("/config/users/alice/clients/etl"), GetChildren("/config/changes"))
    assert data.data == KAFKA_BYTES
    (change,) = world.do(GetData(f"/config/changes/{changes.children[0]}"))
    assert change.data == b'{"version":2,"entity_path":"users/alice/clients/etl"}'
    assert writer.quotas.quotas == {PAIR: {PRODUCER: 1048576.0, REQUEST: 12.5}}, "the writer obeys at once"


def test_every_reader_obeys_within_a_second(world: World) -> None:
    writer, other = world.reader(), world.reader()
    writer.set(ALICE, consumer_byte_rate=5.0)
    world.scheduler.run_for(1_000)
    assert other.quotas.quotas == {ALICE: {CONSUMER: 5.0}}
    old, new = writer.set(ALICE, consumer_byte_rate=None, controller_mutation_rate=2.0)
    assert (old, new) == ({CONSUMER: 5.0}, {MUTATION: 2.0})
    writer.set(ALICE, controller_mutation_rate=None)
    world.scheduler.run_for(1_000)
    assert other.quotas.quotas == {}


def test_a_quota_of_kafkas_tool_is_read(world: World) -> None:
    reader = world.reader()
    world.do(Create("/config/clients/etl", KAFKA_BYTES))
    world.announce("clients/etl")
    assert reader.quotas.quotas == {QuotaEntity(None, "etl"): {PRODUCER: 1048576.0, REQUEST: 12.5}}


def test_other_changes_cause_no_read_of_quotas_and_reach_the_node(world: World) -> None:
    reader = world.reader()
    reads = len(reader.reads)
    world.announce("topics/rides")
    assert len(reader.reads) == reads
    assert [event.path for event in reader.node.watch_events] == [znodes.CONFIG_CHANGES]


def test_a_change_keeps_the_other_settings_of_a_user(world: World) -> None:
    reader = world.reader()
    world.do(
        Create("/config/users/alice", b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x","producer_byte_rate":"7"}}')
    )
    reader.set(ALICE, producer_byte_rate=None)
    (data,) = world.do(GetData("/config/users/alice"))
    assert data.data == b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x"}}'


def test_no_change_writes_nothing(world: World) -> None:
    reader = world.reader()
    reader.set(ALICE, producer_byte_rate=7.0)
    reader.set(ALICE, producer_byte_rate=7.0)
    (data,) = world.do(GetData("/config/users/alice"))
    assert data.stat.version == 0


def test_two_writers_lose_no_change(world: World) -> None:
    first, second = world.reader(), world.reader()
    done: list[QuotaChange | Exception] = []
    first.quotas.change(ALICE, {PRODUCER: 1.0}, done.append)
    second.quotas.change(ALICE, {CONSUMER: 2.0}, done.append)
    world.settle(lambda: len(done) == 2)
    world.scheduler.run_for(1_000)
    assert first.quotas.quotas == second.quotas.quotas == {ALICE: {PRODUCER: 1.0, CONSUMER: 2.0}}


def test_a_reader_that_was_away_reads_everything_again(world: World) -> None:
    writer, away = world.reader(), world.reader()
    writer.set(ALICE, producer_byte_rate=1.0)
    world.scheduler.run_for(1_000)
    away.link.cut()
    writer.set(ALICE, producer_byte_rate=2.0)
    for name in world.do(GetChildren("/config/changes"))[0].children:
        world.do(Delete(f"/config/changes/{name}"))
    world.scheduler.run_for(60_000)
    assert away.quotas.quotas == {ALICE: {PRODUCER: 1.0}}, "the last known quotas hold"
    away.link.heal()
    world.scheduler.run_for(20_000)
    assert away.quotas.quotas == {ALICE: {PRODUCER: 2.0}}


def test_a_node_that_cannot_be_parsed_has_no_quotas_and_spoils_no_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    reader = world.reader()
    reader.set(QuotaEntity("bob"), producer_byte_rate=1.0)
    world.do(Create("/config/users/alice", b"{"))
    world.do(Create("/config/users/carol", b'{"version":1,"config":{"producer_byte_rate":"fast"}}'))
    world.announce("users/alice")
    assert reader.quotas.quotas == {QuotaEntity("bob"): {PRODUCER: 1.0}}
    assert "/config/users/alice" in caplog.text and "/config/users/carol" in caplog.text
    with pytest.raises(MalformedZnodeError):
        reader.set(ALICE, producer_byte_rate=1.0)
    world.do(SetData("/config/users/alice", b'{"version":1,"config":{}}'))
    reader.set(ALICE, producer_byte_rate=1.0)


def test_a_lost_reply_of_a_write_is_settled_by_reading_back(world: World) -> None:
    reader = world.reader()
    reader.link.lose_next_reply()
    assert reader.set(ALICE, producer_byte_rate=3.0)[1] == {PRODUCER: 3.0}
    world.scheduler.run_for(5_000)
    assert reader.quotas.quotas == {ALICE: {PRODUCER: 3.0}}


def test_without_a_connection_there_are_no_quotas(world: World) -> None:
    reader = Reader(world)
    reader.link.cut()
    world.scheduler.run_for(60_000)
    assert reader.quotas.quotas is None and not reader.reads
