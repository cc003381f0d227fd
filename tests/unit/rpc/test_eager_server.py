"""Servers that ask for several calls at a time: new calls begin beside busy streams, and a stop ends as gRPC's does."""

import asyncio
import importlib.util
import time
from collections.abc import AsyncIterator, Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc._cython import cygrpc

from paceline.rpc import eager_server
from paceline.rpc.eager_server import AHEAD

BUSY, NEW = 40, AHEAD
UNDER_WAY = 4
METHOD = "/test.Echo/Stream"


class Echo:
    """A server with one streaming method, which counts the messages that it has served."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.served = 0
        self.begun_after: list[int] = []
        """Number of served messages at the beginning of each call."""
        self._changed = asyncio.Event()
        handler = grpc.stream_stream_rpc_method_handler(self.stream)
        self.server = make(options=[("grpc.so_reuseport", 0)])
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Stream": handler}),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def stream(self, requests: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        """Answer each message."""
        self.begun_after.append(self.served)
        self._changed.set()
        async for message in requests:
            self.served += 1
            yield message

    async def begun(self, calls: int) -> None:
        """Wait until so many calls have begun."""
        async with asyncio.timeout(60):
            while len(self.begun_after) < calls:
                self._changed.clear()
                await self._changed.wait()

    async def call(self) -> None:
        """Keep messages under way on a stream until cancelled."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options) as channel:
            stream = channel.stream_stream(METHOD)()
            for _ in range(UNDER_WAY):
                await stream.write(b"x")
            while await stream.read() is not grpc.aio.EOF:
                await stream.write(b"x")


async def messages_until_all_have_begun(make: Callable[..., Any]) -> int:
    """Return the number of messages that busy streams exchange while new calls wait for their beginning."""
    echo = Echo(make)
    await echo.server.start()
    busy = [asyncio.ensure_future(echo.call()) for _ in range(BUSY)]
    await echo.begun(BUSY)
    new = [asyncio.ensure_future(echo.call()) for _ in range(NEW)]
    await echo.begun(BUSY + NEW)
    for task in (*busy, *new):
        task.cancel()
    await asyncio.gather(*busy, *new, return_exceptions=True)
    await echo.server.stop(None)
    return echo.begun_after[-1] - echo.begun_after[BUSY]


async def test_new_calls_begin_beside_busy_streams() -> None:
    own = await messages_until_all_have_begun(grpc.aio.server)
    assert await messages_until_all_have_begun(eager_server.eager_server) < own / 4


async def test_a_stop_does_not_wait_for_calls_that_have_not_begun() -> None:
    echo = Echo(eager_server.eager_server)
    await echo.server.start()
    connected, go = asyncio.Semaphore(0), asyncio.Event()

    async def call() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{echo.port}") as channel:
            await channel.channel_ready()
            connected.release()
            await go.wait()
            stream = channel.stream_stream(METHOD)()
            await stream.write(b"x")
            await stream.read()

    calls = [asyncio.ensure_future(call()) for _ in range(2 * AHEAD)]
    async with asyncio.timeout(60):
        for _ in calls:
            await connected.acquire()
        go.set()
        for _ in range(5):
            await asyncio.sleep(0)
        busy_until_s = time.monotonic() + 0.2
        while time.monotonic() < busy_until_s:
            pass  # The calls arrive while the event loop is busy.
        await echo.server.stop(600)
        ended = await asyncio.gather(*calls, return_exceptions=True)
    assert len(echo.begun_after) < len(calls), "calls had arrived and not begun"
    assert grpc.aio.AioRpcError in {type(one) for one in ended}


class OtherServer:
    """A server class of a release of gRPC that takes calls in another way."""


@pytest.mark.parametrize("server_class", [None, OtherServer])
async def test_another_release_of_grpc_gets_its_own_server(
    server_class: type | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = cygrpc.AioServer
    internals = ModuleType("cygrpc") if server_class is None else SimpleNamespace(AioServer=server_class)
    monkeypatch.setattr("grpc._cython.cygrpc", internals)
    other = importlib.util.module_from_spec(eager_server.__spec__)
    eager_server.__spec__.loader.exec_module(other)
    monkeypatch.undo()

    assert type(other.eager_server()._server) is own
    assert type(eager_server.eager_server()._server) is eager_server._EagerServer
