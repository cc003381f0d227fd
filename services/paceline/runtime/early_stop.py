"""SIGTERM while a process is still importing itself; this imports next to nothing, so that it can be asked first.

As process 1 of a container nothing ends by a signal that it has not asked for. A service asks when its event loop
runs, which is a second after its start, or ten on a busy machine: a stop in that time would be lost, and come again as
SIGKILL when the container's grace period is over.
"""

import os
import signal
from types import FrameType


def end_at_stop_signal() -> None:
    """End the process at once at SIGTERM, until `lifecycle.on_stop_signals` knows better: there is nothing to stop."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
