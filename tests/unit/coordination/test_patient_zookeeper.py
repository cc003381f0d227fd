"""Requests survive connection losses within one session, and a result in doubt is marked."""

from collections.abc import Callable, Sequence
from unittest.mock import create_autospec

import pytest

from paceline.coordination.interface import Create, GetData, Multi, Request, Response, SessionState, SetData, ZkCode
from paceline.coordination.patient_zookeeper import PatientZooKeeper
from tests.support.virtual_time import VirtualTime
from tests.support.zookeeper.client import Link, MemoryZooKeeper, MemoryZooKeeperServer
from tests.support.zookeeper.recorder import Recorder


class World:
    def __init__(self, seed: int) -> None:
        self.scheduler = VirtualTime(seed=seed)
        self.server = MemoryZooKeeperServer(self.scheduler)
        self.link = Link(requests_per_message=1)
        self.client = MemoryZooKeeper(self.server, self.scheduler, session_timeout_ms=6_000, link=self.link)
        self.patient = PatientZooKeeper(self.client)
        self.recorder = Recorder(self.patient)
        self.scheduler.run_until(lambda: self.patient.connected)


@pytest.fixture(params=range(5))
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def is_create(request: Request) -> bool:
    return isinstance(request, Create)


def test_a_write_with_a_lost_reply_is_sent_again_and_marked_in_doubt(world: World) -> None:
    world.link.lose_next_reply(to=is_create)
    answers = world.recorder.submit(Create("/a"))
    world.scheduler.run_until(lambda: bool(answers))
    assert (answers[0].code, answers[0].in_doubt_before) == (ZkCode.NODE_EXISTS, True)


def test_only_unanswered_requests_are_sent_again(world: World) -> None:
    world.link.lose_next_reply(to=lambda request: isinstance(request, Multi))
    answers = world.recorder.submit(Create("/a"), Multi((SetData("/a", b"1"),)), GetData("/a"))
    world.scheduler.run_until(lambda: bool(answers))
    assert [answer.code for answer in answers] == [ZkCode.OK] * 3
    assert [answer.in_doubt_before for answer in answers] == [False, True, True]
    assert answers[2].data == b"1"
    assert answers[2].stat is not None
    assert answers[2].stat.version == 2


def test_a_request_survives_several_losses_within_one_session(world: World) -> None:
    for _ in range(4):
        world.link.lose_next_reply(to=is_create)
    session_id = world.patient.session_id
    answers = world.recorder.submit(Create("/q_", sequential=True))
    world.scheduler.run_until(lambda: bool(answers))
    assert (answers[0].path, answers[0].in_doubt_before) == ("/q_0000000004", True)
    assert world.patient.session_id == session_id


def test_requests_in_doubt_end_with_their_session(world: World) -> None:
    session_id = world.patient.session_id
    world.link.lose_next_reply(to=is_create)
    answers = world.recorder.submit(Create("/a"), GetData("/a"))
    world.scheduler.run_until(lambda: SessionState.DISCONNECTED in world.recorder.states)
    assert not answers
    world.server.expire(session_id)
    world.scheduler.run_until(lambda: bool(answers))
    assert [answer.code for answer in answers] == [ZkCode.SESSION_EXPIRED] * 2
    assert all(answer.in_doubt_before for answer in answers)
    assert world.patient.session_id != session_id


def test_requests_in_doubt_end_when_the_client_is_closed(world: World) -> None:
    world.link.cut()
    answers = world.recorder.submit(Create("/a"))
    world.scheduler.run_until(lambda: SessionState.DISCONNECTED in world.recorder.states)
    world.patient.close()
    world.scheduler.run_until(lambda: bool(answers))
    assert answers[0].code is ZkCode.SESSION_EXPIRED
    world.scheduler.run_for(1)
    assert world.recorder.states[-1] is SessionState.CLOSED


def test_a_request_in_doubt_is_not_sent_in_the_next_session() -> None:
    """The other request of its batch waited for the connection and has ended with the session."""
    submitted: list[tuple[Sequence[Request], Callable[[list[Response]], None]]] = []
    inner = create_autospec(MemoryZooKeeper, instance=True)
    inner.submit.side_effect = lambda requests, on_done: submitted.append((requests, on_done))
    answers: list[Response] = []
    PatientZooKeeper(inner).submit([Create("/a"), Create("/b")], answers.extend)
    submitted[0][1]([Response(ZkCode.CONNECTION_LOSS), Response(ZkCode.SESSION_EXPIRED)])
    assert len(submitted) == 1, "nothing is sent again"
    assert [answer.code for answer in answers] == [ZkCode.SESSION_EXPIRED] * 2
    assert [answer.in_doubt_before for answer in answers] == [True, False]


def test_resent_requests_keep_their_order(world: World) -> None:
    world.link.cut()
    answers = [world.recorder.submit(Create(f"/{number}"), GetData(f"/{number}")) for number in range(5)]
    world.scheduler.run_until(lambda: SessionState.DISCONNECTED in world.recorder.states)
    world.link.heal()
    world.scheduler.run_until(lambda: all(answers))
    assert [entry for entry in world.recorder.log if isinstance(entry, list)] == answers
    assert all(answer[1].ok for answer in answers)
