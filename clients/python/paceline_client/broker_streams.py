"""Requests of one RPC method: a single stream per broker keeps the requests to the broker in order."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from paceline.rpc.channels import ChannelCache
from paceline.rpc.errors import ConnectionBrokenError
from paceline.rpc.streams.stream_client import OnDone, StreamClient

IDLE_S: Final = 60.0
"""Idle time after which a stream ends: it occupies a stream slot of the broker, which may have left its address."""
ASK_AGAIN_S: Final = 60.0
"""Pause before the next stream to a broker that refused a stream: its stream limit may have been the only reason."""
_JOIN_S: Final = 5.0


class BrokerStreams:
    """Streams by broker address, opened on demand, and unary calls to brokers without streams; thread-safe."""

    def __init__(
        self,
        channels: ChannelCache,
        method: str,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        one_at_a_time: bool = False,
    ) -> None:
        """Create the container without opening a stream.

        Args:
            channels: gRPC channels for the requests.
            method: the full name of the unary method; the name of the method with streams has the suffix ``Stream``.
            name: prefix of the names of reader threads.
            clock: time in seconds.
            one_at_a_time: see `StreamClient`.
        """
        self._channels = channels
        self._method = method
        self._name = name
        self._clock = clock
        self._one_at_a_time = one_at_a_time
        self._lock = threading.Lock()
        self._callers: dict[str, StreamClient] = {}
        self._unknown: dict[str, float] = {}
        """By address: time until which no stream to the broker is opened."""
        self._made = 0
        self._closed = False

    def ask(self, address: str, request: bytes, timeout_s: float, on_done: OnDone) -> Callable[[], object]:
        """Send a request; return a function that ends it with an error.

        ``on_done`` is called once with the outcome, on the thread of the stream or, for a unary call, of gRPC, and must
        not raise. A broker that answers UNIMPLEMENTED lacks the method or a stream slot: the request, and the requests
        of the next minute, are unary calls.

        Raises:
            Exception: the request was not sent, for example because the channels are closed.
        """
        stream = self._stream_to(address)
        if stream is None:
            return self._call(address, request, timeout_s, on_done)
        end: Callable[[], object] = stream.interrupt
        ended = False

        def answered(outcome: bytes | Exception) -> None:
            nonlocal end
            if not isinstance(outcome, grpc.RpcError) or outcome.code() is not grpc.StatusCode.UNIMPLEMENTED:
                on_done(outcome)
                return
            with self._lock:
                self._unknown[address] = self._clock() + ASK_AGAIN_S
            try:
                end = self._call(address, request, timeout_s, on_done)
            except Exception as failure:
                on_done(failure)
            if ended:
                end()

        def interrupt() -> None:
            nonlocal ended
            ended = True
            end()

        stream.ask(request, timeout_s, answered)
        return interrupt

    def _call(self, address: str, request: bytes, timeout_s: float, on_done: OnDone) -> Callable[[], object]:
        """Make a unary call; return the function that cancels it."""
        call = self._channels.get(address).unary_unary(self._method, None, None).future(request, timeout=timeout_s)
        call.add_done_callback(lambda done: on_done(_outcome(done)))
        return call.cancel  # type: ignore[no-any-return]

    def _stream_to(self, address: str) -> StreamClient | None:
        """Return the stream to a broker; None while the broker cannot serve a stream."""
        caller = self._callers.get(address)
        if caller is not None and address not in self._unknown:
            return caller
        with self._lock:
            if self._closed or self._clock() < self._unknown.get(address, 0.0):
                return None
            self._unknown.pop(address, None)
            caller = self._callers.get(address)
            if caller is None:
                self._made += 1
                name = f"{self._name}-{self._made}"
                caller = self._callers[address] = StreamClient(
                    self._channels.get(address), f"{self._method}Stream", name, self._one_at_a_time
                )
            return caller

    def extend(self, address: str, more_s: float) -> None:
        """Give the requests in flight to a broker more time, because it reads them after the caller's pause."""
        caller = self._callers.get(address)
        if caller is not None:
            caller.extend(more_s)

    def expire(self) -> None:
        """Fail overdue requests and close idle streams; call this several times a second, but not during `ask`."""
        for address, caller in list(self._callers.items()):
            caller.expire()
            if caller.idle_s() >= IDLE_S:
                with self._lock:
                    del self._callers[address]
                    self._unknown.pop(address, None)
                caller.close()

    def close(self) -> None:
        """Close every stream and join its thread; unanswered requests end with an error."""
        with self._lock:
            self._closed = True
        callers = list(self._callers.values())
        for caller in callers:
            caller.close()
        for caller in callers:
            caller.join(_JOIN_S)


def _outcome(call: Any) -> bytes | Exception:
    if call.cancelled():
        return ConnectionBrokenError("interrupted")
    return call.exception() or call.result()  # type: ignore[no-any-return]
