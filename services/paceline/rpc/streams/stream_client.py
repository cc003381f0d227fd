"""Send requests on one stream from any thread; a thread of the client reads the responses.

Each request has one response message, in the order of the requests. Unlike a blocking unary call, a message on a stream
needs no headers, trailers or call object of its own, and the sending thread does not pass the request to another thread
(measured: docs/decisions/0008). `stream_server` is the server, `stream_call` the stream itself.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import grpc

from paceline.model.errors import BrokerNotAvailableError, RequestTimedOutError
from paceline.rpc.errors import ConnectionBrokenError, error_info
from paceline.rpc.streams.stream_call import StreamCall

OnDone = Callable[[bytes | Exception], None]
"""Called with the response's bytes or with the failure: a `grpc.RpcError`, `PacelineError` or unexpected error."""

_RESOURCE_EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
_OWN_RECEIPT: Final = "CLIENT: Received"
"""Beginning of gRPC's status message when a response is too large for the client."""


class _Stream:
    """An open stream and its requests without a response."""

    __slots__ = ("call", "failure", "waiting")

    def __init__(self, call: StreamCall) -> None:
        self.call = call
        self.waiting: deque[tuple[float, OnDone, int]] = deque()
        """Deadline, callback and size of each request, oldest first."""
        self.failure: Exception | None = None
        """The error with which this client ended the stream."""


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
            one_at_a_time: whether requests rarely overlap; a request sent before the response to the previous request
                may then wait for that response.
        """
        self._open_call = partial(StreamCall, channel, method)
        self._one_at_a_time = one_at_a_time
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        """The stream for the next request; earlier streams have ended."""
        self._asked_s = time.monotonic()
        self._streams: queue.SimpleQueue[_Stream | None] = queue.SimpleQueue()
        """Streams for the thread to read."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, request: bytes, timeout_s: float, on_done: OnDone) -> None:
        """Send a request; ``on_done`` is called once with its outcome, on the reading thread, and must not raise.

        If no stream can be opened, for example after `close`, ``on_done`` is called before this method returns.
        """
        failure: Exception | None = None
        with self._lock:
            try:
                stream = self._stream or self._open()
            except Exception as error:
                failure = error
            else:
                self._asked_s = time.monotonic()
                stream.waiting.append((self._asked_s + timeout_s, on_done, len(request)))
                stream.call.send(request)
        if failure is not None:
            on_done(failure)

    def expire(self) -> None:
        """End the stream if its oldest request is overdue."""
        with self._lock:
            stream = self._stream
            if stream is not None and stream.waiting and stream.waiting[0][0] <= time.monotonic():
                self._end(RequestTimedOutError("the broker has not answered in time"))

    def idle_s(self) -> float:
        """Return the time since the last request, 0 while a request waits for its response."""
        with self._lock:
            waits = self._stream is not None and self._stream.waiting
            return 0.0 if waits else time.monotonic() - self._asked_s

    def extend(self, more_s: float) -> None:
        """Move the deadline of every request without a response."""
        with self._lock:
            if self._stream is not None:
                waiting = self._stream.waiting
                self._stream.waiting = deque((until_s + more_s, done, size) for until_s, done, size in waiting)

    def interrupt(self) -> None:
        """End the stream if a request waits for its response; the next request opens another stream."""
        with self._lock:
            if self._stream is not None and self._stream.waiting:
                self._end(ConnectionBrokenError("interrupted"))

    def close(self) -> None:
        """End the stream and the thread; requests without a response fail with `ConnectionBrokenError`."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._end(ConnectionBrokenError("the connection was closed"))
                self._streams.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, at most ``timeout_s``."""
        self._thread.join(timeout_s)

    def _open(self) -> _Stream:
        if self._closed:
            raise BrokerNotAvailableError("the connection was closed")
        stream = self._stream = _Stream(self._open_call(self._lock, self._one_at_a_time))
        self._streams.put(stream)
        return stream

    def _end(self, failure: Exception) -> None:
        """End the stream, if it is open; the thread calls the callbacks of its requests with ``failure``."""
        if self._stream is not None:
            self._stream.failure = failure
            self._stream.call.cancel()
            self._stream = None

    # the thread

    def _run(self) -> None:
        while (stream := self._streams.get()) is not None:
            failure = self._read(stream)
            with self._lock:
                if self._stream is stream:
                    self._stream = None
                failure = stream.failure or failure
            # Only one request has caused the failure; the outcome of the other requests is unknown.
            whose = _whose(failure, [size for _, _, size in stream.waiting])
            for index, (_, on_done, _) in enumerate(stream.waiting):
                on_done(failure if index == whose else ConnectionBrokenError("the stream ended before the answer"))

    def _read(self, stream: _Stream) -> Exception:
        """Pass responses to the callbacks until the stream ends; return the error that ended it."""
        try:
            with contextlib.closing(stream.call.answers()) as answers:
                for answer in answers:
                    with self._lock:
                        if stream.failure is not None:
                            return stream.failure
                        _, on_done, _ = stream.waiting.popleft()
                    on_done(answer)
                    del answer, on_done  # free megabytes before the possibly long wait for the next response
        except Exception as failure:
            return failure
        return ConnectionBrokenError("the stream was ended by the server")


def _whose(failure: Exception, sizes: list[int]) -> int:
    """Return the index of the request that made the stream fail: the oldest, or the largest if it was too large."""
    if len(sizes) < 2 or not isinstance(failure, grpc.RpcError) or failure.code() is not _RESOURCE_EXHAUSTED:
        return 0
    said = failure.details() or ""
    if error_info(failure) is not None or said.startswith(_OWN_RECEIPT):
        return 0
    return sizes.index(max(sizes))
