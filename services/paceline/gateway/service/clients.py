"""`Clients`: the connections, producers and administration that the gateway uses for each of its callers.

A cluster with certificates decides by the principal of the gateway's caller, which the gateway names with each call.
Callers of one principal share the streams to brokers; callers of different principals share the channels alone.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from paceline.gateway.service.publisher import Publisher, Room
from paceline.model.errors import ThrottledError
from paceline_client import Admin, Connections

IDLE_S: Final = 600.0
"""Time without a call, a stream or a member after which a principal's connections, producers and threads are closed."""


@dataclass(slots=True)
class Client:
    """The parts for one principal."""

    connections: Connections
    publisher: Publisher
    admin: Admin
    idle_since_s: float
    """End of the last use; meaningless during a use."""
    uses: int = 0
    """Calls, streams and members that use the parts now."""

    @property
    def is_idle(self) -> bool:
        """Whether no caller uses the parts and no record waits for its result."""
        return not self.uses and not self.publisher.is_waiting


class Clients:
    """The parts for each principal, from its first call until it is idle; the methods run on the event loop."""

    def __init__(
        self, shared: Connections, names_callers: bool, limit: int, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``names_callers``: whether brokers have certificates; ``limit`` is the maximum number of principals."""
        self._shared = shared
        self._clock_s = clock_s
        self._names_callers = names_callers
        self._limit = limit
        self._room = Room()
        self._clients: dict[str, Client] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._published = 0
        """Records that principals published which were forgotten since."""

    @contextmanager
    def use(self, principal: str) -> Iterator[Client]:
        """Return the parts for a principal, which stay open until the end of the block.

        Raises:
            ThrottledError: the gateway has as many principals as it may have, and none is idle.
        """
        client = self.of(principal)
        client.uses += 1
        try:
            yield client
        finally:
            client.uses -= 1
            client.idle_since_s = self._clock_s()

    def of(self, principal: str) -> Client:
        """Return the parts for a principal; a caller that keeps them must `use` them.

        Raises:
            ThrottledError: as `use`.
        """
        key = principal if self._names_callers else ""
        if (known := self._clients.get(key)) is not None:
            return known
        if len(self._clients) >= self._limit and not self._forget(1, self._clock_s()):
            raise ThrottledError.at(
                "GATEWAY_PRINCIPALS_MAX",
                f"the gateway serves {self._limit} principals, gateway.principals.max; use another gateway",
            )
        connections = self._shared.named(principal) if self._names_callers else self._shared
        publisher = Publisher(connections, self._room)
        self._clients[key] = client = Client(connections, publisher, Admin(connections), self._clock_s())
        return client

    def forget_idle(self) -> None:
        """Forget the principals that have been idle for `IDLE_S`."""
        self._forget(len(self._clients), self._clock_s() - IDLE_S)

    def _forget(self, most: int, before_s: float) -> int:
        """Forget the principals that have been idle the longest, since ``before_s``; return how many."""
        idle = [(one.idle_since_s, key) for key, one in self._clients.items() if one.is_idle]
        found = sorted(one for one in idle if one[0] <= before_s)[:most] if self._names_callers else []
        for _, key in found:
            client = self._clients.pop(key)
            self._published += client.publisher.published
            task = asyncio.get_running_loop().create_task(self._close(client))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return len(found)

    async def _close(self, client: Client) -> None:
        await client.publisher.close()
        await asyncio.to_thread(client.admin.close)
        await asyncio.to_thread(client.connections.close)

    def snapshot(self) -> dict[str, float]:
        """Return numbers for metrics."""
        published = self._published + sum(one.publisher.published for one in self._clients.values())
        return {"gateway_published_records_total": published, "gateway_unanswered_bytes": self._room.total_bytes}

    async def finish_publishing(self) -> None:
        """Wait for the results of accepted records."""
        for one in self._clients.values():
            await one.publisher.close()
        await asyncio.gather(*self._closing)

    def close_connections(self) -> None:
        """Close the connections to brokers; blocks."""
        for one in self._clients.values():
            one.connections.metadata.stop()
        # First the channels, which all share: a call without an answer ends at once, and delays no other client.
        self._shared.close()
        for one in self._clients.values():
            one.admin.close()
            if one.connections is not self._shared:
                one.connections.close()
