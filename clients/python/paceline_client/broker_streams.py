"""The streams that requests of one kind go over: one to a broker, which keeps the order of what is in flight."""

import threading
from typing import Final

from paceline.rpc.channels import ChannelCache
from paceline.rpc.stream_caller import StreamCaller

IDLE_S: Final = 60.0
"""A stream that was not used for so long is ended: it takes a place at the broker."""
_JOIN_S: Final = 5.0


class BrokerStreams:
    """Streams by broker address, made on demand; safe to use from several threads."""

    def __init__(self, channels: ChannelCache, method: str, name: str) -> None:
        """``name`` begins the names of the threads that read answers."""
        self._channels = channels
        self._method = method
        self._name = name
        self._lock = threading.Lock()
        self._callers: dict[str, StreamCaller] = {}
        self._unknown: set[str] = set()
        self._closed = False

    def get(self, address: str) -> StreamCaller | None:
        """Return the stream to a broker; None where streams are not known."""
        caller = self._callers.get(address)
        if caller is not None and address not in self._unknown:
            return caller
        with self._lock:
            if address in self._unknown or self._closed:
                return None
            name = f"{self._name}-{len(self._callers) + 1}"
            caller = StreamCaller(self._channels.get(address), self._method, name)
            self._callers[address] = caller
            return caller

    def are_unknown(self, address: str) -> None:
        """The broker there has no such method: `get` returns None from now on."""
        with self._lock:
            self._unknown.add(address)

    def expire(self) -> None:
        """Give up overdue requests and end idle streams; to be called several times a second while requests are out."""
        for caller in list(self._callers.values()):
            caller.expire(IDLE_S)

    def close(self) -> None:
        """End every stream and join its thread; requests without an answer end with an error."""
        with self._lock:
            self._closed = True
        callers = list(self._callers.values())
        for caller in callers:
            caller.close()
        for caller in callers:
            caller.join(_JOIN_S)
