"""Wait for conditions, never for a fixed time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout_s: float, what: str, pause_s: float = 0.1) -> T:
    """Return the first true result of the condition; fail the test when there is none before the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; the last answer was {result!r}")
        time.sleep(pause_s)


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Give the event loop turns until the condition is true; fail the test when it is not before the deadline."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)
