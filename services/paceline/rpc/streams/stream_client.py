"""Send requests on one stream from any thread; a thread of the client reads the responses.

Each request has one response message, in the order of the requests. Unlike a blocking unary call, a message on a stream
needs no headers, trailers or call object of its own, and the sending thread does not pass the request to another thread
(measured: docs/decisions/0008). `stream_server` is the server, `stream_call` the stream itself.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc

from paceline.model.errors import BrokerNotAvailableError, RequestTimedOutError
from paceline.rpc.errors import ConnectionBrokenError, error_info
from paceline.rpc.streams.stream_call import StreamCall, open_stream_call

OnDone = Callable[[bytes | Exception], None]
"""Called with the response's bytes or with the failure: a `grpc.RpcError`, `PacelineError` or unexpected error."""

_RESOURCE_EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
_OWN_RECEIPT: Final = "CLIENT: Received"
"""Beginning of gRPC's status message when a response is too large for the client."""
_NO_DEADLINE: Final = float("inf")
_FAREWELL_S: Final = 1.0
"""Most seconds for the server to end an idle stream; requests on the next stream wait until it has ended."""


class _Stream:
    """One stream, open or to be opened, and its requests without a response."""

    __slots__ = ("call", "early", "failure", "finished", "used_s", "waiting")

    def __init__(self) -> None:
        self.early: list[bytes] = []
        self.waiting: deque[tuple[float, OnDone, int]] = deque()
        """Deadline, callback and size of each request, oldest first."""
        self.call: StreamCall | None = None
        self.finished = False
        """Whether no more requests will be sent on this stream."""
        self.failure: Exception | None = None
        """The error with which this client ended the stream."""
        self.used_s = time.monotonic()
        """Time of the latest request, or of the end of the stream if it was ended because it was idle."""

    def send(self, request: bytes) -> None:
        if self.call is None:
            self.early.append(request)
        else:
            self.call.send(request)

    def finish(self) -> None:
        self.finished = True
        if self.call is not None:
            self.call.finish()

    def opened(self, call: StreamCall) -> None:
        self.call = call
        early, self.early = self.early, []
        for request in early:
            call.send(request)
        if self.finished:
            call.finish()


class StreamClient:
    """Sends requests on one stream, which the first request opens, and opens another stream after its end.

    The owner must call `expire` about once a second, otherwise deadlines are not enforced.
    """

    def __init__(self, channel: Any, method: str, name: str, one_at_a_time: bool = False) -> None:
        """Start the reading thread; the first request opens the stream.

        Args:
            channel: a blocking channel.
            method: full name of the method.
            name: name of the thread.
            one_at_a_time: whether a request is rarely sent before the response to the previous one, and may wait for
                that response.
        """
        self._channel = channel
        self._method = method
        self._one_at_a_time = one_at_a_time
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self._reading: _Stream | None = None
        self._streams: queue.SimpleQueue[_Stream | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, request: bytes, timeout_s: float, on_done: OnDone) -> None:
        """Send a request; ``on_done`` is called once with its outcome, on the reading thread, and must not raise.

        If this client is closed, ``on_done`` is called before this method returns.
        """
        with self._lock:
            closed = self._closed
            if not closed:
                stream = self._stream
                if stream is None:
                    stream = self._stream = _Stream()
                    self._streams.put(stream)
                stream.used_s = time.monotonic()
                stream.waiting.append((stream.used_s + timeout_s, on_done, len(request)))
                stream.send(request)
        if closed:
            on_done(BrokerNotAvailableError("the connection was closed"))

    def expire(self, idle_s: float = _NO_DEADLINE) -> None:
        """End the stream if its oldest request is overdue, or if it had no request for ``idle_s`` seconds."""
        now_s = time.monotonic()
        with self._lock:
            for stream in {id(one): one for one in (self._reading, self._stream) if one is not None}.values():
                if stream.waiting and stream.waiting[0][0] <= now_s:
                    self._give_up(stream, RequestTimedOutError("the broker has not answered in time"))
            idle = self._stream
            if idle is not None and not idle.waiting and now_s - idle.used_s >= idle_s:
                self._stream = None
                idle.used_s = now_s
                idle.finish()
            left = self._reading
            if left is not None and left is not self._stream and now_s - left.used_s >= _FAREWELL_S and left.call:
                left.call.cancel()

    def interrupt(self) -> None:
        """End the stream if a request waits for its response; the next request opens another stream."""
        with self._lock:
            for stream in (self._reading, self._stream):
                if stream is not None and stream.waiting:
                    self._give_up(stream, ConnectionBrokenError("interrupted"))

    def close(self) -> None:
        """End the stream and the thread; requests without a response fail with `ConnectionBrokenError`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._streams.put(None)
            for stream in (self._reading, self._stream):
                if stream is not None:
                    self._give_up(stream, ConnectionBrokenError("the connection was closed"))

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, at most ``timeout_s``."""
        self._thread.join(timeout_s)

    def _give_up(self, stream: _Stream, why: Exception) -> None:
        """End a stream, open or not yet; the thread calls the callbacks with the error. The caller holds the lock."""
        stream.failure = stream.failure or why
        if self._stream is stream:
            self._stream = None
        if stream.call is not None:
            stream.call.cancel()

    # The thread

    def _run(self) -> None:
        while (stream := self._streams.get()) is not None:
            failure = self._read(stream)
            with self._lock:
                self._reading = None
                if self._stream is stream:
                    self._stream = None
                waiting, stream.waiting = stream.waiting, deque()
                failure = stream.failure or failure
            # Only one request has caused the failure; the outcome of the other requests is unknown.
            whose = _whose(failure, [size for _, _, size in waiting])
            for index, (_, on_done, _) in enumerate(waiting):
                on_done(failure if index == whose else ConnectionBrokenError("the stream ended before the answer"))

    def _read(self, stream: _Stream) -> Exception:
        """Pass responses to the callbacks until the stream ends; return the error that ended it."""
        with self._lock:
            if stream.failure is not None:
                return stream.failure
            self._reading = stream
        try:
            call = open_stream_call(self._channel, self._method, self._lock, self._one_at_a_time)
        except Exception as failure:
            return failure
        try:
            with self._lock:
                if stream.failure is not None:
                    return stream.failure
                stream.opened(call)
            for answer in call.answers():
                with self._lock:
                    _, on_done, _ = stream.waiting.popleft()
                on_done(answer)
                del answer, on_done  # free megabytes before the possibly long wait for the next response
        except Exception as failure:
            return failure
        finally:
            with self._lock:
                call.cancel()
            call.drain()
        return ConnectionBrokenError("the stream was ended by the server")


def _whose(failure: Exception, sizes: list[int]) -> int:
    """Return the index of the request that made the stream fail: the oldest, or the largest if it was too large."""
    if len(sizes) < 2 or not isinstance(failure, grpc.RpcError) or failure.code() is not _RESOURCE_EXHAUSTED:
        return 0
    said = failure.details() or ""
    if error_info(failure) is not None or said.startswith(_OWN_RECEIPT):
        return 0
    return sizes.index(max(sizes))
