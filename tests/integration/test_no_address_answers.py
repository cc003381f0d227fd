"""Errors and log lines of clients name every address that did not answer, and its cause."""

import logging
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from paceline_client import Consumer, PacelineError, Producer
from paceline_client.addresses import by_cause
from paceline_client.errors import BootstrapError

NOBODY = "127.0.0.1:1"


class AsZooKeeper(socketserver.BaseRequestHandler):
    """Answers ``srvr``, and closes other connections, as ZooKeeper does."""

    def handle(self) -> None:
        if self.request.recv(4) == b"srvr":
            self.request.sendall(b"Zookeeper version: 3.9.4\n")


@pytest.fixture
def zookeeper() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), AsZooKeeper) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def send(address: str) -> None:
    with Producer([NOBODY, address], max_block_ms=2_600) as producer:
        producer.send("rides", b"1")


def subscribe(address: str) -> None:
    with Consumer([NOBODY, address], default_api_timeout_ms=2_600) as consumer:
        consumer.subscribe(["rides"])


def test_addresses_with_the_same_cause_share_a_sentence() -> None:
    causes = {"a:1": "connection refused", "b:2": "no certificate", "c:3": "connection refused"}
    assert by_cause(causes) == "a:1, c:3: connection refused; b:2: no certificate"


@pytest.mark.parametrize("use", [send, subscribe])
def test_a_client_says_within_two_seconds_which_addresses_are_silent_and_why(
    use: Callable[[str], None], zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.time()
    with pytest.raises(BootstrapError) as raised:
        use(zookeeper)
    silence = (
        f"the bootstrap addresses {NOBODY}, {zookeeper}: {NOBODY}: UNAVAILABLE: connection refused; "
        f"{zookeeper}: this is a port of ZooKeeper, not of a broker or controller"
    )
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in told] == [f"waiting for an answer from {silence}"]
    assert told[0].name == "paceline.client" and 1.5 < told[0].created - began < 2.5
    assert str(raised.value) == f"no answer within 2.6 s from {silence}" and isinstance(raised.value, PacelineError)
