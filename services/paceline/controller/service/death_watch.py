"""Looks for signs that the process at the other end of a connection is dead, after the connection has closed."""

import errno
import logging
import socket
import threading
from collections.abc import Callable
from enum import Enum
from typing import Final

import grpc

LOG = logging.getLogger("paceline.controller.transport")

_CONNECTS: Final = 2
_MAX_RESETS: Final = 5
"""A dying process accepts and resets for a moment; a proxy in front of a dead process, for as long as it runs."""
_CONNECT_TIMEOUT_S: Final = 0.5
_NO_ROUTE: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class Reachability(Enum):
    """The outcome of a few TCP connects to one address."""

    REFUSED = "refused"
    """A host answers, and no process listens at that port."""
    ACCEPTED = "accepted"
    """A process listens: the same one as before, or its successor."""
    UNREACHABLE = "unreachable"
    """No answer in time, no route, an unknown host name, only resets: a removed container, a cut link, a proxy."""
    UNCLEAR = "unclear"


class DeathWatch:
    """Watches one gRPC channel; the argument of its ``subscribe`` is `connectivity_changed`.

    gRPC's public interface shows that a connection closed, not why. Plain TCP connects tell more.
    """

    def __init__(
        self,
        address: str,
        pause_ms: int,
        on_connected: Callable[[], None],
        on_tested: Callable[[bool, Reachability], None],
    ) -> None:
        """Watch a channel to ``address``; two refused connects in a row, ``pause_ms`` apart, count as refused.

        Args:
            address: of the process, ``host:port``.
            pause_ms: between two connects.
            on_connected: called when a connection is established.
            on_tested: called, on a thread of its own, with whether a connection was ever established and with the
                outcome of the connects.
        """
        self._address = address
        self._pause_ms = pause_ms
        self._on_connected = on_connected
        self._on_tested = on_tested
        self._is_connected = False
        self._was_connected = False
        self._is_tested = False

    def connectivity_changed(self, state: grpc.ChannelConnectivity) -> None:
        """Test the address when an established connection has closed, or when none can be made."""
        if state is grpc.ChannelConnectivity.READY:
            self._is_connected = self._was_connected = True
            self._is_tested = False
            self._on_connected()
        elif state is not grpc.ChannelConnectivity.SHUTDOWN:
            failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if self._is_connected or (failed and not self._is_tested):
                self._is_tested = True
                threading.Thread(target=self._test, name="death-watch", daemon=True).start()
            self._is_connected = False

    def _test(self) -> None:
        outcome = reachability(self._address, self._pause_ms)
        # A process that still accepts may be about to end: look again when gRPC cannot connect.
        self._is_tested = outcome is not Reachability.ACCEPTED
        self._on_tested(self._was_connected, outcome)


def refuses_connects(address: str, pause_ms: int) -> bool:
    """Return whether ``host:port`` refuses two TCP connects in a row, ``pause_ms`` apart."""
    return reachability(address, pause_ms) is Reachability.REFUSED


def reachability(address: str, pause_ms: int) -> Reachability:
    """Return how ``host:port`` answers TCP connects, ``pause_ms`` apart: refused means two in a row.

    While a process dies, its kernel closes connections before the listening socket: a connect in between is accepted
    and reset, and is tried again.
    """
    refused = resets = 0
    while refused < _CONNECTS:
        outcome = connect_outcome(address, pause_ms / 1_000)
        LOG.info("connection closed, connect tested: address=%s outcome=%s", address, outcome)
        if outcome == "accepted":
            return Reachability.ACCEPTED
        if outcome == "reset":
            refused, resets = 0, resets + 1
        elif outcome == "refused":
            refused += 1
        if outcome in ("timeout", "no route", "unknown host") or resets == _MAX_RESETS:
            return Reachability.UNREACHABLE
        if outcome not in ("refused", "reset"):
            return Reachability.UNCLEAR
        if refused < _CONNECTS:
            threading.Event().wait(pause_ms / 1_000)
    return Reachability.REFUSED


def connect_outcome(address: str, open_s: float) -> str:
    """Return the outcome of a TCP connect to ``host:port``.

    ``accepted`` when the connection stays open for ``open_s``, ``reset`` when it closes before, ``refused``,
    ``timeout``, ``no route``, ``unknown host``, or the name of another error.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(open_s)
            return _while_open(connection)
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "timeout"
    except socket.gaierror:
        return "unknown host"
    except OSError as error:
        return "no route" if error.errno in _NO_ROUTE else type(error).__name__


def _while_open(connection: socket.socket) -> str:
    try:
        return "accepted" if connection.recv(1) else "reset"
    except TimeoutError:
        return "accepted"
    except ConnectionError:
        return "reset"
