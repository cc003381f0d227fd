"""The answering end of exchanges: each message of a stream is a request, answered by one message, in order.

A unary call makes a stream, headers, trailers and several tasks for every message; on a stream one message costs a
third of that (measured: docs/decisions/0008). It is an optimisation and never the only way: the same request is taken
by a unary method, too. The asking end is `rpc.stream_caller`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

Answer = Callable[[bytes, Any], Awaitable[bytes]]
OnAnswered = Callable[[float], None]
"""Told how many seconds one exchange took."""

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
        """Answer the requests of one stream until its client, or `end`, ends it."""
        clock = asyncio.get_running_loop().time
        while not self._ending:
            self._idle[context] = None
            try:
                request = await context.read()
            finally:
                self._idle.pop(context, None)
            if request is grpc.aio.EOF:
                return
            begin = clock()
            response = await answer(request, context)
            del request  # it may be megabytes, and the next one may be long in coming
            on_answered(clock() - begin)
            await context.write(response)
            del response

    async def end(self) -> None:
        """End every stream: idle ones now, the others after their answer. A server that stops need not wait then."""
        self._ending = True
        for context in tuple(self._idle):
            # Its own AbortError, or whatever gRPC says when the client has gone in the same moment.
            with contextlib.suppress(Exception):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
