"""Limit the calls in progress: bytes of produce requests of a broker, fetches of a connection."""

import contextlib
from collections.abc import Iterator
from typing import Final

from paceline.model.errors import ThrottledError


class ByteBudget:
    """Bytes of produce requests in flight, for all listeners of a broker."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    @contextlib.contextmanager
    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Reserve ``size_bytes`` while the request is handled; a request always fits while no other is in flight.

        Raises:
            ThrottledError: the limit of bytes in flight is reached; no batch was appended.
        """
        if self.used_bytes and self.used_bytes + size_bytes > self._limit_bytes:
            raise ThrottledError.at(
                "queued.max.request.bytes", f"{self.used_bytes} bytes of produce requests are in flight; try again"
            )
        self.used_bytes += size_bytes
        try:
            yield
        finally:
            self.used_bytes -= size_bytes


class FetchWaits:
    """Fetches in progress by connection, for all listeners of a broker: each append checks those that wait for data."""

    LIMIT: Final = "max.waiting.fetches.per.connection"

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}

    @property
    def largest(self) -> int:
        """Fetches of the connection that has most of them."""
        return max(self._counts.values(), default=0)

    @contextlib.contextmanager
    def of(self, peer: str) -> Iterator[None]:
        """Count a fetch of the connection while it is in progress.

        Raises:
            ThrottledError: the connection has the maximum number of fetches in progress.
        """
        count = self._counts.get(peer, 0)
        if count >= self._limit:
            raise ThrottledError.at(self.LIMIT, f"{count} fetches wait on this connection, the limit is {self._limit}")
        self._counts[peer] = count + 1
        try:
            yield
        finally:
            self._counts[peer] -= 1
            if not self._counts[peer]:
                del self._counts[peer]
