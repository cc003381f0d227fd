"""Close connections that make no call, and those of revoked certificates, which gRPC's servers cannot close.

gRPC counts a connection from the moment when it accepts it, and closes every further one above ``max.connections``.
Without this limit, callers without a certificate could take the places of nodes and clients
(docs/protocol/limits.md#silent-callers).
"""

import ipaddress
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from paceline.rpc.connections import Address, address_of_peer, addresses_of, open_sockets, shut_down
from paceline.runtime.metrics import Metrics

LOG = logging.getLogger("paceline.rpc")

_LIMIT: Final = "max.silent.connections.per.ip"
_TOTAL: Final = "max.connections"
"""Setting behind the limit of all addresses, half of the places."""
_INTERVAL_S: Final = 0.25
_QUIET_INTERVAL_S: Final = 1.0
"""Interval while no address has half of its silent connections."""
_QUIET_SHARE: Final = 0.01
_LONGEST_INTERVAL_S: Final = 3.0
"""Share of a processor for quiet looks, which list every socket; and the longest interval for its sake."""
_LOG_INTERVAL_S: Final = 60.0
_CLOSED_AT_ONCE: Final = 8
_PAUSE_S: Final = 0.002
"""Pause after so many connections: the thread that handles them in gRPC also delivers every request."""

_parsed = lru_cache(16_384)(address_of_peer)


@dataclass(frozen=True, slots=True)
class Connection:
    """A socket of this process; ``listener`` is empty unless a listener accepted it, and after it was shut down."""

    listener: str
    peer: Address
    inode: int
    found_in: int
    """Number of the pass that found it."""

    @property
    def address(self) -> str:
        """The peer's IP address, with IPv6 its /64 network, because a host can use every address of its network."""
        host = self.peer[0]
        return str(ipaddress.ip_network((host, 64), strict=False)) if ":" in host else host


def surplus(silent: Sequence[Connection], this_pass: int, per_address: int, in_total: int) -> list[Connection]:
    """Return the silent connections of a listener to close so that both limits hold.

    These are the oldest, because a caller with an identity makes a call within moments of connecting; never those that
    this pass found.
    """
    counts = Counter(one.address for one in silent)
    left, closed = len(silent), []
    for one in silent:
        if one.found_in < this_pass and (counts[one.address] > per_address or left > in_total):
            closed.append(one)
            counts[one.address] -= 1
            left -= 1
    return closed


def pause_s(spent_s: float, is_near_limit: bool) -> float:
    """Return the time until the next look, after a look that took ``spent_s`` of a processor."""
    if is_near_limit:
        return _INTERVAL_S
    return min(max(_QUIET_INTERVAL_S, spent_s / _QUIET_SHARE), _LONGEST_INTERVAL_S)


class ConnectionLimiter:
    """A thread that closes silent connections above a limit per address, and above half of the places of a listener.

    It also closes the connections of revoked certificates, so that every kind of call on them ends.

    Args:
        known_peers: by listener, the peers with an accepted call, and the serial numbers of their certificates; closed
            connections are removed.
        per_address: maximum number of silent connections of one address.
        max_connections: places of a listener.
        metrics: receives the numbers of connections.
        is_revoked: whether the certificate with a serial number is revoked.
    """

    def __init__(
        self,
        known_peers: Mapping[str, dict[str, str]],
        per_address: int,
        max_connections: int,
        metrics: Metrics,
        is_revoked: Callable[[str], bool] = lambda _serial_number: False,
    ) -> None:
        self._is_revoked = is_revoked
        self._known_peers = known_peers
        self._max_connections = max_connections
        self._per_address = per_address
        self._metrics = metrics
        self._listeners: Mapping[int, str] = {}
        self._connections: dict[int, Connection] = {}
        """Sockets by inode, oldest first."""
        self._descriptors: dict[int, int] = {}
        self._passes = 0
        self._has_seen_all = False
        """Whether the latest pass has seen every socket."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connection-limiter", daemon=True)

    def start(self, ports: Mapping[str, int]) -> None:
        """Start the thread; ``ports`` has the port of each listener."""
        self._listeners = {port: listener for listener, port in ports.items()}
        for listener in ports:
            self._metrics.connections_max.labels(listener).set(self._max_connections)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        spent_s, is_near_limit, logged_s = 0.0, False, -_LOG_INTERVAL_S
        while not self._stopped.wait(pause_s(spent_s, is_near_limit)):
            begin_s = time.thread_time()
            try:
                is_near_limit = 2 * self._look() > self._per_address
            except Exception:
                if time.monotonic() - logged_s >= _LOG_INTERVAL_S:
                    logged_s = time.monotonic()
                    LOG.exception("cannot look at the connections, trying again: limit=%s", _LIMIT)
            spent_s = time.thread_time() - begin_s

    def _look(self) -> int:
        """Limit every listener; return the largest number of silent connections of one address and listener."""
        # Read known peers before sockets: a connection accepted in between is young, and its peer is kept.
        known = {name: dict(peers) for name, peers in self._known_peers.items()}
        descriptors = dict(open_sockets())
        if not descriptors:  # no descriptor is free to read the list, or the system has no /proc
            for peers in self._known_peers.values():
                if len(peers) > 2 * self._max_connections:  # most of their connections have ended
                    peers.clear()
            return 0
        self._find_connections(descriptors)
        return max((self._limit(listener, known[listener]) for listener in self._listeners.values()), default=0)

    def _limit(self, listener: str, known_peers: Mapping[str, str]) -> int:
        """Close surplus connections; return the largest number of silent connections of one address."""
        known = {_parsed(peer): peer for peer in known_peers}
        connections = [one for one in self._connections.values() if one.listener == listener]
        revoked = {_parsed(peer) for peer, number in known_peers.items() if self._is_revoked(number)}
        self._close_revoked(connections, revoked)
        silent = [one for one in connections if known.pop(one.peer, None) is None]
        if self._has_seen_all:
            for peer in known.values():  # their connections have ended
                self._known_peers[listener].pop(peer, None)
        by_address = Counter(one.address for one in silent)
        most = max(by_address.values(), default=0)
        self._metrics.connections.labels(listener).set(len(connections))
        self._metrics.listener_limits.observe_use(listener, _LIMIT, most)
        closed = surplus(silent, self._passes, self._per_address, self._max_connections // 2)
        counts: Counter[str] = Counter()
        for number, one in enumerate(closed, 1):
            if shut_down(self._descriptors[one.inode], one.peer):
                counts[one.address] += 1
                # Do not count it again in the next pass: gRPC may close the socket later.
                self._connections[one.inode] = replace(one, listener="")
            if number % _CLOSED_AT_ONCE == 0:
                self._stopped.wait(_PAUSE_S)
        for address, count in counts.items():
            limit = _LIMIT if by_address[address] > self._per_address else _TOTAL
            self._metrics.listener_limits.refuse(
                listener, limit, address, "closing connections that make no call", count
            )
        return most

    def _close_revoked(self, connections: Iterable[Connection], peers: Collection[Address | None]) -> None:
        for one in connections if peers else ():
            if one.peer in peers and shut_down(self._descriptors[one.inode], one.peer):
                LOG.warning("closed a connection, certificate revoked: listener=%s peer=%s", one.listener, one.peer[0])

    def _find_connections(self, descriptors: dict[int, int]) -> None:
        self._passes += 1
        self._has_seen_all = True
        self._descriptors = descriptors
        self._connections = {inode: one for inode, one in self._connections.items() if inode in self._descriptors}
        for inode, descriptor in self._descriptors.items():
            if inode not in self._connections:
                try:
                    own, peer = addresses_of(descriptor)
                except OSError:
                    self._has_seen_all = False
                    continue
                listener = self._listeners.get(own[1], "") if own is not None and peer is not None else ""
                self._connections[inode] = Connection(listener, peer or ("", 0), inode, self._passes)
