"""The answering end of exchanges: each message of a stream is a request, answered by one message, in order.

A unary call makes a stream, headers, trailers and several tasks for every message; on a stream one message costs a
third of that (measured: docs/decisions/0008). It is an optimisation and never the only way: the same request is taken
by a unary method, too. The asking end is `rpc.stream_caller`.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio

from paceline.rpc.connections import cut_connection
from paceline.rpc.turns import WORTH_A_TURN_BYTES, Turns

Answer = Callable[[bytes, "Exchange"], Awaitable[bytes]]
OnAnswered = Callable[[float, str | None], None]
"""Told how many seconds one exchange took, and the name of the error it was answered with, None for success."""

MAX_STREAMS: Final = 32
"""Streams that clients may have open at one listener. Each may bring a request of full size at any time, and nobody
can put that off as `rpc.arrivals` does for calls; so they are few, and who comes later uses single calls."""
LONGEST_DELIVERY_S: Final = 60.0
"""A client that has not taken an answer by then gets no other: what its requests hold is wanted by others."""
MAX_UNDER_WAY: Final = 16
"""Requests of one stream that are worked on at a time; more wait in the connection."""
MAX_UNDER_WAY_BYTES: Final = 32 * 1024 * 1024
"""Requests of all streams that are worked on at a time; beyond it a stream gets its next one when it has answered."""

_MARK: Final = "paceline_exchange"
_log = logging.getLogger("paceline.rpc")


def _ignore(seconds: float, reason: str | None) -> None:
    return None


class Exchange:
    """One request and its answer, for handlers that have to know when it is over."""

    __slots__ = ("_callbacks", "context", "reason")

    def __init__(self, context: Any) -> None:
        self.context = context
        """The stream's."""
        self.reason: str | None = None
        """Name of the error that the answer tells, for those who count; a handler that answers with one sets it."""
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback`` when the answer is delivered, or will never be; like a call's context."""
        self._callbacks.append(callback)

    def peer(self) -> str:
        """Return who asks, like a call's context."""
        peer: str = self.context.peer()
        return peer

    def over(self) -> None:
        """Tell those who wanted to know, once."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def exchange_handler(answer: Answer) -> Any:
    """Return a method handler that answers each message of a stream with ``answer``.

    `AioErrorInterceptor` recognises it and serves it with errors, measurement and an end at the server's stop.
    """
    streams = OpenStreams()

    async def serve(_requests: Any, context: Any) -> None:
        await streams.serve(answer, context)

    setattr(serve, _MARK, answer)
    return grpc.stream_stream_rpc_method_handler(serve)


def answer_behind(handler: Any) -> Answer | None:
    """Return the function an `exchange_handler` was made with, None for any other handler."""
    found: Answer | None = getattr(handler.stream_stream, _MARK, None)
    return found


class OpenStreams:
    """The streams of one server, at most ``limit`` at a time."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self.turns = Turns()
        """Taken by large requests before anybody works on them."""
        self.load = Load()
        self._limit = limit
        self._count = 0
        self._idle: dict[Any, None] = {}
        self._ending = False

    async def serve(self, answer: Answer, context: Any, on_answered: OnAnswered = _ignore) -> None:
        """Answer the requests of one stream until its client, or `end`, ends it.

        Up to `MAX_UNDER_WAY` requests are worked on at a time. They are begun in their order, and answered in it.
        """
        if self._count >= self._limit:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no room for another stream; use single calls")
        self._count += 1
        try:
            if not await self._serve(answer, context, on_answered):
                _log.warning("%s has not taken an answer within %g s", context.peer(), LONGEST_DELIVERY_S)
                # gRPC cannot end a call whose message nobody takes, and keeps that message: the connection has to go,
                # which cancels us. Where none is found, the place stays taken until the client goes.
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(None, cut_connection, context.peer())
                await loop.create_future()
        finally:
            self._count -= 1

    async def _serve(self, answer: Answer, context: Any, on_answered: OnAnswered) -> bool:
        """Return whether every answer was taken; what requests held is given back either way."""
        stream = _Stream(answer, context, lambda: self._ending, self.turns, self.load)
        reader = asyncio.get_running_loop().create_task(stream.read())
        try:
            while True:
                if not stream.under_way:
                    if self._ending:
                        return True
                    self._idle[context] = None
                    try:
                        await stream.something_came()
                    finally:
                        self._idle.pop(context, None)
                    if stream.has_ended():
                        return True
                begin, task, exchange, _ = stream.under_way[0]
                response = await task
                on_answered(stream.clock() - begin, exchange.reason)
                try:
                    async with asyncio.timeout(LONGEST_DELIVERY_S):
                        await context.write(response)
                except TimeoutError:
                    return False
                del response, task  # they may be megabytes, and the next request may be long in coming
                stream.take_next()
                exchange.over()
        finally:
            reader.cancel()
            for _, task, exchange, size in stream.under_way:
                self.load.used_bytes -= size
                task.cancel()
                task.add_done_callback(partial(_told, exchange))

    async def end(self) -> None:
        """End every stream: idle ones now, the others after their answer. A server that stops need not wait then."""
        self._ending = True
        for context in tuple(self._idle):
            # Its own AbortError, or whatever gRPC says when the client has gone in the same moment.
            with contextlib.suppress(Exception):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")


def _told(exchange: Exchange, task: "asyncio.Task[bytes]") -> None:
    if not task.cancelled():
        task.exception()  # nobody else will ask for it
    exchange.over()


class Load:
    """Bytes of the requests of all streams that are worked on."""

    def __init__(self) -> None:
        self.used_bytes = 0


class _Stream:
    """What has come on one stream and is not answered yet."""

    def __init__(self, answer: Answer, context: Any, is_ending: Callable[[], bool], turns: Turns, load: Load) -> None:
        self._answer = answer
        self._context = context
        self._is_ending = is_ending
        self._turns = turns
        self._load = load
        self._loop = asyncio.get_running_loop()
        self.clock = self._loop.time
        self.under_way: deque[tuple[float, asyncio.Task[bytes], Exchange, int]] = deque()
        """When each request came, what works on it, and its bytes; oldest first, until its answer is delivered."""
        self._came = asyncio.Event()
        self._room = asyncio.Event()
        self._ended: BaseException | bool = False

    async def read(self) -> None:
        """Begin with each request as it comes, in order."""
        try:
            while not self._is_ending() and (request := await self._context.read()) is not grpc.aio.EOF:
                size = len(request)
                if size >= WORTH_A_TURN_BYTES:
                    await self._turns.after(size)  # here, for what comes behind it must not overtake it
                exchange = Exchange(self._context)
                task = self._loop.create_task(self._answer_one(request, exchange))
                self.under_way.append((self.clock(), task, exchange, size))
                self._load.used_bytes += size
                del request
                self._came.set()
                while self._is_full():
                    self._room.clear()
                    await self._room.wait()
            self._ended = True
        except BaseException as failure:
            self._ended = failure
            raise
        finally:
            self._came.set()

    def _is_full(self) -> bool:
        waiting = len(self.under_way)
        return waiting >= MAX_UNDER_WAY or (waiting > 0 and self._load.used_bytes > MAX_UNDER_WAY_BYTES)

    async def _answer_one(self, request: bytes, exchange: Exchange) -> bytes:
        return await self._answer(request, exchange)

    async def something_came(self) -> None:
        """Wait for a request or the end."""
        while not self.under_way and self._ended is False:
            self._came.clear()
            await self._came.wait()

    def has_ended(self) -> bool:
        """Return whether everything is answered and nothing more will come."""
        return self._ended is not False and not self.under_way

    def take_next(self) -> None:
        """The oldest request is answered."""
        self._load.used_bytes -= self.under_way.popleft()[3]
        self._room.set()
