"""Handle SIGTERM while a process still imports its modules; this module imports almost nothing, to be ready first.

For process 1 of a container the kernel ignores a SIGTERM without a handler. A service installs its handlers when its
event loop runs, which is a second after its start, or ten on a busy machine: a SIGTERM before that would be ignored,
and the container would be killed with SIGKILL after its grace period.
"""

import os
import signal
from types import FrameType


def end_at_stop_signal() -> None:
    """End the process at SIGTERM until `lifecycle.on_stop_signals` replaces the handler: nothing is open yet."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
