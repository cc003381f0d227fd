"""Idle connections stay open, because the servers accept keepalive pings at the rate of the clients."""

import threading
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.rpc import server
from paceline.rpc.channels import KEEPALIVE_TIME_MS, channel_options
from paceline.rpc.server import ThreadPoolRpcServer

PING_EVERY_MS = 500
LONG_ENOUGH_S = 6.0
"""Time for several pings: gRPC clients ping at most once a second, and servers tolerate a few excess pings."""


def test_our_clients_ping_less_often_than_our_servers_allow() -> None:
    assert KEEPALIVE_TIME_MS > server.MIN_PING_INTERVAL_MS


def test_an_idle_connection_that_pings_within_the_limit_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MIN_PING_INTERVAL_MS", PING_EVERY_MS // 2)
    listener = ThreadPoolRpcServer("CONTROL", [])
    port = listener.bind("127.0.0.1", 0)
    listener.start()
    closed = threading.Event()
    options = list((dict(channel_options(own_connection=True)) | {"grpc.keepalive_time_ms": PING_EVERY_MS}).items())
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60.0)

            def on_state(state: Any) -> None:
                if state is not grpc.ChannelConnectivity.READY:
                    closed.set()

            connected = threading.Event()
            channel.subscribe(lambda state: connected.set() if state is grpc.ChannelConnectivity.READY else None)
            assert connected.wait(60.0)
            channel.subscribe(on_state)
            closed.clear()
            assert not closed.wait(LONG_ENOUGH_S)
    finally:
        listener.stop(0.0)
