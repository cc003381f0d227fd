"""The health check of containers against real gRPC servers, since it speaks HTTP/2 itself."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from paceline.runtime.healthcheck import HealthCheckError, check, main
from paceline.runtime.metrics_endpoint import MetricsEndpoint

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LONG_S = 60.0
PATIENTLY = ("--timeout", str(LONG_S))
"""A container has three seconds; a busy machine may take longer, and that is not what is tested."""


@pytest.fixture
def servicer() -> health.HealthServicer:
    return health.HealthServicer()


@pytest.fixture
def address(servicer: health.HealthServicer) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait(LONG_S)


def test_a_serving_process_exits_with_zero(servicer: health.HealthServicer, address: str) -> None:
    servicer.set("readiness", SERVING)

    assert check(address, "readiness", LONG_S) == "SERVING"
    assert main([address, *PATIENTLY]) == 0


def test_a_process_that_is_not_ready_exits_with_one_and_prints_it(
    servicer: health.HealthServicer, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servicer.set("readiness", NOT_SERVING)

    assert main([address, *PATIENTLY]) == 1
    assert "readiness is NOT_SERVING" in capsys.readouterr().err


def test_the_empty_service_name_checks_the_whole_process(servicer: health.HealthServicer, address: str) -> None:
    servicer.set("", SERVING)

    assert main([address, "--service", "", *PATIENTLY]) == 0


def test_a_service_that_the_process_does_not_know_is_a_failure(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([address, "--service", "nobody", *PATIENTLY]) == 1
    assert "nobody" in capsys.readouterr().err


def test_an_asyncio_server_is_understood_too() -> None:
    async def ask() -> str:
        server = grpc.aio.server()
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await servicer.set("readiness", SERVING)
        try:
            return await asyncio.to_thread(check, f"127.0.0.1:{port}", "readiness", LONG_S)
        finally:
            await server.stop(None)

    assert asyncio.run(ask()) == "SERVING"


def test_an_address_without_a_listener_is_a_failure() -> None:
    with socket.socket() as taken:  # bound and not listening: no other process can use the port
        taken.bind(("127.0.0.1", 0))
        assert main([f"127.0.0.1:{taken.getsockname()[1]}"]) == 1


def test_a_server_that_never_answers_is_a_failure_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(HealthCheckError, match="timed out"):
        check(f"127.0.0.1:{silent.getsockname()[1]}", "readiness", 0.2)


@pytest.mark.parametrize("bytes_sent", [b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", b""])
def test_a_server_of_another_protocol_is_a_failure(bytes_sent: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(bytes_sent)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HealthCheckError):
            check(f"127.0.0.1:{other.getsockname()[1]}", "readiness", LONG_S)
        thread.join(LONG_S)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:", "127.0.0.1:port"])
def test_an_address_without_a_port_is_a_failure(address: str) -> None:
    assert main([address]) == 1


@pytest.mark.parametrize(("serving", "exit_code"), [(True, 0), (False, 1)])
def test_the_metrics_port_is_asked_when_the_listeners_are_ssl(
    serving: bool, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0, CollectorRegistry(), is_serving=lambda: serving)
    endpoint.start()
    try:
        assert main([f"http://127.0.0.1:{endpoint.server_port}/healthz", *PATIENTLY]) == exit_code
    finally:
        endpoint.stop()
    assert ("503 Service Unavailable" in capsys.readouterr().err) is not serving


def test_an_answer_that_is_not_http_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"SSH-2.0-server\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HealthCheckError, match="not HTTP"):
            check(f"http://127.0.0.1:{other.getsockname()[1]}/healthz", "readiness", LONG_S)
        thread.join(LONG_S)
