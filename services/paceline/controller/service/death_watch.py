"""Notices that the process at the other end of a connection is dead, from a closed connection and refused connects."""

import logging
import socket
import threading
from collections.abc import Callable
from typing import Final

import grpc

LOG = logging.getLogger("paceline.controller.transport")

_CONNECTS: Final = 2
_MAX_CONNECTS: Final = 20
_CONNECT_TIMEOUT_S: Final = 1.0


class DeathWatch:
    """Watches one gRPC channel; the argument of its ``subscribe`` is `connectivity_changed`.

    gRPC's public interface shows that a connection closed, not why. Plain TCP connects tell more: a host that refuses
    them runs no process at that port. A connect that succeeds, times out or finds no route is no evidence.
    """

    def __init__(self, address: str, pause_ms: int, on_refused: Callable[[], None]) -> None:
        """``on_refused`` runs on a thread of its own when ``address`` refused two connects, ``pause_ms`` apart."""
        self._address = address
        self._pause_ms = pause_ms
        self._on_refused = on_refused
        self._was_ready = False

    def connectivity_changed(self, state: grpc.ChannelConnectivity) -> None:
        """Test the address when a connection that was established has closed."""
        if state is grpc.ChannelConnectivity.READY:
            self._was_ready = True
        elif self._was_ready and state is not grpc.ChannelConnectivity.SHUTDOWN:
            self._was_ready = False
            threading.Thread(target=self._test, name="death-watch", daemon=True).start()

    def _test(self) -> None:
        if refuses_connects(self._address, self._pause_ms):
            self._on_refused()


def refuses_connects(address: str, pause_ms: int) -> bool:
    """Return whether ``host:port`` refuses two TCP connects in a row, ``pause_ms`` apart.

    While a process dies, its kernel closes connections before the listening socket: a connect in between is accepted
    and reset, and is tried again.
    """
    refused = 0
    for attempt in range(1, _MAX_CONNECTS + 1):
        outcome = connect_outcome(address, pause_ms / 1_000)
        LOG.info("connection closed, connect tested: address=%s attempt=%d outcome=%s", address, attempt, outcome)
        if outcome not in ("refused", "reset"):
            return False
        refused = refused + 1 if outcome == "refused" else 0
        if refused == _CONNECTS:
            return True
        threading.Event().wait(pause_ms / 1_000)
    return False


def connect_outcome(address: str, open_s: float) -> str:
    """Return the outcome of a TCP connect to ``host:port``.

    ``accepted`` when the connection stays open for ``open_s``, ``reset`` when it closes before, ``refused``, or
    the name of another error.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(open_s)
            return _while_open(connection)
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return type(error).__name__


def _while_open(connection: socket.socket) -> str:
    try:
        return "accepted" if connection.recv(1) else "reset"
    except TimeoutError:
        return "accepted"
    except ConnectionError:
        return "reset"
