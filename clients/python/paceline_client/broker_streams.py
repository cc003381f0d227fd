"""Streams of one RPC method: a single stream per broker keeps the requests to the broker in order."""

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from paceline.rpc.channels import ChannelCache
from paceline.rpc.streams.stream_client import StreamClient

IDLE_S: Final = 60.0
"""Idle time after which a stream is closed, because it occupies a stream slot of the broker."""
ASK_AGAIN_S: Final = 60.0
"""Pause before the next stream to a broker that refused a stream: its stream limit may have been the only reason."""
_JOIN_S: Final = 5.0


class BrokerStreams:
    """Streams by broker address, opened on demand; thread-safe."""

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
            channels: gRPC channels for the streams.
            method: the full method name.
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

    def get(self, address: str) -> StreamClient | None:
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
                    self._channels.get(address), self._method, name, self._one_at_a_time
                )
            return caller

    def are_unknown(self, address: str) -> None:
        """Record that a broker lacks the method or a stream slot: `get` returns None for a while."""
        with self._lock:
            self._unknown[address] = self._clock() + ASK_AGAIN_S

    def extend(self, address: str, more_s: float) -> None:
        """Give the requests in flight to a broker more time, because it reads them after the caller's pause."""
        caller = self._callers.get(address)
        if caller is not None:
            caller.extend(more_s)

    def expire(self) -> None:
        """Fail overdue requests and close idle streams; call this several times a second."""
        for caller in list(self._callers.values()):
            caller.expire(IDLE_S)

    def keep(self, addresses: Collection[str]) -> None:
        """Close the streams to addresses that are not in ``addresses``, the brokers' present addresses."""
        with self._lock:
            gone = [self._callers.pop(address) for address in self._callers.keys() - addresses]
            for address in self._unknown.keys() - addresses:
                del self._unknown[address]
        for caller in gone:
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
