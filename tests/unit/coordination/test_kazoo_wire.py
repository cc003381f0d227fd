"""Sockets of the kazoo client: reading ahead, batched sends, wake-ups, and detection of a silent peer."""

import socket
from collections.abc import Iterator

import pytest

from paceline.coordination.kazoo import wire as zookeeper_wire
from paceline.coordination.kazoo.wire import BufferedSocket, Contact, WakeSocket, WakeUps, select_ready


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(zookeeper_wire.time, "monotonic", lambda: self.now_s)  # type: ignore[attr-defined]


@pytest.fixture
def pair() -> Iterator[tuple[BufferedSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        theirs.settimeout(5)
        yield BufferedSocket(ours, Contact(6.0)), theirs


def test_buffered_data_is_ready_without_a_system_call(pair: tuple[BufferedSocket, socket.socket]) -> None:
    buffered, theirs = pair
    theirs.sendall(b"abcdef")
    assert select_ready([buffered], [], 5.0) == ([buffered], [], [])
    assert buffered.recv(2) == b"ab"
    assert buffered.ready
    assert select_ready([buffered], [], 0.0) == ([buffered], [], [])
    assert (buffered.recv(100), buffered.ready) == (b"cdef", False)
    assert select_ready([buffered], [], 0.0) == ([], [], [])
    theirs.close()
    assert select_ready([buffered], [], 5.0) == ([buffered], [], [])
    assert buffered.recv(1) == b""


def test_data_is_sent_only_before_the_next_wait(pair: tuple[BufferedSocket, socket.socket]) -> None:
    buffered, theirs = pair
    assert buffered.send(b"one") + buffered.send(b"two") == 6
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(10)
    select_ready([buffered], [], 0.0)
    assert theirs.recv(10) == b"onetwo"


def test_a_peer_that_reads_no_data_is_an_error_and_not_an_endless_wait() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        buffered = BufferedSocket(ours, Contact(0.03))
        with pytest.raises(OSError, match="timed out writing"):
            buffered.send(b"x" * 8_000_000)


def test_thousands_of_wake_ups_never_block_and_are_all_counted() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        wake_ups = WakeUps(reader, writer)
        ours, kazoos = WakeSocket(reader, wake_ups), WakeSocket(writer, wake_ups)
        for _ in range(10_000):
            kazoos.send(b"\0")
        taken = 0
        while select_ready([ours], [], 0.0)[0]:
            ours.recv(1)
            taken += 1
        assert taken == 10_000
        ours.recv(1)
        kazoos.send(b"\0")
        assert select_ready([ours], [], 5.0)[0] == [ours]


def test_contact_counts_from_the_time_of_the_answered_request(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    contact = Contact(6.0)
    contact.sent()
    clock.now_s += 3
    contact.sent()
    contact.received()
    assert contact.last_s == 100.0
    clock.now_s += 1
    contact.received()
    assert contact.last_s == 100.0


def test_sending_without_answers_fails_after_two_thirds_of_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    contact = Contact(6.0)
    contact.sent()
    clock.now_s += 3.9
    contact.sent()
    clock.now_s += 0.2
    with pytest.raises(OSError, match="no answer"):
        contact.sent()
    contact.opened()
    contact.sent()


def test_answers_on_a_new_connection_are_no_contact_before_the_server_accepts_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first answer may say that the session has expired; a leader would believe to be in contact until then."""
    clock = Clock(monkeypatch)
    contact = Contact(6.0)
    clock.now_s += 20
    contact.opened()
    contact.sent()
    clock.now_s += 1
    contact.received()
    assert contact.last_s == 100.0
    contact.accepted()
    assert contact.last_s == 120.0
    contact.sent()
    clock.now_s += 1
    contact.received()
    assert contact.last_s == 121.0
