"""Ending the connection of one client, and no other connection."""

import socket
from collections.abc import Iterator

import pytest

from paceline.rpc.connections import address_of_peer, cut_connection

LONG_S = 60.0


class Connection:
    """Both ends of one."""

    def __init__(self, listener: socket.socket) -> None:
        self.client = socket.socket(listener.family)
        self.client.settimeout(LONG_S)
        self.client.connect(listener.getsockname()[:2])
        self.server, _ = listener.accept()
        self.peer = "ipv4:{}:{}".format(*self.client.getsockname())

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_the_connection_to_a_peer_is_ended_and_others_are_not(listener: socket.socket) -> None:
    wanted, other = Connection(listener), Connection(listener)
    try:
        assert cut_connection(wanted.peer)
        assert wanted.client.recv(1) == b""
        other.server.sendall(b"x")
        assert other.client.recv(1) == b"x"
    finally:
        wanted.close()
        other.close()


def test_a_peer_over_ipv4_to_a_dual_stack_socket_is_found() -> None:
    try:
        both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):
        pytest.skip("this machine has no IPv6")
    with both, socket.create_connection(("127.0.0.1", both.getsockname()[1]), LONG_S) as client:
        server, _ = both.accept()
        with server:
            assert cut_connection(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
            assert client.recv(1) == b""


def test_a_peer_without_a_connection_cannot_be_disconnected(listener: socket.socket) -> None:
    connection = Connection(listener)
    connection.close()
    assert not cut_connection(connection.peer)
    assert not cut_connection("unix:/run/somebody")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:50123", ("10.0.0.7", 50123)),
        ("ipv6:%5B::1%5D:50123", ("::1", 50123)),
        ("ipv6:[2001:db8::7]:50123", ("2001:db8::7", 50123)),
        ("ipv6:[::ffff:10.0.0.7]:50123", ("10.0.0.7", 50123)),
        ("unix:/run/somebody", None),
        ("ipv4:nowhere:50123", None),
        ("ipv4:10.0.0.7", None),
        ("", None),
    ],
)
def test_a_peer_string_of_grpc_parses_to_an_address_or_none(peer: str, address: tuple[str, int] | None) -> None:
    assert address_of_peer(peer) == address
