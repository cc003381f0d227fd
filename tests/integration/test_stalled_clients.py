"""Clients that stop sending or reading are refused or disconnected, and their slots and memory are released."""

import asyncio
import contextlib
import queue
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.broker.service.response_memory import AnswerBudget
from paceline.model.errors import ThrottledError
from paceline.rpc.admission.receive_limiter import ReceiveLimiter
from paceline.rpc.errors import from_rpc_error
from paceline.rpc.server import AioRpcServer, Service
from paceline.rpc.streams import stream_server as exchange
from paceline.rpc.streams.stream_server import stream_handler
from tests.support.flood import _DATA, _Call, _frame, _message

MIB = 1 << 20
LONG_S = 60.0
NO_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
"""Channel options of a client that receives one flow-control window and no more until the test reads."""


@contextlib.asynccontextmanager
async def serving(handlers: dict[str, Any], **options: Any) -> AsyncIterator[AioRpcServer]:
    generic = (grpc.method_handlers_generic_handler("test.Stalled", handlers),)
    made = AioRpcServer(
        "TEST",
        [Service("test.Stalled", lambda target: target.add_generic_rpc_handlers(generic))],
        with_reflection=False,
        **options,
    )
    made.bind("127.0.0.1", 0)
    await made.start()
    try:
        yield made
    finally:
        await made.stop(0)


async def health_of(server: AioRpcServer) -> str:
    """Return the readiness that another client of the server sees."""
    target, options = f"127.0.0.1:{server.port}", [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(target, options) as channel:
        asked = health_pb2.HealthCheckRequest(service="readiness")
        answer = await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=LONG_S)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.005)


def ask_on(channel: Any) -> Any:
    return channel.stream_stream("/test.Stalled/Ask")


def put_on(channel: Any) -> Any:
    return channel.unary_unary("/test.Stalled/Put")


async def unasked(request: bytes, context: Any) -> bytes:
    raise AssertionError("nobody may get here")


async def test_a_sender_that_stops_in_the_middle_gets_a_status_and_its_call_ends() -> None:
    receive_limiter = ReceiveLimiter(slow_after_s=0.02, receipt_s=0.05)
    handlers: dict[str, Any] = {"Put": grpc.unary_unary_rpc_method_handler(unasked)}
    async with serving(handlers, limiter=receive_limiter) as server:
        call = _Call(*await asyncio.open_connection("127.0.0.1", server.port))
        await call.begin("/test.Stalled/Put")
        outcome = asyncio.create_task(call.outcome())
        call.writer.write(_frame(_DATA, 0, 1, b"\0" + struct.pack(">I", 3 * MIB) + bytes(1_000)))
        async with asyncio.timeout(LONG_S):
            assert await outcome == "RESOURCE_EXHAUSTED"
        assert receive_limiter.under_way == 0
        call.writer.transport.abort()


async def test_a_slow_sender_gets_a_retriable_status() -> None:
    receive_limiter = ReceiveLimiter(slots=1, wait_s=0.05, slow_after_s=0.1)
    handlers: dict[str, Any] = {"Put": grpc.unary_unary_rpc_method_handler(unasked)}
    async with (
        serving(handlers, limiter=receive_limiter) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        over = asyncio.Event()
        other = asyncio.create_task(receive_limiter.receive(over.wait))
        await until(lambda: receive_limiter.under_way == 1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await put_on(channel)(bytes(3 * MIB))
        assert isinstance(from_rpc_error(refused.value), ThrottledError)
        over.set()
        await other


async def test_a_call_that_ends_without_a_request_is_refused() -> None:
    handlers: dict[str, Any] = {"Put": grpc.unary_unary_rpc_method_handler(unasked)}
    async with (
        serving(handlers) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            without: Any = channel.stream_unary("/test.Stalled/Put")
            await without(iter(()))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_unread_responses_occupy_memory_until_their_connections_are_ended() -> None:
    budget = AnswerBudget(64 * MIB, delivery_s=0.2)
    ended: list[str] = []

    async def get(request: bytes, context: Any) -> bytes:
        budget.hold(4 * MIB, context)
        context.add_done_callback(lambda _: ended.append("over"))
        return bytes(4 * MIB)

    async with serving({"Get": grpc.unary_unary_rpc_method_handler(get)}) as server:
        calls = []
        for _ in range(3):
            call = _Call(*await asyncio.open_connection("127.0.0.1", server.port), takes_answers=False)
            await call.begin("/test.Stalled/Get")
            await call.send(memoryview(_message(b"")))
            calls.append(asyncio.create_task(call.outcome()))
        await until(lambda: budget.used_bytes == 12 * MIB)
        assert ended == []
        async with asyncio.timeout(LONG_S):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in outcomes] == [asyncio.IncompleteReadError] * 3, "the connection is closed"
        await until(lambda: budget.used_bytes == 0)


async def test_a_client_that_reads_its_response_in_time_keeps_its_connection() -> None:
    budget = AnswerBudget(64 * MIB, delivery_s=LONG_S)

    async def get(request: bytes, context: Any) -> bytes:
        budget.hold(4 * MIB, context)
        return bytes(4 * MIB)

    async with (
        serving({"Get": grpc.unary_unary_rpc_method_handler(get)}) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", [("grpc.max_receive_message_length", -1)]) as channel,
    ):
        ask: Any = channel.unary_unary("/test.Stalled/Get")
        for _ in range(3):
            assert len(await ask(b"")) == 4 * MIB
        await until(lambda: budget.used_bytes == 0)


async def test_the_connection_of_a_stream_with_unread_responses_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LONGEST_DELIVERY_S", 0.2)

    async def ask(request: bytes, context: Any) -> bytes:
        return bytes(4 * MIB)

    async with serving({"Ask": stream_handler(ask)}, max_streams=1) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}", NO_WINDOW) as channel:
            requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            requests.put(b"")
            stalled: Any = ask_on(channel)(iter(requests.get, None))
            code = await asyncio.to_thread(stalled.code)
            assert code is grpc.StatusCode.UNAVAILABLE
        await until(lambda: not server._interceptor.streams._streams)


async def test_large_requests_on_a_stream_are_admitted_one_at_a_time_under_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "MAX_UNDER_WAY_BYTES", 3 * MIB)
    begun: list[int] = []
    release = asyncio.Event()

    async def ask(request: bytes, context: Any) -> bytes:
        begun.append(len(request))
        await release.wait()
        return b"done"

    async with (
        serving({"Ask": stream_handler(ask)}) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        first, second = (ask_on(channel)() for _ in range(2))
        load = server._interceptor.streams
        for _ in range(2):
            await first.write(bytes(2 * MIB))
        await until(lambda: load.used_bytes == 4 * MIB)
        writing = asyncio.create_task(first.write(bytes(2 * MIB)))
        await second.write(bytes(MIB))
        await until(lambda: load.used_bytes == 5 * MIB)
        assert begun == [2 * MIB, 2 * MIB, MIB], "the first request of an idle stream is accepted"
        release.set()
        assert [await first.read() for _ in range(3)] == [b"done"] * 3
        await writing
        assert await second.read() == b"done"
        await until(lambda: load.used_bytes == 0)
        for stream in (first, second):
            stream.cancel()


async def test_a_request_on_a_stream_counts_as_memory_until_its_response_is_delivered() -> None:
    begun: list[int] = []
    release = asyncio.Event()

    async def ask(request: bytes, context: Any) -> bytes:
        begun.append(len(request))
        if len(begun) == 1:
            await release.wait()
        return b"done"

    async with (
        serving({"Ask": stream_handler(ask)}) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stream = ask_on(channel)()
        for size_bytes in (2 * MIB, MIB):
            await stream.write(bytes(size_bytes))
        await until(lambda: begun == [2 * MIB, MIB])
        load = server._interceptor.streams
        assert load.used_bytes == 3 * MIB, "the second request has its response, which waits for the first"
        release.set()
        assert [await stream.read() for _ in range(2)] == [b"done"] * 2
        await until(lambda: load.used_bytes == 0)
        stream.cancel()
