"""Interfaces to the clock and the event loop, implemented by the services and by the simulator."""

from collections.abc import Callable
from typing import Protocol


class Cancellable(Protocol):
    """A callback that has been scheduled."""

    def cancel(self) -> None:
        """Prevent the callback from running; does nothing when it has already run."""


class Scheduler(Protocol):
    """Clock and queue of a node. All callbacks of a node run one at a time, on one thread."""

    def now_ms(self) -> int:
        """Return monotonic milliseconds, the only clock for protocol decisions."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch, for record timestamps and logs only."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` after the callbacks that are already queued."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable:
        """Run ``callback`` once, not before ``delay_ms`` have passed."""
