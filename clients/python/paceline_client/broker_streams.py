"""The streams that requests of one kind go over: one to a broker, which keeps the order of what is in flight."""

import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from paceline.rpc.channels import ChannelCache
from paceline.rpc.streams.stream_client import StreamClient

IDLE_S: Final = 60.0
"""A stream that was not used for so long is ended: it takes a place at the broker."""
ASK_AGAIN_S: Final = 60.0
"""A broker that had no stream for us is tried again after this: maybe it only had no room for another."""
_JOIN_S: Final = 5.0


class BrokerStreams:
    """Streams by broker address, made on demand; safe to use from several threads."""

    def __init__(
        self,
        channels: ChannelCache,
        method: str,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        one_at_a_time: bool = False,
    ) -> None:
        """Make none yet.

        Args:
            channels: where streams are opened.
            method: the full name.
            name: begins the names of the threads that read answers.
            clock: tells seconds.
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
        """Until when a broker is not asked for a stream."""
        self._made = 0
        self._closed = False

    def get(self, address: str) -> StreamClient | None:
        """Return the stream to a broker; None where there is none to be had at present."""
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
        """The broker there has no such method, or no room for a stream: `get` returns None for a while."""
        with self._lock:
            self._unknown[address] = self._clock() + ASK_AGAIN_S

    def expire(self) -> None:
        """Give up overdue requests and end idle streams; to be called several times a second while requests are out."""
        for caller in list(self._callers.values()):
            caller.expire(IDLE_S)

    def keep(self, addresses: Collection[str]) -> None:
        """End the streams to all other addresses, and their threads: no broker is there any more."""
        with self._lock:
            gone = [self._callers.pop(address) for address in self._callers.keys() - addresses]
            for address in self._unknown.keys() - addresses:
                del self._unknown[address]
        for caller in gone:
            caller.close()

    def close(self) -> None:
        """End every stream and join its thread; requests without an answer end with an error."""
        with self._lock:
            self._closed = True
        callers = list(self._callers.values())
        for caller in callers:
            caller.close()
        for caller in callers:
            caller.join(_JOIN_S)
