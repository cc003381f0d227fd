"""The ports through which cores meet time. The services and the simulator each implement them once."""

from collections.abc import Callable
from typing import Protocol


class Cancellable(Protocol):
    """A callback that has been scheduled."""

    def cancel(self) -> None:
        """Make sure the callback does not run; harmless when it already has."""


class Scheduler(Protocol):
    """The clock and the queue of one node. All callbacks of a node run one at a time, on one thread."""

    def now_ms(self) -> int:
        """Return monotonic milliseconds; the only clock protocol decisions may use."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch; for record timestamps and logs only."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` after what is queued already."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable:
        """Run ``callback`` once, not before ``delay_ms`` have passed."""
