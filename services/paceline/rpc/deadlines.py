"""Limit a request's wait to the deadline of its RPC."""

from typing import Any, Final

_MARGIN_MS: Final = 100
"""Time reserved for the response to reach the caller; a quarter of the time left if that is less."""


def wait_within_deadline(wait_ms: int, context: Any) -> int:
    """Return ``wait_ms``, shortened so that the response arrives before the deadline of a unary call.

    A request on a stream has no deadline of its own, so its wait is not shortened.
    """
    time_remaining = getattr(context, "time_remaining", None)
    left_s = None if time_remaining is None else time_remaining()
    if left_s is None:
        return wait_ms
    left_ms = max(0.0, left_s * 1000)
    return min(wait_ms, int(left_ms - min(_MARGIN_MS, left_ms / 4)))
