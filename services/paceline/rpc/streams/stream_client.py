"""Send requests on one stream from any thread; a thread of the client reads the answers.

Each request is answered by one message, in the order of the requests. A message on a stream needs no headers, trailers
or call object of its own, as a blocking unary call does, and a request needs no hand-over to the thread that waits for
its answer (measured: docs/decisions/0008). `stream_server` is the server's end, `stream_call` the stream itself.
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
"""Called with the response's bytes, or the failure: a `grpc.RpcError`, a `PacelineError`, or an unexpected error."""

_RESOURCE_EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
_OWN_RECEIPT: Final = "CLIENT: Received"
"""So gRPC begins about an answer that is too large for us."""
_NO_DEADLINE: Final = float("inf")
_FAREWELL_S: Final = 1.0
"""How long the server may take to end a stream that was idle; requests on the next one wait for that."""


class _Stream:
    """One stream: the messages to send when it opens, and the requests without a response, oldest first."""

    __slots__ = ("call", "early", "failure", "finished", "used_s", "waiting")

    def __init__(self) -> None:
        self.early: list[bytes] = []
        self.waiting: deque[tuple[float, OnDone, int]] = deque()
        """Deadline, callback and bytes of each request, oldest first."""
        self.call: StreamCall | None = None
        self.finished = False
        """Whether no more requests will be put on it."""
        self.failure: Exception | None = None
        """Why we ended it ourselves."""
        self.used_s = time.monotonic()
        """When the latest request was put on it, later when it was ended for want of any."""

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
    """Asks over one stream, which is opened by the first request and again after it has ended.

    The owner must call `expire` about once a second, otherwise deadlines are not enforced.
    """

    def __init__(self, channel: Any, method: str, name: str, one_at_a_time: bool = False) -> None:
        """Make the caller and start its thread.

        Args:
            channel: a blocking channel.
            method: the full name.
            name: the thread's.
            one_at_a_time: a request seldom comes before the answer to the one before it, and may wait for that.
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
        """Send a request; ``on_done`` is called once with its outcome, on the caller's thread, and must not raise.

        When the caller is closed already it is called before this returns.
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
        """End the stream when its oldest request is overdue, or when it was not used for ``idle_s`` seconds."""
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
        """End the stream if a request waits for its answer; the next request opens another."""
        with self._lock:
            for stream in (self._reading, self._stream):
                if stream is not None and stream.waiting:
                    self._give_up(stream, ConnectionBrokenError("interrupted"))

    def close(self) -> None:
        """End the stream and the thread; requests without an answer end with an error."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._streams.put(None)
            for stream in (self._reading, self._stream):
                if stream is not None:
                    self._give_up(stream, ConnectionBrokenError("the connection was closed"))

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout_s)

    def _give_up(self, stream: _Stream, why: Exception) -> None:
        """End a stream that is open or will be; the thread runs the callbacks with the error. The lock is held."""
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
            # The outcome of the others is unknown.
            whose = _whose(failure, [size for _, _, size in waiting])
            for index, (_, on_done, _) in enumerate(waiting):
                on_done(failure if index == whose else ConnectionBrokenError("the stream ended before the answer"))

    def _read(self, stream: _Stream) -> Exception:
        """Hand out answers until the stream ends; return why it did."""
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
                del answer, on_done  # megabytes, and the next answer may be long in coming
        except Exception as failure:
            return failure
        finally:
            with self._lock:
                call.cancel()
            call.drain()
        return ConnectionBrokenError("the stream was ended by the server")


def _whose(failure: Exception, sizes: list[int]) -> int:
    """Return the index of the request that a stream has failed for: the oldest, or the one gRPC found too large."""
    if len(sizes) < 2 or not isinstance(failure, grpc.RpcError) or failure.code() is not _RESOURCE_EXHAUSTED:
        return 0
    said = failure.details() or ""
    if error_info(failure) is not None or said.startswith(_OWN_RECEIPT):
        return 0
    return sizes.index(max(sizes))
