"""The death watch tells a dead process from a closed connection, over real sockets."""

import contextlib
import socket
import threading

import grpc
import pytest

from paceline.controller.service import death_watch
from paceline.controller.service.death_watch import DeathWatch, Reachability, reachability
from tests.support.waiting import eventually

READY, IDLE = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE
CONNECTING = grpc.ChannelConnectivity.CONNECTING
FAILED, SHUTDOWN = grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN
PAUSE_MS = 20


def test_an_address_without_a_listener_is_refused_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert reachability(f"127.0.0.1:{port}", PAUSE_MS) is Reachability.REFUSED


def test_a_listener_is_no_evidence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert reachability(f"127.0.0.1:{listener.getsockname()[1]}", PAUSE_MS) is Reachability.ACCEPTED


def test_a_process_that_resets_connections_before_it_ends_is_refused_in_the_end() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def die() -> None:
        for _ in range(2):
            listener.accept()[0].close()
        listener.close()

    thread = threading.Thread(target=die)
    thread.start()
    assert reachability(f"127.0.0.1:{port}", 200) is Reachability.REFUSED
    thread.join()


def test_a_proxy_in_front_of_a_dead_process_is_unreachable() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def reset_all() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    thread = threading.Thread(target=reset_all)
    thread.start()
    assert reachability(f"127.0.0.1:{listener.getsockname()[1]}", 200) is Reachability.UNREACHABLE
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize(
    "error", [TimeoutError(), socket.gaierror(-2, "unknown"), OSError(113, "no route"), OSError(101, "no network")]
)
def test_no_answer_no_name_and_no_route_are_unreachable(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> socket.socket:
        raise error

    monkeypatch.setattr(death_watch.socket, "create_connection", fail)
    assert reachability("127.0.0.1:1", PAUSE_MS) is Reachability.UNREACHABLE


class Watched:
    """A death watch that gets channel states from the test; records its callbacks."""

    def __init__(self, address: str) -> None:
        self.connected = 0
        self.tested: list[tuple[bool, Reachability]] = []
        self.watch = DeathWatch(address, PAUSE_MS, self._connected, lambda *told: self.tested.append(told))

    def _connected(self) -> None:
        self.connected += 1

    def change(self, *states: grpc.ChannelConnectivity) -> None:
        for state in states:
            self.watch.connectivity_changed(state)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_closed_connection_is_tested_once() -> None:
    watched = Watched(free_address())
    watched.change(READY, IDLE, FAILED, IDLE, FAILED)
    eventually(lambda: watched.tested, 10.0, "the address is tested")
    assert (watched.connected, watched.tested) == (1, [(True, Reachability.REFUSED)])


def test_a_first_connection_that_fails_is_tested_once_and_reported_as_the_first() -> None:
    watched = Watched(free_address())
    watched.change(IDLE, FAILED, IDLE, FAILED)
    eventually(lambda: watched.tested, 10.0, "the address is tested")
    assert watched.tested == [(False, Reachability.REFUSED)]


def test_a_process_that_still_accepts_is_tested_again_when_grpc_cannot_connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watched = Watched(f"127.0.0.1:{listener.getsockname()[1]}")
        watched.change(READY, IDLE)
        eventually(lambda: watched.tested, 10.0, "the address is tested")
    watched.change(FAILED)
    eventually(lambda: len(watched.tested) == 2, 10.0, "the address is tested again")
    assert watched.tested == [(True, Reachability.ACCEPTED), (True, Reachability.REFUSED)]


@pytest.mark.parametrize("after", [(), (IDLE, CONNECTING, READY)], ids=["for good", "for a renewed certificate"])
def test_closing_the_channel_tests_nothing(after: tuple[grpc.ChannelConnectivity, ...]) -> None:
    watched = Watched(free_address())
    watched.change(READY, SHUTDOWN, *after)
    assert not any(thread.name == "death-watch" for thread in threading.enumerate())
    assert watched.tested == []
