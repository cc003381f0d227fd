"""Serve a stream of requests: respond to each request message with one message, in order.

A unary call creates a stream, headers, trailers and several tasks for every message; a message on an open stream costs
a third of that (measured: docs/decisions/0008). Streams are an optimisation: a unary method serves the same requests.
`stream_client` is the client. Limits: docs/protocol/limits.md#streams.

A request has no task of its own. `StreamRequest` runs its coroutine in the callback that receives the request, and then
in each callback that delivers an awaited value, so the response is written in the callback that delivers the last
value. Each iteration of the event loop that is saved makes the response a twentieth of a millisecond faster.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc
import grpc.aio

from paceline.model.errors import RequestTimedOutError
from paceline.rpc.connections import cut_connection
from paceline.rpc.security.authorizer import current_call

Answer = Callable[[bytes, "StreamRequest"], Coroutine[Any, Any, bytes]]
"""A handler: returns the response to a request message."""
OnAnswered = Callable[[float, str | None], None]
"""Called with the duration of one request in seconds and the name of the error in its response, None for success."""

MAX_STREAMS: Final = 128
"""Most open streams of one listener; further clients use unary calls.

`receive_limiter` cannot delay a request on a stream as it delays a call, so this many requests of the largest size (4
MiB) may arrive at the same time.
"""
MAX_GATEWAY_STREAMS: Final = 1_024
"""Most open streams of gateways at one listener, besides `MAX_STREAMS`: they have two or three for each principal."""
LONGEST_DELIVERY_S: Final = 60.0
"""A client that has not read a response after this time is disconnected, because its requests count as memory."""
MAX_UNDER_WAY: Final = 16
"""Most requests of one stream in progress; further requests wait in the connection."""
MAX_UNDER_WAY_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the requests in progress of all streams; above this limit each stream has one request in progress."""

_CHECK_INTERVAL_S: Final = 0.5
"""Interval of the check for overdue handlers, undelivered responses and withdrawn permissions."""
_NEVER: Final = float("inf")
_STOPPING: Final = asyncio.CancelledError()
"""The reason for the end of a stream when the server stops."""
_WITHDRAWN: Final = asyncio.CancelledError()
"""The reason for the end of a stream whose caller has lost a permission that it has used, or its certificate."""
_REASONS: Final = {
    _STOPPING: "the server is stopping",
    # As after a lost connection, requests without a response may have been carried out, and a client opens another
    # stream, on which each partition has its own verdict.
    _WITHDRAWN: "the access rules of the caller have changed, or its certificate is revoked; open another stream",
}

LOG = logging.getLogger("paceline.rpc")


class Wait(asyncio.Future[Any]):
    """A future with a deadline, for a task or for a coroutine of a stream, which resumes before `reply` returns.

    A stream checks the deadlines of its waits; for a task a timer does.
    """

    def __init__(self, timeout_s: float = _NEVER) -> None:
        super().__init__()
        self._deadline_s = self.get_loop().time() + timeout_s
        self._resume: Callable[[Any], object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        """Resume a task, which awaits this, in the next iteration of the event loop."""
        super().add_done_callback(callback, context=context)
        self._timer = self.get_loop().call_at(self._deadline_s, self.expire, self._deadline_s)

    def resume_at_once(self, resume: Callable[[Any], object]) -> None:
        """Set the only callback, which is not delayed until the next iteration of the event loop."""
        self._resume = resume

    def cancel(self, msg: Any = None) -> bool:
        """End the wait of a cancelled task."""
        self._stop_timer()
        return super().cancel(msg)

    def expire(self, now_s: float) -> None:
        """Raise `RequestTimedOutError` in the coroutine if the deadline has passed."""
        if now_s >= self._deadline_s:
            self.fail(RequestTimedOutError("the broker has not answered in time"))

    def reply(self, value: Any) -> None:
        """Deliver the value, unless the wait has ended."""
        self._finish(self.set_result, value)

    def fail(self, failure: BaseException) -> None:
        """Raise ``failure`` in the coroutine, unless the wait has ended."""
        self._finish(self.set_exception, failure)

    def _finish(self, set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not self.done():
            self._stop_timer()
            set_outcome(outcome)
            if self._resume is not None:
                self._resume(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class StreamRequest:
    """One request on a stream; handlers use it like a call's context.

    It also runs the request's coroutine, as a task does, but without waiting for the next iteration of the event loop.
    """

    __slots__ = ("_awaited", "_callbacks", "_coroutine", "context", "reason", "sent")

    def __init__(self, context: Any) -> None:
        self.context = context
        """The gRPC context of the stream."""
        self.reason: str | None = None
        """Name of the error in the response, for metrics; a handler that responds with an error sets it."""
        self.sent = Wait()
        """Done when the response was sent."""
        self._callbacks: list[Callable[[Any], None]] = []
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._awaited: asyncio.Future[Any] | None = None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback`` when the response was delivered or cannot be delivered, like a call's context."""
        self._callbacks.append(callback)

    def peer(self) -> str:
        """Return the address of the client, like a call's context."""
        peer: str = self.context.peer()
        return peer

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run ``coroutine``, which must not raise, until it first waits; the rest runs in callbacks."""
        self._coroutine = coroutine
        self._resume()

    def _resume(self, done: Any = None, failure: BaseException | None = None) -> None:
        """Run the coroutine until it waits again or ends, unless it has stopped waiting for ``done``."""
        if self._coroutine is None or done is not self._awaited:
            return
        self._awaited = None
        try:
            awaited = self._coroutine.send(None) if failure is None else self._coroutine.throw(failure)
        except StopIteration:
            self._coroutine = None
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback(self)
            return
        if awaited is None:  # asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(self._resume)
        else:
            awaited._asyncio_future_blocking = False  # as asyncio's Task does
            resume_with = awaited.resume_at_once if isinstance(awaited, Wait) else awaited.add_done_callback
            resume_with(self._resume)
            self._awaited = awaited

    def cancel(self) -> None:
        """Raise CancelledError in the coroutine, which must not be running, and cancel what it waits for."""
        awaited = self._awaited
        self._resume(awaited, asyncio.CancelledError())
        if awaited is not None:
            awaited.cancel()

    def expire(self, now_s: float) -> None:
        """Raise `RequestTimedOutError` in the coroutine if the deadline of its `Wait` has passed."""
        if isinstance(self._awaited, Wait):
            self._awaited.expire(now_s)


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
        """Total size of the requests in progress on all streams, until their responses are delivered."""
        self.is_ending = False
        self._limit = limit
        self._streams: dict[_Stream, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, answer: Answer, context: Any, on_answered: OnAnswered) -> None:
        """Serve the requests of one stream until its client or `end` ends the stream.

        Up to `MAX_UNDER_WAY` requests are in progress at the same time. Handlers start in the order of the requests,
        and responses are sent in the same order.
        """
        if len(self._streams) >= self._limit:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no room for another stream; use single calls")
        stream = _Stream(self, answer, context, on_answered)
        self._streams[stream] = None
        if self._timer is None:
            self._check()
        try:
            await stream.serve()
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as failure:
            raise asyncio.CancelledError from failure  # the client has disconnected
        finally:
            del self._streams[stream]

    def end(self) -> None:
        """End idle streams now and busy streams after their responses, so that the server's stop need not wait."""
        self.is_ending = True
        for stream in tuple(self._streams):
            stream.end_if_idle()

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_CHECK_INTERVAL_S, self._check) if self._streams else None
        for stream in tuple(self._streams):
            stream.expire(loop.time())


class _Stream:
    """One stream and its requests whose responses are not delivered yet."""

    def __init__(self, streams: OpenStreams, answer: Answer, context: Any, on_answered: OnAnswered) -> None:
        self._streams = streams
        self._answer = answer
        self._context = context
        self._on_answered = on_answered
        self._clock = asyncio.get_running_loop().time
        self._under_way: deque[StreamRequest] = deque()
        """Requests whose responses are not delivered yet, oldest first."""
        self._delivered = asyncio.Event()
        self._deliver_until_s = _NEVER
        """Time until which the client must have read the response that is being written."""
        self._call = current_call()
        self._task: Any = asyncio.current_task()
        self._failure: BaseException | None = None
        """The reason for the end of the stream, None while it is open."""

    async def serve(self) -> None:
        """Receive requests and start their handlers in order; return when the client has received all responses."""
        sent: Wait | None = None
        try:
            while not self._streams.is_ending:
                await self._call.quota.hold()
                message = await self._context.read()
                if message is grpc.aio.EOF:
                    break
                request = StreamRequest(self._context)
                self._under_way.append(request)
                request.run(self._respond(message, request, sent))
                sent = request.sent
                del message, request  # free megabytes before the possibly long wait for the next request
                while self._is_full():
                    await self._delivery()
            while self._under_way:
                await self._delivery()
        except asyncio.CancelledError:
            if self._failure is None or self._task.uncancel():
                raise
            reason = _REASONS.get(self._failure)  # type: ignore[call-overload]
            if reason is not None:
                await self._context.abort(grpc.StatusCode.UNAVAILABLE, reason)
            raise self._failure from None
        finally:
            self._failure = self._failure or asyncio.CancelledError()
            for request in tuple(self._under_way):
                request.cancel()

    async def _respond(self, message: bytes, request: StreamRequest, earlier: Wait | None) -> None:
        """Call the handler, and write its response after all earlier responses; a failure ends the stream."""
        begin_s, size_bytes = self._clock(), len(message)
        self._streams.used_bytes += size_bytes
        try:
            handler = self._answer(message, request)
            del message  # the handler decides how long it needs the request
            try:
                response = await handler
            finally:
                if earlier is not None and self._failure is None:
                    await earlier
            if self._failure is not None:
                return  # gRPC may have freed the call
            self._on_answered(self._clock() - begin_s, request.reason)
            self._deliver_until_s = self._clock() + LONGEST_DELIVERY_S
            await self._context.write(response)
            self._deliver_until_s = _NEVER
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failure:
            self._end(failure)
            return
        finally:
            self._streams.used_bytes -= size_bytes
        self._under_way.popleft()
        self._delivered.set()
        request.sent.reply(None)
        self.end_if_idle()

    def end_if_idle(self) -> None:
        """End the stream if the server is stopping and every request has its response."""
        if self._streams.is_ending and not self._under_way:
            self._end(_STOPPING)

    def expire(self, now_s: float) -> None:
        """End overdue waits, and the stream when its caller has lost a permission that it has used, or its certificate.

        Disconnect a client that has not read a response in time.
        """
        if self._call.withdrawn() is not None:
            self._end(_WITHDRAWN)
            return
        if now_s > self._deliver_until_s:
            self._deliver_until_s = _NEVER
            LOG.warning("response not received in time: peer=%s timeout_s=%g", self._context.peer(), LONGEST_DELIVERY_S)
            # gRPC cannot end a call while the client does not read its response, and it keeps that response. The end
            # of the connection cancels this stream's task.
            asyncio.get_running_loop().run_in_executor(None, cut_connection, self._context.peer())
        for request in tuple(self._under_way):
            request.expire(now_s)

    def _is_full(self) -> bool:
        count = len(self._under_way)
        return count >= MAX_UNDER_WAY or (count > 0 and self._streams.used_bytes > MAX_UNDER_WAY_BYTES)

    async def _delivery(self) -> None:
        self._delivered.clear()
        await self._delivered.wait()

    def _end(self, failure: BaseException) -> None:
        if self._failure is None:
            self._failure = failure
            self._task.cancel()
