"""How long a server may wait for a call: as long as the request says, and never past the deadline of the RPC."""

from typing import Any, Final

_MARGIN_MS: Final = 100
"""Left for the answer to reach the caller, or a quarter of the time when that is less."""


def wait_within_deadline(wait_ms: int, context: Any) -> int:
    """Return the wait in milliseconds, cut so that the answer arrives before the deadline of a unary call.

    A request on a stream has no deadline of its own, so its wait stays as it is.
    """
    time_remaining = getattr(context, "time_remaining", None)
    left_s = None if time_remaining is None else time_remaining()
    if left_s is None:
        return wait_ms
    left_ms = max(0.0, left_s * 1000)
    return min(wait_ms, int(left_ms - min(_MARGIN_MS, left_ms / 4)))
