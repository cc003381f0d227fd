"""The answering end of exchanges: each message of a stream is a request, answered by one message, in order.

A unary call makes a stream, headers, trailers and several tasks for every message; on a stream one message costs a
third of that (measured: docs/decisions/0008). It is an optimisation and never the only way: the same request is taken
by a unary method, too. The asking end is `rpc.stream_caller`.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

Answer = Callable[[bytes, Any], Awaitable[bytes]]
OnAnswered = Callable[[float], None]
"""Told how many seconds one exchange took."""

MAX_UNDER_WAY: Final = 16
"""Requests of one stream that are worked on at a time; more wait in the connection."""

_MARK: Final = "paceline_exchange"


def _ignore(seconds: float) -> None:
    return None


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
    """The streams of one server."""

    def __init__(self) -> None:
        self._idle: dict[Any, None] = {}
        self._ending = False

    async def serve(self, answer: Answer, context: Any, on_answered: OnAnswered = _ignore) -> None:
        """Answer the requests of one stream until its client, or `end`, ends it.

        Up to `MAX_UNDER_WAY` requests are worked on at a time. They are begun in their order, and answered in it.
        """
        stream = _Stream(answer, context)
        reader = asyncio.get_running_loop().create_task(stream.read())
        try:
            while not self._ending:
                if not stream.under_way:
                    self._idle[context] = None
                    try:
                        await stream.something_came()
                    finally:
                        self._idle.pop(context, None)
                    if stream.has_ended():
                        return
                begin, task = stream.under_way[0]
                response = await task
                stream.take_next()
                on_answered(stream.clock() - begin)
                await context.write(response)
                del response, task  # they may be megabytes, and the next request may be long in coming
        finally:
            reader.cancel()
            for _, task in stream.under_way:
                task.cancel()

    async def end(self) -> None:
        """End every stream: idle ones now, the others after their answer. A server that stops need not wait then."""
        self._ending = True
        for context in tuple(self._idle):
            # Its own AbortError, or whatever gRPC says when the client has gone in the same moment.
            with contextlib.suppress(Exception):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")


class _Stream:
    """What has come on one stream and is not answered yet."""

    def __init__(self, answer: Answer, context: Any) -> None:
        self._answer = answer
        self._context = context
        self._loop = asyncio.get_running_loop()
        self.clock = self._loop.time
        self.under_way: deque[tuple[float, asyncio.Task[bytes]]] = deque()
        """When each request came, and what works on it; oldest first."""
        self._came = asyncio.Event()
        self._room = asyncio.Event()
        self._ended: BaseException | bool = False

    async def read(self) -> None:
        """Begin with each request as it comes, in order."""
        try:
            while (request := await self._context.read()) is not grpc.aio.EOF:
                self.under_way.append((self.clock(), self._loop.create_task(self._answer_one(request))))
                del request
                self._came.set()
                if len(self.under_way) >= MAX_UNDER_WAY:
                    self._room.clear()
                    await self._room.wait()
            self._ended = True
        except BaseException as failure:
            self._ended = failure
            raise
        finally:
            self._came.set()

    async def _answer_one(self, request: bytes) -> bytes:
        return await self._answer(request, self._context)

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
        self.under_way.popleft()
        self._room.set()
