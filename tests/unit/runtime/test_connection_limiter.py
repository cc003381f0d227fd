"""Silent connections above a limit are closed, connections with an accepted call are not."""

import errno
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.rpc.connections import addresses_of
from paceline.runtime import connection_limiter
from paceline.runtime.connection_limiter import Connection, ConnectionLimiter, surplus
from paceline.runtime.metrics import Metrics
from tests.support.waiting import eventually

STRANGER, FRIEND = "10.0.0.9", "10.0.0.1"


def connections(*rows: tuple[str, int]) -> list[Connection]:
    return [Connection("CLIENT", (address, port), port, found) for port, (address, found) in enumerate(rows)]


def test_oldest_connections_of_the_address_above_the_limit_are_closed() -> None:
    silent = connections((STRANGER, 1), (FRIEND, 1), (STRANGER, 1), (STRANGER, 2), (STRANGER, 3))
    closed = surplus(silent, this_pass=3, per_address=2, in_total=100)
    assert [one.peer for one in closed] == [(STRANGER, 0), (STRANGER, 2)]


def test_a_connection_that_this_pass_found_is_not_closed() -> None:
    silent = connections(*[(STRANGER, 7)] * 5)
    assert surplus(silent, this_pass=7, per_address=2, in_total=3) == []
    assert len(surplus(silent, this_pass=8, per_address=2, in_total=3)) == 3


def test_many_addresses_together_leave_half_of_the_places() -> None:
    silent = connections(*[(f"10.0.0.{number}", 1) for number in range(50)])
    closed = surplus(silent, this_pass=2, per_address=10, in_total=20)
    assert closed == silent[:30]


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    silent = connections(*[(f"2001:db8::{number:x}", 1) for number in range(5)], ("2001:db8:0:1::1", 1))
    assert surplus(silent, this_pass=2, per_address=2, in_total=100) == silent[:3]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as made:
        yield made


@pytest.mark.parametrize(
    ("has_descriptor", "per_address", "places", "limit"),
    [
        (True, 2, 100, "max.silent.connections.per.ip"),
        (False, 2, 100, "max.silent.connections.per.ip"),
        (True, 100, 4, "max.connections"),
    ],
)
def test_a_process_closes_its_silent_connections_once_and_keeps_known_peers(
    listener: socket.socket,
    has_descriptor: bool,
    per_address: int,
    places: int,
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the process had no free descriptor when it looked at its sockets for the first time."""
    ends = []
    for _ in range(6):
        client = socket.create_connection(listener.getsockname())
        ends.append((client, listener.accept()[0]))
    if not has_descriptor:
        looked_at: set[int] = set()

        def fail_once(descriptor: int) -> Any:
            if descriptor in looked_at:
                return addresses_of(descriptor)
            looked_at.add(descriptor)
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(connection_limiter, "addresses_of", fail_once)
    friend = "ipv4:{}:{}".format(*ends[0][0].getsockname())
    known = {friend: "", "ipv4:127.0.0.1:1": ""}
    metrics = Metrics()
    limiter = ConnectionLimiter({"CLIENT": known}, per_address, places, metrics)
    limiter.start({"CLIENT": listener.getsockname()[1]})

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"listener": "CLIENT", **labels})

    try:
        # The server has not closed its ends of the three yet, as gRPC may not have under load.
        eventually(lambda: value("paceline_connections") == 3, 30, "three are closed")
    finally:
        limiter.stop()
    refusals = value("paceline_listener_limit_refusals_total", limit=limit)
    assert (refusals, value("paceline_connections_max")) == (3, places)
    assert [client.recv(1) for client, _ in ends[1:4]] == [b""] * 3
    for client, server in (ends[0], *ends[4:]):
        server.sendall(b"x")
        assert client.recv(1) == b"x"
    assert known == {friend: ""}
    for pair in ends:
        for end in pair:
            end.close()


def test_connections_of_a_revoked_certificate_are_closed_and_others_stay(listener: socket.socket) -> None:
    ends = []
    for _ in range(3):
        client = socket.create_connection(listener.getsockname())
        ends.append((client, listener.accept()[0]))
    known = {
        "ipv4:{}:{}".format(*client.getsockname()): number for (client, _), number in zip(ends, "aba", strict=True)
    }
    revoked: set[str] = set()
    limiter = ConnectionLimiter({"CLIENT": known}, 100, 100, Metrics(), lambda number: number in revoked)
    limiter.start({"CLIENT": listener.getsockname()[1]})
    try:
        revoked.add("a")
        for client, _ in (ends[0], ends[2]):
            client.settimeout(30)
            assert client.recv(1) == b""
    finally:
        limiter.stop()
    client, server = ends[1]
    server.sendall(b"x")
    assert client.recv(1) == b"x"
    for pair in ends:
        for end in pair:
            end.close()


def test_known_peers_stay_few_where_sockets_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc the limiter never learns that a connection has ended."""
    monkeypatch.setattr(connection_limiter, "open_sockets", lambda: iter(()))
    monkeypatch.setattr(connection_limiter, "_QUIET_INTERVAL_S", 0.001)
    few = {f"ipv4:127.0.0.1:{port}": "" for port in range(200)}
    many = few | {"ipv4:127.0.0.1:200": ""}
    limiter = ConnectionLimiter({"CLIENT": many, "EXTERNAL": few}, 2, 100, Metrics())
    limiter.start({"CLIENT": 1, "EXTERNAL": 2})
    try:
        eventually(lambda: not many, 10, "the peers are forgotten", pause_s=0.01)
    finally:
        limiter.stop()
    assert len(few) == 200, "a process without a free descriptor keeps the peers of open connections"


def test_a_failed_look_at_the_sockets_is_logged_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = threading.Semaphore(0)

    def fail() -> Any:
        looks.release()
        raise RuntimeError("no such thing as a socket")

    monkeypatch.setattr(connection_limiter, "open_sockets", fail)
    monkeypatch.setattr(connection_limiter, "_QUIET_INTERVAL_S", 0.001)
    limiter = ConnectionLimiter({"CLIENT": {}}, 2, 100, Metrics())
    limiter.start({"CLIENT": 1})
    try:
        assert all(looks.acquire(timeout=10) for _ in range(3)), "it looks again"
    finally:
        limiter.stop()
    assert caplog.text.count("cannot look at the connections") == 1
    assert "RuntimeError: no such thing as a socket" in caplog.text


def test_quiet_looks_take_at_most_one_percent_of_a_processor() -> None:
    """As with thousands of connections; an address near its limit is looked at as often as ever."""
    assert [connection_limiter.pause_s(spent_s, False) for spent_s in (0.001, 0.02, 9.0)] == [1.0, 2.0, 3.0]
    assert connection_limiter.pause_s(0.02, True) == 0.25
