"""Test whether the process at the other end of a closed connection is dead."""

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
"""Resets after which an address is UNREACHABLE: a dying process resets only a few connections, a proxy all of them."""
_CONNECT_TIMEOUT_S: Final = 0.5
_NO_ROUTE: Final = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)


class Reachability(Enum):
    """Result of TCP connects to an address."""

    REFUSED = "refused"
    """The host answers, and no process listens on the port."""
    ACCEPTED = "accepted"
    """A process listens: the same process or its successor."""
    UNREACHABLE = "unreachable"
    """Timeout, no route, unknown host name, or only resets: a removed container, a broken link, or a proxy."""
    UNCLEAR = "unclear"


class DeathWatch:
    """Watches a gRPC channel; pass `connectivity_changed` to its ``subscribe``.

    gRPC's public interface shows that a connection closed, but not why. TCP connects to the address show the cause.
    """

    def __init__(
        self,
        address: str,
        pause_ms: int,
        on_connected: Callable[[], None],
        on_tested: Callable[[bool, Reachability], None],
    ) -> None:
        """Watch a channel to ``address``; report REFUSED only after two refused connects, ``pause_ms`` apart.

        Args:
            address: ``host:port`` of the process.
            pause_ms: pause between two connects.
            on_connected: called when a connection is established.
            on_tested: called on a separate thread, with whether a connection was ever established and the result of the
                connects.
        """
        self._address = address
        self._pause_ms = pause_ms
        self._on_connected = on_connected
        self._on_tested = on_tested
        self._is_connected = False
        self._was_connected = False
        self._is_tested = False

    def connectivity_changed(self, state: grpc.ChannelConnectivity) -> None:
        """Test the address when an established connection has closed, or when no connection can be established."""
        if state is grpc.ChannelConnectivity.READY:
            self._is_connected = self._was_connected = True
            self._is_tested = False
            self._on_connected()
        elif state is grpc.ChannelConnectivity.SHUTDOWN:
            self._is_connected = False  # this process has closed the connection, for example for a new certificate
        else:
            failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if self._is_connected or (failed and not self._is_tested):
                self._is_tested = True
                threading.Thread(target=self._test, name="death-watch", daemon=True).start()
            self._is_connected = False

    def _test(self) -> None:
        outcome = reachability(self._address, self._pause_ms)
        # A process that still accepts may be about to end: test again when gRPC cannot connect.
        self._is_tested = outcome is not Reachability.ACCEPTED
        self._on_tested(self._was_connected, outcome)


def refuses_connects(address: str, pause_ms: int) -> bool:
    """Return whether ``host:port`` refuses two TCP connects in a row, ``pause_ms`` apart."""
    return reachability(address, pause_ms) is Reachability.REFUSED


def reachability(address: str, pause_ms: int) -> Reachability:
    """Return the result of TCP connects to ``host:port``, ``pause_ms`` apart; REFUSED means two refusals in a row.

    When a process dies, its kernel closes connections before the listening socket. A connect in between is reset,
    before or after it was accepted, and this function repeats it.
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
            return _outcome_while_open(connection)
    except ConnectionRefusedError:
        return "refused"
    except ConnectionError:
        return "reset"
    except TimeoutError:
        return "timeout"
    except socket.gaierror:
        return "unknown host"
    except OSError as error:
        return "no route" if error.errno in _NO_ROUTE else type(error).__name__


def _outcome_while_open(connection: socket.socket) -> str:
    try:
        return "accepted" if connection.recv(1) else "reset"
    except TimeoutError:
        return "accepted"
    except ConnectionError:
        return "reset"
