"""Many exchanges over one stream: each request is answered by one message, one at a time and in order.

A unary call makes a stream, headers, trailers and several tasks for every message; on a stream one message costs a
third of that (measured: docs/decisions/0004). It is an optimisation and never the only way: the same request is taken
by a unary method, too.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from paceline.model.errors import BrokerNotAvailableError, RequestTimedOutError
from paceline.rpc.errors import from_rpc_error

Answer = Callable[[bytes, Any], Awaitable[bytes]]
OnAnswered = Callable[[float], None]
"""Told how many seconds one exchange took."""

_MARK: Final = "paceline_exchange"


class Exchange:
    """The asking end, on an event loop. A stream that has ended is opened anew by the next request."""

    def __init__(self, channel: Any, method: str) -> None:
        self._open = channel.stream_stream(method, request_serializer=None, response_deserializer=None)
        self._call: Any = None

    async def ask(self, request: bytes, timeout_s: float) -> bytes:
        """Return the answer; only one request at a time.

        Raises:
            RequestTimedOutError: nothing came within ``timeout_s``; the outcome is unknown.
            PacelineError: the error the server raised, or that it cannot be reached.
        """
        call = self._call
        if call is None or call.done():
            call = self._call = self._open()
        try:
            async with asyncio.timeout(timeout_s):
                await call.write(request)
                answer = await call.read()
        except TimeoutError:
            self.close()
            raise RequestTimedOutError(f"no answer within {timeout_s:g} s") from None
        except grpc.RpcError as failure:
            self.close()
            raise from_rpc_error(failure) from None
        except asyncio.InvalidStateError:
            self.close()
            raise BrokerNotAvailableError("the stream has ended") from None
        except BaseException:
            self.close()
            raise
        if answer is grpc.aio.EOF:
            self.close()
            raise BrokerNotAvailableError("the stream was ended by the server")
        return bytes(answer)

    def close(self) -> None:
        """End the stream; a request in flight is cancelled."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


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
    """The answering end: the streams of one server."""

    def __init__(self) -> None:
        self._idle: dict[Any, None] = {}
        self._ending = False

    async def serve(self, answer: Answer, context: Any, on_answered: OnAnswered = lambda _seconds: None) -> None:
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
            on_answered(clock() - begin)
            await context.write(response)

    async def end(self) -> None:
        """End every stream: idle ones now, the others after their answer. A server that stops need not wait then."""
        self._ending = True
        for context in tuple(self._idle):
            # Its own AbortError, or whatever gRPC says when the client has gone in the same moment.
            with contextlib.suppress(Exception):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
