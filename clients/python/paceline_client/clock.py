"""The clock of the client: linger, back-off and time-outs are measured with it, never with the wall clock."""

import time


def monotonic_ms() -> int:
    """Return the time in milliseconds; it never goes back."""
    return time.monotonic_ns() // 1_000_000
