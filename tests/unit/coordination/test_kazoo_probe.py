"""Last transaction ids of ZooKeeper servers, and the decision whether the ensemble has lost its data."""

import socket
import threading
from collections.abc import Iterator

import pytest

from paceline.coordination.kazoo.probe import lost_data

ANSWER = b"Zookeeper version: 3.9.3\nLatency min/avg/max: 0/0.5/9\nZxid: 0x%s\nMode: %s\nNode count: 5\n"


class Servers:
    """Listeners that each answer ``srvr`` with a fixed text."""

    def __init__(self) -> None:
        self._listeners: list[socket.socket] = []

    def add(self, answer: bytes) -> tuple[str, int]:
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        threading.Thread(target=self._serve, args=(listener, answer), daemon=True).start()
        return "127.0.0.1", listener.getsockname()[1]

    def _serve(self, listener: socket.socket, answer: bytes) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4)
                connection.sendall(answer)

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


@pytest.mark.parametrize("mode", [b"standalone", b"leader"])
def test_an_older_transaction_id_on_the_newest_server_proves_lost_data(servers: Servers, mode: bytes) -> None:
    host, port = servers.add(ANSWER % (b"1a", mode))
    assert lost_data([(host, port)], 0x1B, 20.0) == f"{host}:{port} is at transaction 0x1a, and we have seen 0x1b"
    assert lost_data([(host, port)], 0x1A, 20.0) is None


def test_an_older_transaction_id_on_a_lagging_follower_proves_nothing(servers: Servers) -> None:
    follower = servers.add(ANSWER % (b"1", b"follower"))
    assert lost_data([follower], 9, 20.0) is None
    leader = servers.add(ANSWER % (b"2", b"leader"))
    found = lost_data([follower, leader], 9, 20.0)
    assert found is not None and str(leader[1]) in found


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"This ZooKeeper instance is not currently serving requests\n",
        b"srvr is not executed because it is not in the whitelist.\n",
        b"Zxid: nonsense\nMode: leader\n",
    ],
)
def test_a_malformed_answer_proves_nothing(servers: Servers, answer: bytes) -> None:
    assert lost_data([servers.add(answer)], 9, 20.0) is None


def test_an_unreachable_server_proves_nothing() -> None:
    assert lost_data([("127.0.0.1", 1)], 9, 20.0) is None
