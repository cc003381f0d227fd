"""`Clients`: the connections, producers and administration that the gateway uses for each of its callers.

A cluster with certificates decides by the principal of the gateway's caller, which the gateway names with each call.
Callers of one principal share the streams to brokers; callers of different principals share the channels alone.
"""

from dataclasses import dataclass

from paceline.gateway.service.publisher import Publisher, Room
from paceline.model.errors import ThrottledError
from paceline_client import Admin, Connections


@dataclass(frozen=True, slots=True)
class Client:
    """The parts for one principal."""

    connections: Connections
    publisher: Publisher
    admin: Admin


class Clients:
    """The parts for each principal, created with its first call; the methods run on the event loop."""

    def __init__(self, shared: Connections, names_callers: bool, limit: int) -> None:
        """``names_callers``: whether brokers have certificates; ``limit`` is the maximum number of principals."""
        self._shared = shared
        self._names_callers = names_callers
        self._limit = limit
        self._room = Room()
        self._clients: dict[str, Client] = {}

    def of(self, principal: str) -> Client:
        """Return the parts for a principal.

        Raises:
            ThrottledError: the gateway has as many principals as it may have.
        """
        key = principal if self._names_callers else ""
        if (known := self._clients.get(key)) is not None:
            return known
        if len(self._clients) >= self._limit:
            raise ThrottledError.at(
                "GATEWAY_PRINCIPALS_MAX",
                f"the gateway has had callers of {self._limit} principals, gateway.principals.max; use another gateway",
            )
        connections = self._shared.named(principal) if self._names_callers else self._shared
        self._clients[key] = Client(connections, Publisher(connections, self._room), Admin(connections))
        return self._clients[key]

    def snapshot(self) -> dict[str, float]:
        """Return numbers for metrics."""
        published = sum(one.publisher.published for one in self._clients.values())
        return {"gateway_published_records_total": published, "gateway_unanswered_bytes": self._room.total_bytes}

    async def finish_publishing(self) -> None:
        """Wait for the results of accepted records."""
        for one in self._clients.values():
            await one.publisher.close()

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
