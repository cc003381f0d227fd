"""The health service of the control listener, watched by clients that connect and disconnect."""

import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.rpc.server import ThreadPoolRpcServer

ROUNDS = 30
WATCHERS = 12


@pytest.mark.timeout(600)
def test_watchers_that_disconnect_during_a_change_of_health_delay_neither_it_nor_the_stop() -> None:
    def serve() -> None:
        for _ in range(ROUNDS):
            server = ThreadPoolRpcServer("CONTROL", [])
            port = server.bind("127.0.0.1", 0)
            server.start()
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                watches = [stub.Watch(health_pb2.HealthCheckRequest(service="readiness")) for _ in range(WATCHERS)]
                for watch in watches:
                    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
                for number, watch in enumerate(watches):
                    watch.cancel()
                    server.set_serving(number % 2 == 0)
                server.stop(0.1)
        ended.set()

    ended = threading.Event()
    threading.Thread(target=serve, daemon=True).start()
    assert ended.wait(300), "a change of health or the stop waits for ever"
