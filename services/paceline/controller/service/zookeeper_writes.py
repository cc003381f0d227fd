"""Wait for a write to ZooKeeper that a caller has requested, and audit it."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from paceline.coordination.errors import SessionLostError
from paceline.model.errors import RequestTimedOutError
from paceline.rpc.deadlines import wait_within_deadline

_TIMEOUT_MS: Final = 30_000

T = TypeVar("T")


async def written(
    begin: Callable[[Callable[[T | Exception], None]], None], audit: Callable[[T | Exception], None], context: Any
) -> T:
    """Begin a write, and return its result; ``audit`` gets the result or the error in any case.

    Raises:
        PacelineError: the write was refused.
        RequestTimedOutError: ZooKeeper has not answered; the change may still be made.
    """
    done: asyncio.Future[T | Exception] = asyncio.get_running_loop().create_future()

    def answered(answer: T | Exception) -> None:
        # Also when the caller has disconnected meanwhile, or waits no longer.
        audit(answer)
        if not done.done():
            done.set_result(answer)

    begin(answered)
    try:
        answer = await asyncio.wait_for(done, wait_within_deadline(_TIMEOUT_MS, context) / 1000)
    except TimeoutError:
        raise RequestTimedOutError("ZooKeeper has not answered in time; the change may still be made") from None
    if isinstance(answer, SessionLostError):
        raise RequestTimedOutError(f"{answer}; the change may have been made") from None
    if isinstance(answer, Exception):
        raise answer
    return answer
