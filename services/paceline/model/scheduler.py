"""Interfaces to the clock and the event loop, implemented by the services and by the simulator; periodic timers."""

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


class Periodic:
    """Runs an action at intervals; each run schedules the next run before the action."""

    def __init__(self, scheduler: Scheduler, interval_ms: float, action: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._interval_ms = interval_ms
        self._action = action
        self._timer: Cancellable | None = None

    def start(self, delay_ms: float | None = None) -> None:
        """Run the action after ``delay_ms``, by default one interval; do nothing if this was called before."""
        if self._timer is None:
            self._timer = self._scheduler.call_later(self._interval_ms if delay_ms is None else delay_ms, self._run)

    def stop(self) -> None:
        """Run the action no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        self._timer = self._scheduler.call_later(self._interval_ms, self._run)
        self._action()
