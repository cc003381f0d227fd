"""Monotonic clock for linger, back-off and timeouts; never the wall clock."""

import time


def monotonic_ms() -> int:
    """Return the time in milliseconds; it never goes back."""
    return time.monotonic_ns() // 1_000_000
