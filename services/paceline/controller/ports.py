"""What the controller is handed besides the scheduler and ZooKeeper."""

from collections.abc import Callable
from typing import Protocol

from paceline.model.control import ControlRequest, ControlResponse, LiveBroker


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
