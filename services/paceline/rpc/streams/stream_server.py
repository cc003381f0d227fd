"""Serve a stream of requests: respond to each request message with one message, in order.

A unary call creates a stream, headers, trailers and several tasks for every message; a message on an open stream costs
a third of that (measured: docs/decisions/0008). Streams are an optimisation: a unary method serves the same requests.
`stream_client` is the client. Limits: docs/protocol/limits.md#streams.

A request has no task of its own. Its handler, a coroutine, starts in the callback that receives the request, resumes in
the callback that delivers the awaited value (`StreamServer.wait`), and its response is written in that same callback.
Each iteration of the event loop that is saved makes the response a twentieth of a millisecond faster.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

import grpc
import grpc.aio

from paceline.model.errors import RequestTimedOutError
from paceline.rpc.connections import cut_connection

Answer = Callable[[bytes, "StreamServer"], Coroutine[Any, Any, bytes]]
OnAnswered = Callable[[float, str | None], None]
"""Called with the duration of one request in seconds and the name of the error in its response, None for success."""

MAX_STREAMS: Final = 128
"""Most open streams of one listener; further clients use unary calls.

`receive_limiter` cannot delay a request on a stream as it delays a call, so this many requests of the largest size (4
MiB) may arrive at the same time.
"""
LONGEST_DELIVERY_S: Final = 60.0
"""A client that has not read a response after this time is disconnected, because its requests hold memory."""
MAX_UNDER_WAY: Final = 16
"""Most requests of one stream in progress; further requests wait in the connection."""
MAX_UNDER_WAY_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the requests in progress of all streams; above this limit each stream has one request in progress."""

_LOOK_S: Final = 0.5
"""Interval of the check for overdue handlers and streams."""

LOG = logging.getLogger("paceline.rpc")


class Wait:
    """An awaitable for a request's handler: a value that a callback delivers."""

    __slots__ = ("_failure", "_over", "_resume", "_value", "_waiting", "deadline_s")

    def __init__(self, resume: Callable[[], None], deadline_s: float) -> None:
        """``resume`` resumes the handler; ``deadline_s`` is on the event loop's clock."""
        self.deadline_s = deadline_s
        self._resume = resume
        self._waiting = False
        self._over = False
        self._value: Any = None
        self._failure: BaseException | None = None

    def reply(self, value: Any) -> None:
        """Deliver the value; later calls are ignored.

        If the handler is waiting, it resumes before this method returns. Otherwise it receives the value when it awaits
        this object.
        """
        if not self._over:
            self._value = value
            self._end()

    def fail(self, failure: BaseException) -> None:
        """Raise ``failure`` in the handler, unless the wait has ended."""
        if not self._over:
            self._failure = failure
            self._end()

    def _end(self) -> None:
        self._over = True
        if self._waiting:
            self._resume()

    def __await__(self) -> Generator["Wait", None, Any]:
        if not self._over:
            self._waiting = True
            yield self
        if self._failure is not None:
            raise self._failure
        return self._value


class StreamServer:
    """One request on a stream and its response; handlers use it like a call's context."""

    __slots__ = (
        "_callbacks",
        "_handler",
        "_stream",
        "_waits_for",
        "begin_s",
        "context",
        "failure",
        "reason",
        "response",
        "size_bytes",
    )

    def __init__(self, stream: "_Stream") -> None:
        self.context = stream.context
        """The gRPC context of the stream."""
        self.reason: str | None = None
        """Name of the error in the response, for metrics; a handler that responds with an error sets it."""
        self.begin_s = stream.clock()
        self.response: bytes | None = None
        """The response, None until the handler has returned it."""
        self.failure: BaseException | None = None
        self.size_bytes = 0
        """Size of the request."""
        self._stream = stream
        self._handler: Coroutine[Any, Any, bytes] | None = None
        self._waits_for: Wait | asyncio.Future[Any] | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    @property
    def is_decided(self) -> bool:
        """Whether the handler has returned or raised."""
        return self.response is not None or self.failure is not None

    def wait(self, timeout_s: float) -> Wait:
        """Return a `Wait` for the handler to await; it raises `RequestTimedOutError` after about ``timeout_s``."""
        return Wait(self._go_on, self._stream.clock() + timeout_s)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback`` when the response was delivered or cannot be delivered, like a call's context."""
        self._callbacks.append(callback)

    def peer(self) -> str:
        """Return the address of the client, like a call's context."""
        peer: str = self.context.peer()
        return peer

    def begin(self, handler: Coroutine[Any, Any, bytes]) -> None:
        """Run the handler until it first waits, or to its end."""
        self._handler = handler
        self._go_on()

    def cancel(self) -> None:
        """Raise CancelledError in the handler if it is waiting, as a task's ``cancel`` does."""
        waits_for = self._waits_for
        if isinstance(waits_for, Wait):
            waits_for.fail(asyncio.CancelledError())
        elif waits_for is not None:
            waits_for.cancel()

    def expire(self, now_s: float) -> None:
        """End the handler's `Wait` with `RequestTimedOutError` if its deadline has passed."""
        waits_for = self._waits_for
        if isinstance(waits_for, Wait) and now_s > waits_for.deadline_s:
            waits_for.fail(RequestTimedOutError("the broker has not answered in time"))

    def over(self) -> None:
        """Run the done callbacks; a second call runs none."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def _go_on(self, _done: Any = None) -> None:
        handler = self._handler
        assert handler is not None
        self._waits_for = None
        try:
            waits_for = handler.send(None)
        except StopIteration as end:
            self.response = end.value
            self._decided()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failure:
            self.failure = failure
            self._decided()
        else:
            if isinstance(waits_for, Wait):
                self._waits_for = waits_for
            elif waits_for is None:  # asyncio.sleep(0)
                self._waits_for = _next_round(self._go_on)
            else:
                self._waits_for = _called_when_done(waits_for, self._go_on)

    def _decided(self) -> None:
        self._handler = None
        self._stream.decided(self)


def _called_when_done(waits_for: Any, callback: Callable[[Any], None]) -> "asyncio.Future[Any]":
    """Call ``callback`` when the future that a coroutine has yielded is done, as asyncio's Task does; return it."""
    future: asyncio.Future[Any] = waits_for
    future._asyncio_future_blocking = False
    future.add_done_callback(callback)
    return future


def _next_round(callback: Callable[[Any], None]) -> "asyncio.Future[Any]":
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.add_done_callback(callback)
    future.set_result(None)
    return future


def stream_handler(answer: Answer) -> Any:
    """Return a method handler with which `AioErrorInterceptor` calls ``answer`` for each message of a stream.

    The interceptor recognises the coroutine function. It authorizes and measures the requests, converts errors to
    statuses, and ends the streams when the server stops.
    """
    return grpc.stream_stream_rpc_method_handler(answer)


class OpenStreams:
    """The open streams of one server, at most ``limit``."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self.used_bytes = 0
        """Total size of the requests in progress on all streams."""
        self.is_ending = False
        self._limit = limit
        self._count = 0
        self._streams: dict[_Stream, None] = {}
        self._look: asyncio.TimerHandle | None = None

    async def serve(self, answer: Answer, context: Any, on_answered: OnAnswered) -> None:
        """Serve the requests of one stream until its client or `end` ends the stream.

        Up to `MAX_UNDER_WAY` requests are in progress at the same time. Handlers start in the order of the requests,
        and responses are sent in the same order.
        """
        if self._count >= self._limit:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no room for another stream; use single calls")
        self._count += 1
        try:
            if not await self._serve(answer, context, on_answered):
                LOG.warning("response not received in time: peer=%s timeout_s=%g", context.peer(), LONGEST_DELIVERY_S)
                # gRPC cannot end a call while the client does not read its response, and it keeps that response. Close
                # the connection, which cancels this task. If the connection is not found, the stream stays open until
                # the client disconnects.
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(None, cut_connection, context.peer())
                await loop.create_future()
        finally:
            self._count -= 1

    async def _serve(self, answer: Answer, context: Any, on_answered: OnAnswered) -> bool:
        """Return whether every response was delivered in time; the requests' memory is released in either case."""
        stream = _Stream(self, answer, context, on_answered)
        self._streams[stream] = None
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_for_overdue)
        reader = asyncio.get_running_loop().create_task(stream.read())
        try:
            return await stream.end
        finally:
            reader.cancel()
            del self._streams[stream]
            stream.close()

    def _look_for_overdue(self) -> None:
        self._look = None
        if not self._streams:
            return
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(_LOOK_S, self._look_for_overdue)
        for stream in tuple(self._streams):
            stream.expire(loop.time())

    async def end(self) -> None:
        """End idle streams now and busy streams after their responses, so that the server's stop need not wait."""
        self.is_ending = True
        for stream in tuple(self._streams):
            if not stream.under_way:
                # `abort` always raises; gRPC raises another error if the client disconnects at the same moment.
                with contextlib.suppress(Exception):
                    await stream.context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")


class _Stream:
    """The requests of one stream that have no response yet."""

    def __init__(self, streams: OpenStreams, answer: Answer, context: Any, on_answered: OnAnswered) -> None:
        loop = asyncio.get_running_loop()
        self.context = context
        self.clock = loop.time
        self.under_way: deque[StreamServer] = deque()
        """Requests whose responses are not delivered yet, oldest first."""
        self.end: asyncio.Future[bool] = loop.create_future()
        """Done when the stream must end; the result is whether all responses were delivered, or the failure."""
        self._answer = answer
        self._on_answered = on_answered
        self._streams = streams
        self._room = asyncio.Event()
        self._all_read = False
        self._delivery: Coroutine[Any, Any, None] | None = None
        """Coroutine that writes the oldest response, while it waits for the connection's flow control."""
        self._delivered: asyncio.Future[Any] | None = None
        self._deliver_until_s = 0.0
        self._closed = False

    async def read(self) -> None:
        """Receive requests and start their handlers in order."""
        try:
            while not self._streams.is_ending and (request := await self.context.read()) is not grpc.aio.EOF:
                size = len(request)
                exchange = StreamServer(self)
                exchange.size_bytes = size
                self._streams.used_bytes += size
                self.under_way.append(exchange)
                exchange.begin(self._answer(request, exchange))
                del request, exchange  # free megabytes before the possibly long wait for the next request
                while self._is_full():
                    self._room.clear()
                    await self._room.wait()
        except grpc.aio.BaseError as failure:
            # Do not use the context here: gRPC may have freed the call.
            LOG.debug("no more requests on a stream: %s", failure)
        except Exception as failure:
            self._fail(failure)
        finally:
            self._all_read = True
            self._end_if_done()

    def _is_full(self) -> bool:
        waiting = len(self.under_way)
        return waiting >= MAX_UNDER_WAY or (waiting > 0 and self._streams.used_bytes > MAX_UNDER_WAY_BYTES)

    def decided(self, exchange: StreamServer) -> None:
        """Deliver the response of a finished handler if all earlier responses are delivered."""
        if self._closed:
            exchange.over()
        elif self._delivery is None and exchange is self.under_way[0]:
            try:
                self._deliver()
            except Exception as failure:  # must not reach the caller of `reply`
                self._fail(failure)

    def expire(self, now_s: float) -> None:
        """End overdue waits of handlers, and end the stream if its client has not read a response in time."""
        if self._delivery is not None and now_s > self._deliver_until_s:
            self._end(False)
        for exchange in tuple(self.under_way):
            exchange.expire(now_s)

    def close(self) -> None:
        """Stop delivering responses, and cancel the handlers that have not finished."""
        self._closed = True
        if not self.end.cancel() and not self.end.cancelled():
            self.end.exception()  # marks the exception as retrieved
        if self._delivered is not None:
            self._delivered.cancel()
        if self._delivery is not None:
            self._delivery.close()
            self._delivery = None
        for exchange in tuple(self.under_way):
            self._streams.used_bytes -= exchange.size_bytes
            if exchange.is_decided:
                exchange.over()
            else:
                exchange.cancel()

    def _deliver(self) -> None:
        """Write ready responses, oldest first, until a write has to wait for the connection's flow control."""
        while self.under_way and self.under_way[0].is_decided and not self.end.done():
            exchange = self.under_way[0]
            if exchange.failure is not None:
                self._fail(exchange.failure)
                return
            self._on_answered(self.clock() - exchange.begin_s, exchange.reason)
            self._delivery = self.context.write(exchange.response)
            self._deliver_until_s = self.clock() + LONGEST_DELIVERY_S
            if not self._go_on():
                return

    def _go_on(self) -> bool:
        """Resume the write of the oldest response; return whether it is complete."""
        delivery = self._delivery
        assert delivery is not None
        try:
            waits_for = delivery.send(None)
        except StopIteration:
            self._delivery = self._delivered = None
            exchange = self.under_way.popleft()
            self._streams.used_bytes -= exchange.size_bytes
            self._room.set()
            exchange.over()
            self._end_if_done()
            return True
        except Exception as failure:
            self._delivery = self._delivered = None
            self._fail(failure)
            return False
        self._delivered = _called_when_done(waits_for, self._has_delivered)
        return False

    def _has_delivered(self, _done: Any) -> None:
        if self._delivery is not None and self._go_on():
            self._deliver()

    def _end_if_done(self) -> None:
        """End the stream if all responses are delivered and no further request will be read."""
        if not self.under_way and (self._all_read or self._streams.is_ending):
            self._end(True)

    def _end(self, is_taken: bool) -> None:
        if not self.end.done():
            self.end.set_result(is_taken)

    def _fail(self, failure: BaseException) -> None:
        if isinstance(failure, asyncio.CancelledError):
            self.end.cancel()
        elif not self.end.done():
            self.end.set_exception(failure)
