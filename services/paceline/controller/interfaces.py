"""Interfaces that the controller needs besides the scheduler and ZooKeeper."""

from collections.abc import Callable
from typing import Protocol

from paceline.model.control import ControlRequest, ControlResponse, Endpoint, LiveBroker
from paceline.model.standby import StateUpdate


class ControlTransport(Protocol):
    """Carries control requests to brokers, one in flight per broker.

    Each `send` ends in exactly one callback on the controller's scheduler; the callback may be
    dropped only after `close` for that broker. The transport does not retry; the channel manager retries.
    """

    def send(
        self,
        broker: LiveBroker,
        request: ControlRequest,
        timeout_ms: int,
        on_done: Callable[[ControlResponse | Exception], None],
    ) -> None:
        """Send to the broker's CONTROL endpoint and call back once, with the answer or an exception."""

    def close(self, broker_id: int) -> None:
        """Close the connection to a broker; does nothing without a connection."""


class StandbyTransport(Protocol):
    """Streams the active controller's state to a standby."""

    def follow(
        self,
        controller: Endpoint,
        standby_id: int,
        on_update: Callable[[StateUpdate], None],
        on_end: Callable[[Exception | None], None],
    ) -> Callable[[], None]:
        """Open a stream to a controller's CONTROL endpoint and return a function that closes it.

        Both callbacks run on this controller's scheduler, never during this call; ``on_end`` is called at most once, as
        the last callback. Messages may be late, duplicated or lost; the standby checks their numbers.
        """
