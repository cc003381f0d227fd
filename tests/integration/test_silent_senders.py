"""Two hundred calls of one connection never send a request; the small requests of another client succeed."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from paceline.rpc.admission.receive_limiter import RECEIVED_AT_ONCE, ReceiveLimiter
from tests.integration.test_stalled_clients import LONG_S, health_of, put_on, serving, unasked, until

SILENT = 200
WAIT_S = 5.0
SLOW_AFTER_S = 0.5
"""In order of arrival, 200 silent calls would make another client wait longer than a call may wait."""


async def test_calls_without_a_request_on_one_connection_do_not_stop_another_client() -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        return b"done"

    receive_limiter = ReceiveLimiter(wait_s=WAIT_S, slow_after_s=SLOW_AFTER_S)
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(LONG_S)
        yield from ()

    handlers: dict[str, Any] = {
        "Silent": grpc.unary_unary_rpc_method_handler(unasked),
        "Put": grpc.unary_unary_rpc_method_handler(answer),
    }
    async with serving(handlers, limiter=receive_limiter) as server:
        target = f"127.0.0.1:{server.port}"
        await server.set_serving(True)
        async with grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as other:
            with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as crowded:
                begin = crowded.stream_unary("/test.Stalled/Silent")
                calls = [begin.future(nothing(), timeout=LONG_S) for _ in range(SILENT)]
                await until(lambda: receive_limiter.under_way >= RECEIVED_AT_ONCE)
                for _ in range(20):
                    assert await put_on(other)(b"", timeout=LONG_S) == b"done"
                assert await health_of(server) == "SERVING"
                over.set()
                for call in calls:
                    call.cancel()
        await until(lambda: receive_limiter.under_way == 0)
