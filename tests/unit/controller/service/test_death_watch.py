"""Connects that tell a dead process from a live one, on real sockets of the loopback interface."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from paceline.controller.service.death_watch import connect_outcome, refuses_connects

PAUSE_MS = 20


@contextmanager
def listener() -> Iterator[tuple[socket.socket, str]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, f"127.0.0.1:{server.getsockname()[1]}"


def serve(server: socket.socket, handle: Callable[[socket.socket], None]) -> threading.Thread:
    def run() -> None:
        connection, _ = server.accept()
        with connection:
            handle(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_closed_port_refuses_connects() -> None:
    with listener() as (_, address):
        pass
    assert connect_outcome(address, 0.01) == "refused"
    assert refuses_connects(address, PAUSE_MS)


def test_a_process_that_listens_refuses_none() -> None:
    with listener() as (_, address):
        assert connect_outcome(address, 0.01) == "accepted"
        assert not refuses_connects(address, PAUSE_MS)


def test_a_connect_accepted_by_a_dying_process_is_tried_again() -> None:
    """The kernel resets connections in the backlog when it closes the listening socket."""
    with listener() as (server, address):
        thread = serve(server, lambda _: server.close())
        assert refuses_connects(address, PAUSE_MS)
        thread.join(5)


def test_a_connect_reset_before_it_is_established_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listening socket can close between the two ends of the handshake."""
    causes = iter([ConnectionResetError(), ConnectionRefusedError(), ConnectionRefusedError()])

    def connect(*_: object, **__: object) -> socket.socket:
        raise next(causes)

    monkeypatch.setattr(socket, "create_connection", connect)
    assert refuses_connects("127.0.0.1:9094", PAUSE_MS)


def test_an_address_that_does_not_exist_is_no_evidence() -> None:
    assert not refuses_connects("host.invalid:9094", PAUSE_MS)
