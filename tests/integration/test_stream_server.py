"""Requests and responses over one stream: order, typed errors, and the end of streams without delay."""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest

from paceline.model.errors import (
    BrokerNotAvailableError,
    ErrorCode,
    MessageTooLargeError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
)
from paceline.model.identity import PRINCIPAL_KEY, Identity, Role
from paceline.rpc.channels import open_channel
from paceline.rpc.errors import ConnectionBrokenError, from_rpc_error
from paceline.rpc.security.authorizer import Caller
from paceline.rpc.security.guard import Guard
from paceline.rpc.security.named_channel import NamedChannel
from paceline.rpc.server import DEFAULT_MAX_REQUEST_BYTES, AioRpcServer, Service
from paceline.rpc.streams.stream_call import StreamCall
from paceline.rpc.streams.stream_client import StreamClient
from paceline.rpc.streams.stream_server import MAX_STREAMS, MAX_UNDER_WAY, Wait, stream_handler

METHOD = "/test.Echo/Ask"
PATIENCE_S = 20.0


class Echo:
    """Responds with the request itself, unless the request asks for an error, a wait or a prepared reply."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.waiting = asyncio.Event()
        self.contexts: list[Any] = []
        self.begun: list[bytes] = []
        self.reply: Wait | None = None
        self.over: list[bytes] = []

    async def ask(self, request: bytes, context: Any) -> bytes:
        self.begun.append(request)
        context.add_done_callback(lambda _: self.over.append(request))
        if context.context not in self.contexts:
            self.contexts.append(context.context)
        if request == b"answer with an error":
            context.reason = "THROTTLED"
        if request == b"refuse":
            raise NotLeaderOrFollowerError("another broker leads")
        if request in (b"wait", b"wait and refuse"):
            self.waiting.set()
            await self.release.wait()
        if request == b"wait and refuse":
            raise NotLeaderOrFollowerError("another broker leads")
        if request == b"wait for anything":
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            request = await asyncio.to_thread(request.upper)
        if request == b"a reply":
            self.reply = Wait(PATIENCE_S)
            return bytes(await self.reply)
        if request == b"no reply":
            await Wait(0.01)
        return request


class Calls(list[tuple[str, str | None]]):
    """Records method and error reason of each call that the server measures."""

    def __call__(self, method: str, seconds: float, reason: str | None) -> None:
        self.append((method, reason))


@contextlib.asynccontextmanager
async def serving(
    handler: Any, calls: Calls, max_streams: int = MAX_STREAMS, guard: Guard | None = None
) -> AsyncIterator[AioRpcServer]:
    handlers = (grpc.method_handlers_generic_handler("test.Echo", {"Ask": handler}),)
    made = AioRpcServer(
        "TEST",
        [Service("test.Echo", lambda target: target.add_generic_rpc_handlers(handlers))],
        observe=calls,
        with_reflection=False,
        max_streams=max_streams,
        guard=guard,
    )
    made.bind("127.0.0.1", 0)
    await made.start()
    try:
        yield made
    finally:
        await made.stop(0)


@pytest.fixture
async def server() -> AsyncIterator[tuple[AioRpcServer, Echo, Calls]]:
    echo, calls = Echo(), Calls()
    async with serving(stream_handler(echo.ask), calls) as made:
        yield made, echo, calls


async def reached(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


class Asker:
    """A stream client whose outcomes a test can await."""

    def __init__(self, port: int, one_at_a_time: bool = False) -> None:
        self.channel = open_channel(f"127.0.0.1:{port}", own_connection=True)
        self.caller = StreamClient(self.channel, METHOD, "test-caller", one_at_a_time)
        self.threads: set[str] = set()

    def begin(self, request: bytes, timeout_s: float = PATIENCE_S) -> "queue.SimpleQueue[Any]":
        outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def done(value: bytes | Exception) -> None:
            self.threads.add(threading.current_thread().name)
            outcome.put(value)

        self.caller.ask(request, timeout_s, done)
        return outcome

    async def outcome(self, pending: "queue.SimpleQueue[Any]") -> Any:
        value = await asyncio.to_thread(pending.get, True, PATIENCE_S)
        return from_rpc_error(value) if isinstance(value, grpc.RpcError) else value

    async def ask(self, request: bytes) -> Any:
        return await self.outcome(self.begin(request))

    def close(self) -> None:
        self.caller.close()
        self.channel.close()
        self.caller.join(PATIENCE_S)


@pytest.fixture(params=["any number at a time", "one at a time"])
def asker(server: tuple[AioRpcServer, Echo, Calls], request: pytest.FixtureRequest) -> Iterator[Asker]:
    made = Asker(server[0].port, one_at_a_time=request.param == "one at a time")
    yield made
    made.close()


async def test_all_requests_share_one_stream_and_each_is_measured(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    for number in range(5):
        assert await asker.ask(b"%d" % number) == b"%d" % number
    assert len(server[1].contexts) == 1
    assert await asker.ask(b"answer with an error") == b"answer with an error"
    assert server[2] == [(METHOD, None)] * 5 + [(METHOD, "THROTTLED")]
    assert asker.threads == {"test-caller"}


@pytest.mark.parametrize("asker", ["any number at a time"], indirect=True)
async def test_a_stream_begins_with_later_requests_while_earlier_ones_wait(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    first = asker.begin(b"wait")
    later = [asker.begin(b"%d" % number) for number in range(3 * MAX_UNDER_WAY)]
    await reached(lambda: len(server[1].begun) == MAX_UNDER_WAY)
    assert all(one.empty() for one in later)
    server[1].release.set()
    assert await asker.outcome(first) == b"wait"
    assert [await asker.outcome(one) for one in later] == [b"%d" % number for number in range(len(later))]
    assert server[1].begun == [b"wait", *(b"%d" % number for number in range(len(later)))]


async def test_requests_under_way_together_are_answered_in_order(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    first = asker.begin(b"wait")
    later = [asker.begin(b"%d" % number) for number in range(20)]
    await asyncio.wait_for(server[1].waiting.wait(), PATIENCE_S)
    assert later[0].empty()
    server[1].release.set()
    assert await asker.outcome(first) == b"wait"
    assert [await asker.outcome(one) for one in later] == [b"%d" % number for number in range(20)]


async def test_an_error_is_typed_and_the_next_request_opens_a_new_stream(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    refused = await asker.ask(b"refuse")
    assert (refused.code, str(refused)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads")
    assert await asker.ask(b"again") == b"again"
    assert len(server[1].contexts) == 2
    assert server[2] == [(METHOD, "NOT_LEADER_OR_FOLLOWER"), (METHOD, None)]


async def test_requests_after_a_failed_one_end_with_its_stream(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    first, refused, behind = asker.begin(b"wait"), asker.begin(b"refuse"), asker.begin(b"behind")
    await asyncio.wait_for(server[1].waiting.wait(), PATIENCE_S)
    server[1].release.set()
    assert await asker.outcome(first) == b"wait"
    assert isinstance(await asker.outcome(refused), NotLeaderOrFollowerError)
    assert isinstance(await asker.outcome(behind), ConnectionBrokenError)


@pytest.mark.parametrize("asker", ["any number at a time"], indirect=True)
async def test_a_request_that_succeeds_while_an_earlier_one_fails_does_not_respond_in_its_place(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    refused, behind = asker.begin(b"wait and refuse"), asker.begin(b"wait")
    await reached(lambda: len(server[1].begun) == 2)
    server[1].release.set()
    assert isinstance(await asker.outcome(refused), NotLeaderOrFollowerError)
    assert isinstance(await asker.outcome(behind), ConnectionBrokenError)


@pytest.mark.parametrize("asker", ["any number at a time"], indirect=True)
async def test_only_the_request_that_is_too_large_is_refused(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    first, large, behind = asker.begin(b"wait"), asker.begin(bytes(DEFAULT_MAX_REQUEST_BYTES + 1)), asker.begin(b"more")
    assert isinstance(await asker.outcome(first), ConnectionBrokenError)
    assert isinstance(await asker.outcome(large), MessageTooLargeError)
    assert isinstance(await asker.outcome(behind), ConnectionBrokenError)
    assert await asker.ask(b"again") == b"again"


async def test_a_request_that_is_not_answered_ends_with_its_deadline(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    pending = asker.begin(b"wait", timeout_s=0.1)
    await asyncio.wait_for(server[1].waiting.wait(), PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while pending.empty():
        assert time.monotonic() < deadline
        asker.caller.expire()
        await asyncio.sleep(0.01)
    assert isinstance(await asker.outcome(pending), RequestTimedOutError)
    server[1].release.set()
    assert await asker.ask(b"again") == b"again"


async def test_a_stream_is_idle_since_its_last_request_unless_it_waits_for_a_response(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    assert await asker.ask(b"first") == b"first"
    await asyncio.sleep(0.01)
    assert asker.caller.idle_s() >= 0.01
    pending = asker.begin(b"wait")
    assert asker.caller.idle_s() == 0.0
    server[1].release.set()
    assert await asker.outcome(pending) == b"wait"
    assert 0.0 < asker.caller.idle_s() < PATIENCE_S


async def test_a_server_that_stops_does_not_wait_for_idle_streams(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    assert await asker.ask(b"first") == b"first"
    began = time.monotonic()
    await server[0].stop(30.0)
    assert time.monotonic() - began < 10.0
    assert isinstance(await asker.ask(b"second"), BrokerNotAvailableError)


async def test_a_server_that_stops_answers_requests_in_flight_and_then_ends_the_stream(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    pending = asker.begin(b"wait")
    await asyncio.wait_for(server[1].waiting.wait(), PATIENCE_S)
    stopping = asyncio.create_task(server[0].stop(30.0))
    server[1].release.set()
    assert await asker.outcome(pending) == b"wait"
    await asyncio.wait_for(stopping, 10.0)


async def test_closing_ends_requests_in_flight_and_refuses_later_ones(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    pending = asker.begin(b"wait")
    await asyncio.wait_for(server[1].waiting.wait(), PATIENCE_S)
    asker.close()
    assert isinstance(await asker.outcome(pending), BrokerNotAvailableError)
    assert isinstance(await asker.ask(b"late"), BrokerNotAvailableError)
    assert not [one for one in threading.enumerate() if one.name == "test-caller"]


async def test_a_stream_beyond_the_limit_is_refused_in_favour_of_unary_calls(
    server: tuple[AioRpcServer, Echo, Calls],
) -> None:
    askers = [Asker(server[0].port) for _ in range(MAX_STREAMS + 1)]
    try:
        for asker in askers[:-1]:
            assert await asker.ask(b"one of many") == b"one of many"
        outcome = await asyncio.to_thread(askers[-1].begin(b"too late").get, True, PATIENCE_S)
        assert outcome.code() is grpc.StatusCode.UNIMPLEMENTED
        askers[0].close()

        async def has_room() -> bool:
            return bool(await askers[-1].ask(b"again") == b"again")

        deadline = time.monotonic() + PATIENCE_S
        while not await has_room():
            assert time.monotonic() < deadline
    finally:
        for asker in askers:
            asker.close()


async def test_streams_of_gateways_have_a_limit_of_their_own() -> None:
    """A gateway has a stream for each of its principals, more than another client ever needs."""
    callers = iter([Role.CLIENT, Role.GATEWAY, Role.GATEWAY, Role.CLIENT])

    class ByTurns(Guard):
        def admit(self, method: str, context: Any, is_named: bool = True) -> Caller:
            return Caller("User:a", Identity("0" * 32, next(callers), "a"))

        def check(self, *_: Any) -> None:
            pass

    echo = Echo()
    async with serving(stream_handler(echo.ask), Calls(), max_streams=1, guard=ByTurns("TEST")) as server:
        askers = [Asker(server.port) for _ in range(4)]
        try:
            for asker in askers[:-1]:
                assert await asker.ask(b"one of many") == b"one of many"
            outcome = await asyncio.to_thread(askers[-1].begin(b"too late").get, True, PATIENCE_S)
            assert outcome.code() is grpc.StatusCode.UNIMPLEMENTED
        finally:
            for asker in askers:
                asker.close()


async def test_a_request_ends_when_its_response_is_delivered_or_cannot_be(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    echo = server[1]
    await asker.ask(b"first")
    await reached(lambda: echo.over == [b"first"])
    pending = asker.begin(b"wait")
    await asyncio.wait_for(echo.waiting.wait(), PATIENCE_S)
    assert echo.over == [b"first"]
    asker.caller.interrupt()
    assert isinstance(await asker.outcome(pending), ConnectionBrokenError)
    await reached(lambda: echo.over == [b"first", b"wait"])


async def test_a_client_that_reads_no_response_loses_its_connection_and_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("paceline.rpc.streams.stream_server.LONGEST_DELIVERY_S", 0.2)
    echo = Echo()
    large = bytes(3 << 20)
    async with serving(stream_handler(echo.ask), Calls(), max_streams=1) as server:
        asker = Asker(server.port)
        window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
        with grpc.insecure_channel(f"127.0.0.1:{server.port}", window) as channel:
            requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            requests.put(large)
            requests.put(b"behind")
            # The test does not iterate the call, so gRPC receives no more than one window.
            method: Any = channel.stream_stream(METHOD)
            stalled = method(iter(requests.get, None))
            await reached(lambda: sorted(echo.over) == [large, b"behind"])
            assert await asyncio.to_thread(stalled.code) is grpc.StatusCode.UNAVAILABLE
            deadline = time.monotonic() + PATIENCE_S
            while await asker.ask(b"has it gone?") != b"has it gone?":
                assert time.monotonic() < deadline
        asker.close()
    assert [one.message for one in caplog.records if one.levelno >= logging.ERROR] == []
    assert [one.levelname for one in caplog.records if "response not received in time" in one.message] == ["WARNING"]


async def test_an_unreachable_server_is_an_error() -> None:
    asker = Asker(1)
    try:
        assert isinstance(await asker.ask(b"anybody?"), BrokerNotAvailableError)
    finally:
        asker.close()


async def test_requests_of_one_at_a_time_wait_for_the_answers_before_them(
    server: tuple[AioRpcServer, Echo, Calls],
) -> None:
    asker = Asker(server[0].port, one_at_a_time=True)
    try:
        first, second = asker.begin(b"wait"), asker.begin(b"second")
        await asyncio.wait_for(server[1].waiting.wait(), PATIENCE_S)
        assert server[1].begun == [b"wait"]
        server[1].release.set()
        assert [await asker.outcome(first), await asker.outcome(second)] == [b"wait", b"second"]
    finally:
        asker.close()


async def test_a_stream_names_the_client_that_a_gateway_calls_for() -> None:
    names: list[Any] = []

    class NoteNames(Guard):
        def admit(self, method: str, context: Any, is_named: bool = True) -> Caller:
            names.extend(value for key, value in context.invocation_metadata() if key == PRINCIPAL_KEY)
            return Caller("User:a", Identity("0" * 32, Role.GATEWAY, "a"))

        def check(self, *_: Any) -> None:
            pass

    outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
    async with serving(stream_handler(Echo().ask), Calls(), guard=NoteNames("TEST")) as server:
        with open_channel(f"127.0.0.1:{server.port}", own_connection=True) as channel:
            caller = StreamClient(NamedChannel(channel, "User:billing"), METHOD, "test")
            caller.ask(b"request", PATIENCE_S, outcomes.put)
            assert await asyncio.to_thread(outcomes.get, True, PATIENCE_S) == b"request"
            caller.close()
            caller.join(PATIENCE_S)
    assert names == ["User:billing"]


def test_a_grpc_with_other_internals_counts_as_a_server_without_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """UNIMPLEMENTED makes the owners of streams use unary calls."""

    def refused(*_: Any) -> None:
        raise TypeError("segregated_call() takes other arguments")

    outcomes: list[bytes | Exception] = []
    with open_channel("127.0.0.1:1") as channel:
        monkeypatch.setattr(StreamCall, "_begin", refused)
        caller = StreamClient(channel, METHOD, "test")
        caller.ask(b"request", PATIENCE_S, outcomes.append)
        caller.close()
        caller.join(PATIENCE_S)
    (failure,) = outcomes
    assert isinstance(failure, grpc.RpcError) and failure.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_large_messages_go_both_ways(server: tuple[AioRpcServer, Echo, Calls], asker: Asker) -> None:
    large = bytes(range(256)) * (8 << 10)
    pending = [asker.begin(large[number:]) for number in range(5)]
    assert [await asker.outcome(one) for one in pending] == [large[number:] for number in range(5)]


async def test_a_handler_may_await_anything_a_task_may(server: tuple[AioRpcServer, Echo, Calls], asker: Asker) -> None:
    assert await asker.ask(b"wait for anything") == b"WAIT FOR ANYTHING"
    assert server[2] == [(METHOD, None)]


async def test_a_handler_continues_in_the_callback_that_replies(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    echo, calls = server[1], server[2]
    pending = asker.begin(b"a reply")
    await reached(lambda: echo.reply is not None)
    assert echo.reply is not None
    assert calls == []
    echo.reply.reply(b"first")
    assert calls == [(METHOD, None)]
    echo.reply.reply(b"second")
    echo.reply.fail(RuntimeError("too late"))
    assert await asker.outcome(pending) == b"first"
    assert calls == [(METHOD, None)]


async def test_a_handler_without_a_reply_ends_at_its_timeout(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    assert isinstance(await asker.ask(b"no reply"), RequestTimedOutError)
    assert server[2] == [(METHOD, "REQUEST_TIMED_OUT")]


async def test_a_handler_is_cancelled_when_its_client_disconnects(
    server: tuple[AioRpcServer, Echo, Calls], asker: Asker
) -> None:
    echo = server[1]
    pending = asker.begin(b"a reply")
    await reached(lambda: echo.reply is not None)
    asker.caller.interrupt()
    assert isinstance(await asker.outcome(pending), ConnectionBrokenError)
    await reached(lambda: echo.over == [b"a reply"])
    assert echo.reply is not None
    echo.reply.reply(b"for nobody")
    assert (METHOD, None) not in server[2]
