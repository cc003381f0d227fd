"""What the controller is handed besides the scheduler and ZooKeeper."""

from collections.abc import Callable
from typing import Protocol

from paceline.model.control import ControlRequest, ControlResponse, Endpoint, LiveBroker
from paceline.model.standby import StateUpdate


class ControlTransport(Protocol):
    """Carries control requests to brokers, one in flight per broker.

    Each `send` ends in exactly one callback on the controller's scheduler, unless `close` for that broker came first;
    then the callback may be dropped. The transport never retries: that is the channel's rule.
    """

    def send(
        self,
        broker: LiveBroker,
        request: ControlRequest,
        timeout_ms: int,
        on_done: Callable[[ControlResponse | Exception], None],
    ) -> None:
        """Send to the broker's CONTROL endpoint; the answer, or the exception that took its place, comes back once."""

    def close(self, broker_id: int) -> None:
        """End the connection to a broker; harmless when there is none."""


class StandbyTransport(Protocol):
    """Brings the active controller's state to one that stands by."""

    def follow(
        self,
        controller: Endpoint,
        standby_id: int,
        on_update: Callable[[StateUpdate], None],
        on_end: Callable[[Exception | None], None],
    ) -> Callable[[], None]:
        """Open a stream to a controller's CONTROL endpoint and return what closes it.

        Both callbacks run on the own scheduler, never within this call; ``on_end`` at most once, nothing follows it.
        Messages may come late, twice or not at all: they are numbered, and the follower looks.
        """


class NoStandbyTransport:
    """Follows no controller: a process with it always takes over cold."""

    def follow(
        self,
        controller: Endpoint,
        standby_id: int,
        on_update: Callable[[StateUpdate], None],
        on_end: Callable[[Exception | None], None],
    ) -> Callable[[], None]:
        """Do nothing."""
        return lambda: None
