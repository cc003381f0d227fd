"""Hazards Z1 to Z4 of kazoo, on a real server and in memory (docs/protocol/simulator.md#kazoo-hazards)."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.protocol.states import KeeperState

from paceline.coordination.interface import (
    Check,
    Create,
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
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from tests.integration.zookeeper_backends import SHORT_SESSION_MS, Backend, MemoryBackend, RealBackend, RealClient

CONNECTED, DISCONNECTED, IN_DOUBT, EXPIRED, CLOSED = (
    SessionState.CONNECTED,
    SessionState.DISCONNECTED,
    SessionState.IN_DOUBT,
    SessionState.EXPIRED,
    SessionState.CLOSED,
)


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.zookeeper)])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made: Backend
    if request.param == "memory":
        made = MemoryBackend()
    else:
        made = RealBackend(request.getfixturevalue("zookeeper_server"), request.getfixturevalue("zookeeper_chroot"))
    yield made
    made.close()


def test_z1_watches_are_dropped_by_a_reconnect_of_the_same_session(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    session_id = client.zookeeper.session_id
    backend.ask(client, Create("/a"), GetData("/a", watch=True), GetChildren("/", watch=True))
    client.sever()
    backend.time.run_until(lambda: client.recorder.states == [CONNECTED, DISCONNECTED, CONNECTED])
    backend.ask(other, SetData("/a", b"1"), Create("/b"))
    # A watch event would arrive before this response.
    (read,) = backend.ask(client, GetData("/a", watch=True))
    assert read.data == b"1"
    assert client.recorder.watch_events == []
    assert client.zookeeper.session_id == session_id
    backend.ask(other, SetData("/a", b"2"))
    backend.time.run_until(lambda: bool(client.recorder.watch_events))
    assert client.recorder.watch_events == [WatchEvent(WatchType.DATA_CHANGED, "/a")]


def test_z2_a_failed_multi_is_a_failed_response_and_changes_nothing(backend: Backend) -> None:
    client = backend.client()
    backend.ask(client, Create("/fence", b""), Create("/a", b"old"))
    for bad in (Check("/fence", 7), Create("/fence"), SetData("/none", b"")):
        multi = Multi((SetData("/a", b"new"), bad, Create("/c")))
        response, read = backend.ask(client, multi, GetData("/a"))
        assert not response.ok
        assert response.results[1].code is response.code
        assert [response.results[0].code, response.results[2].code] == [ZkCode.ROLLED_BACK] * 2
        assert (read.data, read.stat.version if read.stat else None) == (b"old", 0)


def test_z3_a_request_waiting_at_expiry_is_not_carried_into_the_next_session(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    old_session = client.zookeeper.session_id
    client.cut()
    client.sever()
    backend.time.run_until(lambda: DISCONNECTED in client.recorder.states)
    answers = client.recorder.submit(Create("/mine", ephemeral=True), Create("/mine-too"))
    client.expire()
    client.heal()
    backend.time.run_until(lambda: client.zookeeper.session_id not in (0, old_session))
    assert [answer.code for answer in answers] == [ZkCode.SESSION_EXPIRED] * 2
    assert client.recorder.states == [CONNECTED, DISCONNECTED, EXPIRED, CONNECTED]
    found = backend.ask(other, Exists("/mine"), Exists("/mine-too"))
    assert [response.code for response in found] == [ZkCode.NO_NODE] * 2


def test_z3_requests_in_doubt_end_with_their_session(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    old_session = client.zookeeper.session_id
    client.cut()
    answers: list[ZkCode] = []
    PatientZooKeeper(client.zookeeper).submit(
        [Create("/mine", ephemeral=True)], lambda responses: answers.extend(response.code for response in responses)
    )
    client.sever()
    client.expire()
    client.heal()
    backend.time.run_until(lambda: bool(answers))
    assert answers == [ZkCode.SESSION_EXPIRED]
    backend.time.run_until(lambda: client.zookeeper.session_id not in (0, old_session))
    (found,) = backend.ask(other, Exists("/mine"))
    assert not (found.stat is not None and found.stat.ephemeral_owner == client.zookeeper.session_id)


def test_z4_a_client_that_is_cut_off_detects_it_by_its_own_clock(backend: Backend) -> None:
    client, other = backend.client(SHORT_SESSION_MS), backend.client()
    session_id = client.zookeeper.session_id
    backend.ask(client, Create("/e", ephemeral=True))
    cut_ms = backend.time.now_ms()
    client.cut()
    backend.time.run_until(lambda: IN_DOUBT in client.recorder.states)
    assert backend.time.now_ms() - cut_ms <= SHORT_SESSION_MS + backend.slack_ms
    assert client.recorder.states == [CONNECTED, DISCONNECTED, IN_DOUBT]

    def gone() -> bool:
        return backend.ask(other, Exists("/e"))[0].code is ZkCode.NO_NODE

    backend.time.run_until(gone)
    backend.time.run_for(SHORT_SESSION_MS / 3)
    assert client.recorder.states == [CONNECTED, DISCONNECTED, IN_DOUBT]
    assert client.zookeeper.session_id == session_id
    client.heal()
    backend.time.run_until(lambda: client.zookeeper.connected)
    assert client.recorder.states == [CONNECTED, DISCONNECTED, IN_DOUBT, EXPIRED, CONNECTED]
    told = [entry.session_id for entry in client.recorder.log if isinstance(entry, SessionEvent)]
    assert told[:4] == [session_id] * 4
    assert told[4] == client.zookeeper.session_id != session_id


@pytest.mark.zookeeper
def test_z4_the_answer_that_ends_a_session_is_no_contact(zookeeper_server: Any, zookeeper_chroot: str) -> None:
    """A leader that counts it would answer without a proof until kazoo's listener has run."""
    with contextlib.closing(RealBackend(zookeeper_server, zookeeper_chroot)) as backend:
        client = backend.client(SHORT_SESSION_MS)
        assert isinstance(client, RealClient)
        client.cut()
        client.sever()
        backend.time.run_until(lambda: IN_DOUBT in client.recorder.states)
        client.expire()
        zookeeper: Any = client.zookeeper
        with zookeeper._lock:  # the listener waits for this lock
            client.heal()
            backend.time.run_until(lambda: zookeeper._client._state == KeeperState.EXPIRED_SESSION)
            assert zookeeper.session_may_be_over
        backend.time.run_until(lambda: EXPIRED in client.recorder.states)


def test_z4_a_client_that_keeps_sending_detects_a_dead_connection(backend: Backend) -> None:
    client = backend.client(SHORT_SESSION_MS)
    client.cut()
    cut_ms = backend.time.now_ms()

    def keep_sending() -> bool:
        client.recorder.submit(Exists("/"))
        backend.time.run_for(SHORT_SESSION_MS / 20)
        return DISCONNECTED in client.recorder.states

    backend.time.run_until(keep_sending)
    assert backend.time.now_ms() - cut_ms <= SHORT_SESSION_MS + backend.slack_ms


def test_expiry_of_a_connected_client_is_learnt_by_reconnecting(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    session_id = client.zookeeper.session_id
    backend.ask(client, Create("/e", ephemeral=True))
    client.expire()
    backend.time.run_until(lambda: client.zookeeper.session_id not in (0, session_id))
    assert client.recorder.states == [CONNECTED, DISCONNECTED, EXPIRED, CONNECTED]
    assert backend.ask(other, Exists("/e"))[0].code is ZkCode.NO_NODE


def test_a_request_whose_reply_is_lost_may_have_been_applied(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    backend.ask(client, Create("/a", b"0"))
    client.cut(requests=False)
    answers = client.recorder.submit(SetData("/a", b"1"))
    backend.time.run_until(lambda: backend.ask(other, GetData("/a"))[0].data == b"1")
    assert not answers
    client.sever()
    client.heal()
    backend.time.run_until(lambda: bool(answers))
    assert answers[0].code is ZkCode.CONNECTION_LOSS
    assert client.recorder.states[:2] == [CONNECTED, DISCONNECTED]
    assert isinstance(client.recorder.log[-1], list | SessionEvent)


def test_a_repeated_request_whose_reply_was_lost_is_marked_in_doubt(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    backend.ask(client, Create("/a", b"0"))
    client.cut(requests=False)
    answers: list[Response] = []
    PatientZooKeeper(client.zookeeper).submit([SetData("/a", b"1", 0)], answers.extend)
    backend.time.run_until(lambda: backend.ask(other, GetData("/a"))[0].data == b"1")
    client.sever()
    client.heal()
    backend.time.run_until(lambda: bool(answers))
    assert (answers[0].code, answers[0].in_doubt_before) == (ZkCode.BAD_VERSION, True)


def test_the_loss_of_the_connection_is_reported_before_the_requests_it_failed(backend: Backend) -> None:
    client = backend.client()
    client.cut()
    answers = [client.recorder.submit(Exists("/")) for _ in range(3)]
    client.sever()
    backend.time.run_until(lambda: all(answers))
    kinds = [entry.state if isinstance(entry, SessionEvent) else entry[0].code for entry in client.recorder.log]  # type: ignore[index]
    assert kinds == [CONNECTED, DISCONNECTED] + [ZkCode.CONNECTION_LOSS] * 3


def test_a_watch_event_comes_before_any_answer_that_shows_the_change(backend: Backend) -> None:
    reader, writer = backend.client(), backend.client()
    backend.ask(writer, Create("/a", b"0"))
    for number in range(1, 40):
        backend.ask(reader, GetData("/a", watch=True))
        reader.recorder.log.clear()
        writer.recorder.submit(SetData("/a", str(number).encode()))
        while not reader.recorder.watch_events:
            backend.ask(reader, GetData("/a"))
        for entry in reader.recorder.log:
            if isinstance(entry, WatchEvent):
                break
            assert isinstance(entry, list)
            assert entry[0].data == str(number - 1).encode()


def test_answers_come_in_the_order_of_requests_over_many_submits(backend: Backend) -> None:
    client = backend.client()
    batches = [client.recorder.submit(*(Exists("/") for _ in range(1 + number % 7))) for number in range(200)]
    backend.time.run_until(lambda: all(batches))
    assert [entry for entry in client.recorder.log if isinstance(entry, list)] == batches


def test_closing_ends_the_session_at_once_and_no_event_follows(backend: Backend) -> None:
    client, other = backend.client(), backend.client()
    backend.ask(client, Create("/e", ephemeral=True))
    client.cut()
    answers = client.recorder.submit(Exists("/"))
    client.heal()
    client.zookeeper.close()
    late = client.recorder.submit(Exists("/"))
    backend.time.run_until(lambda: bool(answers) and bool(late) and CLOSED in client.recorder.states)
    assert late[0].code is ZkCode.SESSION_EXPIRED
    backend.time.run_until(
        lambda: backend.ask(other, Exists("/e"))[0].code is ZkCode.NO_NODE, max_ms=1_500 + backend.slack_ms
    )
    assert client.recorder.states == [CONNECTED, CLOSED]


def test_closing_while_cut_off_takes_no_longer_than_its_limit(backend: Backend) -> None:
    client = backend.client()
    client.cut()
    answers = client.recorder.submit(Create("/a"))
    before_ms = backend.time.now_ms()
    client.zookeeper.close()
    assert backend.time.now_ms() - before_ms < 3_000 + backend.slack_ms
    backend.time.run_until(lambda: bool(answers) and CLOSED in client.recorder.states)
    assert answers[0].code is ZkCode.SESSION_EXPIRED
