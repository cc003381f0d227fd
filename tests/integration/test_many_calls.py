"""A server throttles the calls beyond its limit, and its health checks still succeed."""

import asyncio
import contextlib
import gc
import time
import weakref
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from paceline.model.errors import InvalidRequestError, ThrottledError
from paceline.rpc.admission.receive_limiter import ReceiveLimiter
from paceline.rpc.admission.turns import LARGE_BYTES
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.server import AioRpcServer, Service, ThreadPoolRpcServer
from tests.integration.test_stalled_clients import LONG_S, health_of, put_on, serving, until

LIMIT = 20
CROWD = 1_500
"""By default gRPC queues 1,000 calls, drops some of the calls beyond, and drops queued calls after 30 s."""
BUSY_S = 3.0
"""How long the event loop is blocked; with too small a queue, calls fail within a fraction of this time."""


async def test_calls_beyond_the_limit_are_throttled_and_health_is_still_answered() -> None:
    over = asyncio.Event()
    begun: list[bytes] = []

    async def wait(request: bytes, context: Any) -> bytes:
        begun.append(request)
        await over.wait()
        return b"over"

    handlers: dict[str, Any] = {"Put": grpc.unary_unary_rpc_method_handler(wait)}
    async with serving(handlers, max_calls=LIMIT) as server:
        await server.set_serving(True)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            calls = [put_on(channel)(b"", timeout=LONG_S) for _ in range(LIMIT)]
            await until(lambda: len(begun) == LIMIT)
            crowd = [put_on(channel)(b"", timeout=LONG_S) for _ in range(100)]
            for call in crowd:
                with pytest.raises(grpc.RpcError) as failure:
                    await call
                error = from_rpc_error(failure.value)
                assert isinstance(error, ThrottledError)
                assert f"{LIMIT} calls are being handled" in str(error)
            assert await health_of(server) == "SERVING"
            over.set()
            assert [await call for call in calls] == [b"over"] * LIMIT
            assert await put_on(channel)(b"", timeout=LONG_S) == b"over"


async def test_a_refused_request_is_freed_before_the_garbage_collector_runs() -> None:
    """gRPC keeps the frames of a call that was aborted in cycles: a flood of refused requests took more than 1 GiB."""

    class Content:
        """Stands for a large request."""

    contents: weakref.WeakSet[Content] = weakref.WeakSet()

    async def refuse(request: bytes, context: Any) -> bytes:
        content = Content()
        contents.add(content)
        await asyncio.sleep(0)
        raise InvalidRequestError("too large")

    handlers: dict[str, Any] = {"Put": grpc.unary_unary_rpc_method_handler(refuse)}
    async with serving(handlers) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        gc.disable()
        try:
            calls = [put_on(channel)(b"", timeout=LONG_S) for _ in range(50)]
            for call in calls:
                with pytest.raises(grpc.RpcError, match="too large"):
                    await call
            await until(lambda: not contents)
        finally:
            gc.enable()


async def test_the_threads_of_control_free_a_refused_request_before_the_garbage_collector_runs() -> None:
    class Content:
        """Stands for a large request."""

    contents: weakref.WeakSet[Content] = weakref.WeakSet()

    def refuse(request: bytes, context: Any) -> bytes:
        content = Content()
        contents.add(content)
        raise InvalidRequestError("too large")

    handlers = {"Put": grpc.unary_unary_rpc_method_handler(refuse)}
    generic = (grpc.method_handlers_generic_handler("test.Stalled", handlers),)
    service = Service("test.Stalled", lambda target: target.add_generic_rpc_handlers(generic))
    server = ThreadPoolRpcServer("CONTROL", [service])
    port = server.bind("127.0.0.1", 0)
    server.start()
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(50):
                with pytest.raises(grpc.RpcError, match="too large"):
                    await put_on(channel)(b"", timeout=LONG_S)
            await until(lambda: not contents)
    finally:
        gc.enable()
        server.stop(0.0)


async def test_large_requests_take_turns_except_payloads_which_are_not_parsed() -> None:
    async def answer(request: Any, context: Any) -> bytes:
        return b"done"

    taken: list[int] = []
    receive_limiter = ReceiveLimiter()
    turn = receive_limiter.turns.turn

    async def counted() -> None:
        taken.append(1)
        await turn()

    receive_limiter.turns.turn = counted  # type: ignore[method-assign]
    parse = health_pb2.HealthCheckRequest.FromString
    handlers: dict[str, Any] = {
        "Put": grpc.unary_unary_rpc_method_handler(answer),
        "Parsed": grpc.unary_unary_rpc_method_handler(answer, request_deserializer=parse),
    }
    request = health_pb2.HealthCheckRequest(service="s" * LARGE_BYTES).SerializeToString()
    async with (
        serving(handlers, limiter=receive_limiter) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        assert await put_on(channel)(request, timeout=LONG_S) == b"done"
        assert not taken
        assert await channel.unary_unary("/test.Stalled/Parsed")(request, timeout=LONG_S) == b"done"
        assert len(taken) == 1


async def test_open_streams_of_health_and_reflection_count_as_calls() -> None:
    server = AioRpcServer("TEST", [], max_calls=LIMIT)
    server.bind("127.0.0.1", 0)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await server.set_serving(True)
            streams = []
            for _ in range(LIMIT):
                stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=LONG_S)
                await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                assert await stream.read() is not grpc.aio.EOF
                streams.append(stream)
            refused = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=LONG_S) for _ in range(3)]
            for watch in refused:
                with pytest.raises(grpc.RpcError) as failure:
                    await watch.read()
                assert isinstance(from_rpc_error(failure.value), ThrottledError)
            assert await health_of(server) == "SERVING"
            for stream in streams:
                await stream.done_writing()
                assert await stream.code() is grpc.StatusCode.OK
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=LONG_S)
            assert await watch.read() is not grpc.aio.EOF
            watch.cancel()
    finally:
        await server.stop(0)


async def test_calls_during_a_busy_event_loop_wait_for_it() -> None:
    async def answer(request: bytes, context: Any) -> bytes:
        return b"done"

    handlers: dict[str, Any] = {"Put": grpc.unary_unary_rpc_method_handler(answer)}
    async with serving(handlers) as server:
        with contextlib.ExitStack() as stack:
            options = [("grpc.use_local_subchannel_pool", 1)]
            target = f"127.0.0.1:{server.port}"
            channels = [stack.enter_context(grpc.insecure_channel(target, options)) for _ in range(6)]
            calls = [
                channel.unary_unary("/test.Stalled/Put").future(b"", timeout=LONG_S)
                for channel in channels
                for _ in range(CROWD // len(channels))
            ]
            end_s = time.monotonic() + BUSY_S
            while time.monotonic() < end_s and not any(call.done() for call in calls):
                time.sleep(0.01)  # blocks the event loop, so that no call is answered
            assert not any(call.done() for call in calls)
            await asyncio.to_thread(lambda: [call.exception() for call in calls])
        assert {call.code() for call in calls} == {grpc.StatusCode.OK}
