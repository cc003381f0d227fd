"""Notices that the process at the other end of a connection is dead, from a closed connection and refused connects."""

import logging
import socket
import threading
from collections.abc import Callable
from typing import Final

import grpc

LOG = logging.getLogger("paceline.controller.transport")

_CONNECTS: Final = 2
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
    """Return whether ``host:port`` refuses two TCP connects, ``pause_ms`` apart; blocks for that long."""
    for attempt in range(1, _CONNECTS + 1):
        if attempt > 1:
            threading.Event().wait(pause_ms / 1_000)
        outcome = connect_outcome(address)
        LOG.info("connection closed, connect tested: address=%s attempt=%d outcome=%s", address, attempt, outcome)
        if outcome != "refused":
            return False
    return True


def connect_outcome(address: str) -> str:
    """Return ``accepted``, ``refused``, or the name of another error of a TCP connect to ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S):
            return "accepted"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return type(error).__name__
