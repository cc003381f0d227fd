"""The health check of containers against the metrics endpoint and against servers that are none."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from paceline.runtime.healthcheck import HealthCheckError, check, main
from paceline.runtime.metrics_endpoint import MetricsEndpoint

LONG_S = 60.0
PATIENTLY = ("--timeout", str(LONG_S))
"""A container has three seconds; a busy machine may take longer, and that is not what is tested."""


@pytest.mark.parametrize(("serving", "exit_code"), [(True, 0), (False, 1)])
def test_the_exit_code_is_that_of_the_metrics_port(
    serving: bool, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0, CollectorRegistry(), is_serving=lambda: serving)
    endpoint.start()
    try:
        assert main([f"http://127.0.0.1:{endpoint.server_port}/healthz", *PATIENTLY]) == exit_code
    finally:
        endpoint.stop()
    assert ("503 Service Unavailable" in capsys.readouterr().err) is not serving


def test_an_address_without_a_listener_is_a_failure() -> None:
    with socket.socket() as taken:  # bound and not listening: no other process can use the port
        taken.bind(("127.0.0.1", 0))
        assert main([f"http://127.0.0.1:{taken.getsockname()[1]}/healthz"]) == 1


def test_a_server_that_never_answers_is_a_failure_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(HealthCheckError, match="timed out"):
        check(f"http://127.0.0.1:{silent.getsockname()[1]}/healthz", 0.2)


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Yield the URL of a server that sends ``answer`` and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{other.getsockname()[1]}/healthz"
        thread.join(LONG_S)


@pytest.mark.parametrize(("answer", "reason"), [(b"SSH-2.0-server\r\n", "not HTTP"), (b"", "closed before")])
def test_an_answer_that_is_not_http_is_a_failure(answer: bytes, reason: str) -> None:
    with answering(answer) as url, pytest.raises(HealthCheckError, match=reason):
        check(url, LONG_S)


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1:", "http://127.0.0.1:port/healthz"])
def test_a_url_without_a_port_is_a_failure(url: str) -> None:
    assert main([url]) == 1
