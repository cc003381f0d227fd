"""Exchanges over one stream: answers in order, errors typed, and an end that nobody has to wait for."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from paceline.model.errors import BrokerNotAvailableError, NotLeaderOrFollowerError, RequestTimedOutError
from paceline.rpc.channels import open_aio_channel
from paceline.rpc.exchange import Exchange, exchange_handler
from paceline.rpc.server import AioRpcServer, Service

METHOD = "/test.Echo/Ask"


class Echo:
    """Answers a request with itself, unless it is told something else."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.waiting = asyncio.Event()
        self.contexts: list[Any] = []

    async def ask(self, request: bytes, context: Any) -> bytes:
        if context not in self.contexts:
            self.contexts.append(context)
        if request == b"refuse":
            raise NotLeaderOrFollowerError("somebody else leads")
        if request == b"wait":
            self.waiting.set()
            await self.release.wait()
        return request


class Calls(list[tuple[str, str | None]]):
    """What the server has measured."""

    def __call__(self, method: str, seconds: float, reason: str | None) -> None:
        self.append((method, reason))


@pytest.fixture
async def server() -> AsyncIterator[tuple[AioRpcServer, Echo, Calls]]:
    echo, calls = Echo(), Calls()
    handlers = (grpc.method_handlers_generic_handler("test.Echo", {"Ask": exchange_handler(echo.ask)}),)
    made = AioRpcServer(
        "TEST",
        [Service("test.Echo", lambda target: target.add_generic_rpc_handlers(handlers))],
        observe=calls,
        with_reflection=False,
    )
    made.bind("127.0.0.1", 0)
    await made.start()
    yield made, echo, calls
    await made.stop(0)


@pytest.fixture
async def exchange(server: tuple[AioRpcServer, Echo, Calls]) -> AsyncIterator[Exchange]:
    channel = open_aio_channel(f"127.0.0.1:{server[0].port}", own_connection=True)
    made = Exchange(channel, METHOD)
    yield made
    made.close()
    await channel.close()


async def test_all_requests_share_one_stream_and_each_is_measured(
    server: tuple[AioRpcServer, Echo, Calls], exchange: Exchange
) -> None:
    for number in range(5):
        assert await exchange.ask(b"%d" % number, 10.0) == b"%d" % number
    assert len(server[1].contexts) == 1
    assert server[2] == [(METHOD, None)] * 5


async def test_an_error_comes_typed_and_the_next_request_opens_a_new_stream(
    server: tuple[AioRpcServer, Echo, Calls], exchange: Exchange
) -> None:
    with pytest.raises(NotLeaderOrFollowerError, match="somebody else leads"):
        await exchange.ask(b"refuse", 10.0)
    assert await exchange.ask(b"again", 10.0) == b"again"
    assert len(server[1].contexts) == 2
    assert server[2] == [(METHOD, "NOT_LEADER_OR_FOLLOWER"), (METHOD, None)]


async def test_a_request_that_is_not_answered_ends_with_its_deadline(
    server: tuple[AioRpcServer, Echo, Calls], exchange: Exchange
) -> None:
    with pytest.raises(RequestTimedOutError):
        await exchange.ask(b"wait", 0.2)
    server[1].release.set()
    assert await exchange.ask(b"again", 10.0) == b"again"


async def test_a_server_that_stops_does_not_wait_for_idle_streams(
    server: tuple[AioRpcServer, Echo, Calls], exchange: Exchange
) -> None:
    assert await exchange.ask(b"first", 10.0) == b"first"
    began = time.monotonic()
    await server[0].stop(30.0)
    assert time.monotonic() - began < 10.0
    with pytest.raises(BrokerNotAvailableError):
        await exchange.ask(b"second", 10.0)


async def test_a_server_that_stops_answers_what_is_under_way_and_ends_the_stream_then(
    server: tuple[AioRpcServer, Echo, Calls], exchange: Exchange
) -> None:
    asking = asyncio.create_task(exchange.ask(b"wait", 20.0))
    await asyncio.wait_for(server[1].waiting.wait(), 10.0)
    stopping = asyncio.create_task(server[0].stop(30.0))
    server[1].release.set()
    assert await asking == b"wait"
    await asyncio.wait_for(stopping, 10.0)


async def test_a_server_that_is_not_there_is_an_error() -> None:
    channel = open_aio_channel("127.0.0.1:1", own_connection=True)
    with pytest.raises(BrokerNotAvailableError):
        await Exchange(channel, METHOD).ask(b"anybody?", 10.0)
    await channel.close()
