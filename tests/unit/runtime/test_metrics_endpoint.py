"""The metrics endpoint with hostile clients and clients that disconnect."""

import contextlib
import http.client
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from paceline.runtime.metrics import Metrics
from paceline.runtime.metrics_endpoint import MetricsEndpoint
from tests.support.waiting import eventually

WAIT_S = 60.0
MOST = 32


@pytest.fixture
def endpoint() -> Iterator[Any]:
    metrics = Metrics()
    metrics.serve("127.0.0.1", 0)
    server: Any = metrics._server
    yield server
    metrics.close()


def connected(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), WAIT_S)


def is_scraped(server: Any) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=WAIT_S) as answer:
            return b"paceline_build_info" in answer.read()
    except OSError:
        return False


def test_an_idle_connection_is_closed_and_its_thread_ends(endpoint: Any) -> None:
    endpoint.longest_silence_s = 0.2
    threads = threading.active_count()
    with connected(endpoint) as silent:
        silent.settimeout(5.0)
        assert silent.recv(1) == b""
    eventually(lambda: threading.active_count() <= threads, WAIT_S, "the connection's thread ends")


def test_connections_beyond_the_limit_are_closed_at_once_and_later_scrapes_succeed(endpoint: Any) -> None:
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(connected(endpoint)) for _ in range(MOST + 8)]

        def closed() -> int:
            return sum(is_closed(one) for one in crowd)

        eventually(lambda: closed() == 8, WAIT_S, "eight of them are closed")
        assert threading.active_count() <= threads + MOST
    eventually(lambda: is_scraped(endpoint), WAIT_S, "a scrape is answered")


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_client_that_resets_its_connection_leaves_nothing_in_the_log(
    endpoint: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    threads = threading.active_count()
    for _ in range(5):
        connection = connected(endpoint)
        eventually(lambda: threading.active_count() > threads, WAIT_S, "the request is being served")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        eventually(lambda: threading.active_count() <= threads, WAIT_S, "the thread of the request ends")
    assert is_scraped(endpoint)
    assert capfd.readouterr().err == ""
    assert caplog.records == []


def test_the_settings_of_a_running_process_are_shown() -> None:
    metrics = Metrics()
    port = metrics.serve("127.0.0.1", 0, lambda: "log.dirs  /data  line 3")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/config")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b"log.dirs  /data  line 3\n")
    connection.close()
    metrics.close()


@pytest.mark.parametrize(
    ("path", "while_serving", "otherwise"),
    [
        ("/metrics", 200, 200),
        ("/healthz", 200, 503),
        ("/readyz", 200, 503),
        ("/livez", 200, 200),
        ("/nothing", 404, 404),
    ],
)
def test_an_http_probe_succeeds_only_while_the_process_serves(path: str, while_serving: int, otherwise: int) -> None:
    metrics = Metrics()
    port = metrics.serve("127.0.0.1", 0)
    found = []
    for metrics.is_serving in (True, False):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        found.append(connection.getresponse().status)
        connection.close()
    metrics.close()
    assert found == [while_serving, otherwise]


def test_an_endpoint_that_was_never_started_stops() -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0, CollectorRegistry())
    stopping = threading.Thread(target=endpoint.stop, daemon=True)
    stopping.start()
    stopping.join(WAIT_S)
    assert not stopping.is_alive() and endpoint.fileno() == -1
