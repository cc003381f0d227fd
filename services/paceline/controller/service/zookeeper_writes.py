"""Wait for ZooKeeper on behalf of a caller, and audit the caller's writes."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
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
    with zookeeper_errors():
        answer = await asyncio.wait_for(done, zookeeper_timeout_s(context))
        if isinstance(answer, Exception):
            raise answer
        return answer


def zookeeper_timeout_s(context: Any) -> float:
    """Return how long the call waits for ZooKeeper."""
    return wait_within_deadline(_TIMEOUT_MS, context) / 1000


@contextlib.contextmanager
def zookeeper_errors() -> Iterator[None]:
    """Raise RequestTimedOutError if ZooKeeper has not answered in time, or its session has ended."""
    try:
        yield
    except TimeoutError:
        raise RequestTimedOutError("ZooKeeper has not answered in time; a change may still be made") from None
    except SessionLostError as error:
        raise RequestTimedOutError(f"{error}; a change may have been made") from None
