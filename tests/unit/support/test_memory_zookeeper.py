"""The in-memory ZooKeeper on virtual time: sessions, watches, lost replies, and the hazards Z1 to Z4.

Source: docs/protocol/simulator.md#kazoo-hazards.
"""

import random
from dataclasses import dataclass

import pytest

from paceline.coordination.interface import (
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Response,
    SessionEvent,
    SessionState,
    SetData,
    WatchEvent,
    WatchType,
    ZkCode,
)
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import AppliedWrite, Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder

TIMEOUT_MS = 6_000
CONNECTED, DISCONNECTED, IN_DOUBT, EXPIRED, CLOSED = (
    SessionState.CONNECTED,
    SessionState.DISCONNECTED,
    SessionState.IN_DOUBT,
    SessionState.EXPIRED,
    SessionState.CLOSED,
)


class RandomLink(Link):
    """Delays drawn from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(requests_per_message=1)
        self._rng = random.Random(seed)

    def request_delay_ms(self) -> float:
        return self._rng.uniform(0, 20)

    def reply_delay_ms(self) -> float:
        return self._rng.uniform(0, 20)


@dataclass
class World:
    scheduler: VirtualTime
    server: MemoryZooKeeperServer
    writes: list[AppliedWrite]

    def client(self, link: Link | None = None) -> tuple[MemoryZooKeeper, Recorder]:
        client = MemoryZooKeeper(self.server, self.scheduler, session_timeout_ms=TIMEOUT_MS, link=link)
        return client, Recorder(client)

    def connected(self, link: Link | None = None) -> tuple[MemoryZooKeeper, Recorder]:
        client, recorder = self.client(link)
        self.scheduler.run_until(lambda: client.connected)
        return client, recorder

    def ask(self, recorder: Recorder, *requests: object) -> list[Response]:
        answers = recorder.submit(*requests)  # type: ignore[arg-type]
        self.scheduler.run_until(lambda: len(answers) == len(requests))
        return answers


@pytest.fixture(params=[1, 2, 3])
def world(request: pytest.FixtureRequest) -> World:
    scheduler = VirtualTime(seed=request.param)
    writes: list[AppliedWrite] = []
    return World(scheduler, MemoryZooKeeperServer(scheduler, on_write=writes.append), writes)


def test_requests_submitted_before_the_connection_wait_for_it(world: World) -> None:
    client, recorder = world.client()
    answers = recorder.submit(Create("/a", b"1"), GetData("/a"))
    assert (client.session_id, client.connected, answers) == (0, False, [])
    world.scheduler.run_until(lambda: bool(answers))
    assert [answer.code for answer in answers] == [ZkCode.OK, ZkCode.OK]
    assert answers[1].data == b"1"
    assert recorder.states == [CONNECTED]
    assert client.session_id in world.server.session_ids()


@pytest.mark.parametrize("seed", range(20))
def test_responses_arrive_in_the_order_of_requests_for_any_delays(world: World, seed: int) -> None:
    _, recorder = world.connected(RandomLink(seed))
    batches = [recorder.submit(Create("/n", str(number).encode()), Delete("/n")) for number in range(10)]
    world.scheduler.run_until(lambda: all(batches))
    assert [entry for entry in recorder.log if isinstance(entry, list)] == batches
    assert all(response.ok for batch in batches for response in batch)


@pytest.mark.parametrize("seed", range(20))
def test_a_watch_event_comes_before_any_response_that_shows_the_change(world: World, seed: int) -> None:
    _, writer = world.connected(RandomLink(seed))
    _, reader = world.connected(RandomLink(seed + 100))
    world.ask(writer, Create("/a", b"old"))
    world.ask(reader, GetData("/a", watch=True))
    write = writer.submit(SetData("/a", b"new"))
    reads = [reader.submit(GetData("/a")) for _ in range(8)]
    world.scheduler.run_until(lambda: bool(write) and all(reads))
    event_at = reader.log.index(WatchEvent(WatchType.DATA_CHANGED, "/a"))
    for entry in reader.log[:event_at]:
        assert not (isinstance(entry, list) and entry[0].data == b"new")


def test_watches_fire_once_and_exists_watches_wait_for_a_creation(world: World) -> None:
    _, recorder = world.connected()
    world.ask(recorder, Exists("/a", watch=True), GetData("/b", watch=True), GetChildren("/", watch=True))
    world.ask(recorder, Create("/a"), SetData("/a", b"1"), Create("/b"), SetData("/b", b"1"))
    assert recorder.watch_events == [
        WatchEvent(WatchType.CREATED, "/a"),
        WatchEvent(WatchType.CHILDREN_CHANGED, "/"),
    ]


def test_a_deleted_node_with_both_kinds_of_watch_gives_one_event(world: World) -> None:
    _, recorder = world.connected()
    world.ask(recorder, Create("/a"), GetData("/a", watch=True), GetChildren("/a", watch=True), Delete("/a"))
    assert recorder.watch_events == [WatchEvent(WatchType.DELETED, "/a")]


def test_an_ephemeral_node_is_deleted_with_its_session_and_watches_fire(world: World) -> None:
    client, recorder = world.connected()
    _, other = world.connected()
    world.ask(recorder, Create("/e", ephemeral=True))
    (seen,) = world.ask(other, Exists("/e", watch=True))
    assert seen.stat is not None
    assert seen.stat.ephemeral_owner == client.session_id
    client.close()
    world.scheduler.run_until(lambda: bool(other.watch_events) and CLOSED in recorder.states)
    assert other.watch_events == [WatchEvent(WatchType.DELETED, "/e")]
    assert recorder.states == [CONNECTED, CLOSED]


def test_a_crashed_clients_session_ends_after_its_timeout_and_one_tick(world: World) -> None:
    client, recorder = world.connected()
    world.ask(recorder, Create("/e", ephemeral=True))
    died_ms = world.scheduler.now_ms()
    client.crash()
    world.scheduler.run_until(lambda: world.server.tree.get("/e") is None)
    assert TIMEOUT_MS <= world.scheduler.now_ms() - died_ms <= TIMEOUT_MS + 500
    assert recorder.states == [CONNECTED]


def test_an_idle_client_keeps_its_session_for_hours(world: World) -> None:
    client, recorder = world.connected()
    session_id = client.session_id
    world.scheduler.run_for(3 * 3_600_000)
    assert (client.session_id, recorder.states) == (session_id, [CONNECTED])
    assert world.server.session_ids() == [session_id]


def test_z1_watches_are_dropped_by_a_reconnect_of_the_same_session(world: World) -> None:
    client, recorder = world.connected()
    session_id = client.session_id
    world.ask(recorder, Create("/a"), GetData("/a", watch=True))
    client.disconnect()
    world.scheduler.run_until(lambda: client.connected)
    world.ask(recorder, SetData("/a", b"1"))
    world.scheduler.run_for(1_000)
    assert recorder.watch_events == []
    assert client.session_id == session_id
    assert recorder.states == [CONNECTED, DISCONNECTED, CONNECTED]


def test_z2_a_failed_multi_is_a_failed_response(world: World) -> None:
    _, recorder = world.connected()
    (response,) = world.ask(recorder, Multi((Create("/a"), Check("/a", 3))))
    assert response.code is ZkCode.BAD_VERSION
    assert [result.code for result in response.results] == [ZkCode.ROLLED_BACK, ZkCode.BAD_VERSION]
    assert world.writes == []


def test_z3_a_request_waiting_at_expiry_is_not_carried_into_the_next_session(world: World) -> None:
    client, recorder = world.connected()
    old_session = client.session_id
    client.link.cut()
    client.disconnect()
    answers = recorder.submit(Create("/mine", ephemeral=True))
    world.server.expire(old_session)
    client.link.heal()
    world.scheduler.run_until(lambda: client.connected)
    assert [answer.code for answer in answers] == [ZkCode.SESSION_EXPIRED]
    assert recorder.states == [CONNECTED, DISCONNECTED, EXPIRED, CONNECTED]
    assert client.session_id not in (0, old_session)
    assert world.server.tree.get("/mine") is None


def test_z4_a_client_that_is_cut_off_detects_it_by_its_own_clock(world: World) -> None:
    client, recorder = world.connected()
    session_id = client.session_id
    cut_ms = world.scheduler.now_ms()
    client.link.cut()
    world.scheduler.run_until(lambda: DISCONNECTED in recorder.states)
    assert world.scheduler.now_ms() - cut_ms <= TIMEOUT_MS * 2 / 3 + 1
    world.scheduler.run_until(lambda: IN_DOUBT in recorder.states)
    assert world.scheduler.now_ms() - cut_ms <= TIMEOUT_MS
    world.scheduler.run_for(10 * TIMEOUT_MS)
    assert recorder.states == [CONNECTED, DISCONNECTED, IN_DOUBT]
    assert session_id not in world.server.session_ids()
    client.link.heal()
    world.scheduler.run_until(lambda: client.connected)
    assert recorder.states == [CONNECTED, DISCONNECTED, IN_DOUBT, EXPIRED, CONNECTED]
    assert [entry.session_id for entry in recorder.log if isinstance(entry, SessionEvent)][:4] == [session_id] * 4


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_z4_a_one_way_cut_is_detected(world: World, direction: str) -> None:
    client, recorder = world.connected()
    client.link.cut(requests=direction == "requests", replies=direction == "replies")
    world.scheduler.run_until(lambda: IN_DOUBT in recorder.states, max_ms=TIMEOUT_MS)
    client.link.heal()
    world.scheduler.run_until(lambda: client.connected)


def test_a_client_is_in_doubt_no_later_than_its_session_can_have_ended(world: World) -> None:
    client, recorder = world.connected()
    session_id = client.session_id
    world.scheduler.run_for(5_000)
    client.link.cut()
    world.scheduler.run_until(lambda: session_id not in world.server.session_ids())
    assert IN_DOUBT in recorder.states


def test_a_cut_shorter_than_the_timeouts_loses_nothing(world: World) -> None:
    client, recorder = world.connected()
    client.link.cut()
    answers = recorder.submit(Create("/a"), GetData("/a"))
    world.scheduler.run_for(1_000)
    assert not answers
    client.link.heal()
    world.scheduler.run_until(lambda: bool(answers))
    assert all(answer.ok for answer in answers)
    assert recorder.states == [CONNECTED]


def test_a_lost_reply_is_a_connection_loss_after_the_write_was_applied(world: World) -> None:
    client, recorder = world.connected()
    client.link.lose_next_reply(to=lambda request: isinstance(request, SetData))
    (created, lost, read) = world.ask(recorder, Create("/a", b"0"), SetData("/a", b"1"), GetData("/a"))
    assert (created.code, lost.code, read.code) == (ZkCode.OK, ZkCode.CONNECTION_LOSS, ZkCode.CONNECTION_LOSS)
    world.scheduler.run_until(lambda: client.connected)
    (again,) = world.ask(recorder, GetData("/a"))
    assert again.data == b"1"


def test_a_request_in_flight_at_a_cut_may_be_applied_after_the_loss_was_reported(world: World) -> None:
    client, recorder = world.connected()
    client.link.cut()
    answers = recorder.submit(Create("/late"))
    world.scheduler.run_until(lambda: bool(answers))
    assert answers[0].code is ZkCode.CONNECTION_LOSS
    assert world.server.tree.get("/late") is None
    client.link.heal()
    world.scheduler.run_until(lambda: client.connected)
    assert world.server.tree.get("/late") is not None


def test_a_lost_handshake_leaves_a_session_the_client_does_not_know(world: World) -> None:
    link = Link()
    link.lose_next_handshake()
    client, recorder = world.connected(link)
    assert len(world.server.session_ids()) == 2
    assert recorder.states == [CONNECTED]
    world.scheduler.run_for(2 * TIMEOUT_MS)
    assert world.server.session_ids() == [client.session_id]


def test_a_server_restart_keeps_nodes_and_sessions_and_restarts_session_timeouts(world: World) -> None:
    client, recorder = world.connected()
    session_id = client.session_id
    world.ask(recorder, Create("/e", ephemeral=True))
    world.server.stop()
    world.scheduler.run_for(5 * TIMEOUT_MS)
    assert recorder.states == [CONNECTED, DISCONNECTED, IN_DOUBT]
    world.server.start()
    world.scheduler.run_until(lambda: client.connected)
    assert client.session_id == session_id
    assert world.server.tree.get("/e") is not None
    world.scheduler.run_for(5 * TIMEOUT_MS)
    assert recorder.states == [CONNECTED, DISCONNECTED, IN_DOUBT, CONNECTED]


def test_expiry_of_a_connected_client_is_learnt_by_reconnecting(world: World) -> None:
    client, recorder = world.connected()
    session_id = client.session_id
    world.ask(recorder, Create("/e", ephemeral=True))
    world.server.expire(session_id)
    assert world.server.tree.get("/e") is None
    world.scheduler.run_until(lambda: client.session_id not in (0, session_id))
    assert recorder.states == [CONNECTED, DISCONNECTED, EXPIRED, CONNECTED]


def test_closing_answers_every_request_and_no_event_follows(world: World) -> None:
    client, recorder = world.connected()
    client.link.cut()
    answers = recorder.submit(Create("/a"))
    client.close()
    late = recorder.submit(Create("/b"))
    client.link.heal()
    world.scheduler.run_for(3 * TIMEOUT_MS)
    assert [answer.code for answer in [*answers, *late]] == [ZkCode.SESSION_EXPIRED] * 2
    assert recorder.states == [CONNECTED, CLOSED]
    assert world.server.session_ids() == []


def test_a_request_too_large_for_any_server_is_refused_by_the_client(world: World) -> None:
    _, recorder = world.connected()
    (response, read) = world.ask(recorder, Create("/a", b"x" * 1024 * 1024), Exists("/a"))
    assert (response.code, read.code) == (ZkCode.BAD_ARGUMENTS, ZkCode.NO_NODE)
    assert recorder.states == [CONNECTED]


def test_an_auditor_gets_every_change_with_versions_session_and_zxid(world: World) -> None:
    client, recorder = world.connected()
    world.ask(recorder, Create("/a", b"0"), Multi((SetData("/a", b"1", 0), Create("/b"))), Delete("/b"))
    seen = [
        (write.change.path, write.change.old_version, write.change.new_version, write.change.multi_index)
        for write in world.writes
    ]
    assert seen == [("/a", None, 0, None), ("/a", 0, 1, 0), ("/b", None, 0, 1), ("/b", 0, None, None)]
    assert {write.session_id for write in world.writes} == {client.session_id}
    zxids = [write.zxid for write in world.writes]
    assert zxids[1] == zxids[2]
    assert zxids == sorted(zxids)


def test_no_requests_are_answered_with_no_responses(world: World) -> None:
    _, recorder = world.connected()
    recorder.submit()
    world.scheduler.run_for(10)
    assert recorder.log[-1] == []
