"""Retry calls with exponential back-off, full jitter and a deadline; the final error is the last that names a cause.

The services and the Python client use it, so it imports only grpc, tenacity, `model` and `rpc.errors`. Retries always
end: at a deadline, after a number of attempts, or when the caller no longer needs the result (``is_over``).
"""

import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import tenacity
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from paceline.model.backoff import Backoff
from paceline.model.errors import PacelineError, RequestTimedOutError
from paceline.rpc.errors import is_retriable, is_timeout, retry_delay_ms

T = TypeVar("T")

_SMALLEST_BUDGET_MS = 1.0


@dataclass(frozen=True, slots=True)
class RetryPolicy(Backoff):
    """Back-off and limits of a retry: a deadline, a number of attempts, or both."""

    deadline_ms: int | None = 30_000
    """Time for all attempts and pauses together; None when only ``max_attempts`` limits the retry."""
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        Backoff.__post_init__(self)
        if self.deadline_ms is None and self.max_attempts is None:
            raise ValueError("a retry needs an end: a deadline or a number of attempts")


def _asked_pause_ms(failure: BaseException | None) -> int:
    """Return the shortest pause that the server requested with a failure, 0 when it requested none."""
    if isinstance(failure, grpc.RpcError):
        return retry_delay_ms(failure) or 0
    return failure.retry_delay_ms if isinstance(failure, PacelineError) else 0


class _Backoff(wait_base):
    def __init__(self, policy: RetryPolicy, rng: random.Random, deadline: float | None) -> None:
        self._policy, self._rng, self._deadline = policy, rng, deadline

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        failure = retry_state.outcome.exception() if retry_state.outcome is not None else None
        pause = max(self._policy.backoff_ms(retry_state.attempt_number, self._rng), _asked_pause_ms(failure)) / 1000
        return pause if self._deadline is None else max(0.0, min(pause, self._deadline - time.monotonic()))


class _StopWhen(stop_base):
    """Stops at the deadline, after the last attempt, or when ``is_over`` returns True."""

    def __init__(self, policy: RetryPolicy, deadline: float | None, is_over: Callable[[], bool]) -> None:
        self._policy, self._deadline, self._is_over = policy, deadline, is_over

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        attempts = self._policy.max_attempts
        if attempts is not None and retry_state.attempt_number >= attempts:
            return True
        return self._is_over() or (self._deadline is not None and time.monotonic() >= self._deadline)


class _Causes:
    """Keeps the last failure that names a cause; an expired deadline does not name a cause."""

    def __init__(self) -> None:
        self.real: BaseException | None = None

    def note(self, retry_state: tenacity.RetryCallState) -> None:
        failure = retry_state.outcome.exception() if retry_state.outcome is not None else None
        if failure is not None and not is_timeout(failure):
            self.real = failure

    def give_up_with_last_cause(self, retry_state: tenacity.RetryCallState) -> Any:
        """Raise the last failure that names a cause, or the last expired deadline if no failure named a cause.

        Source: docs/protocol/clients.md#retries-end-with-the-cause.
        """
        last = retry_state.outcome.exception() if retry_state.outcome is not None else None
        self.note(retry_state)
        cause = self.real or last or RequestTimedOutError("nothing was tried before the deadline")
        if last is not None and last is not cause:
            raise cause from last
        raise cause


def call_with_retry(
    policy: RetryPolicy,
    call: Callable[[float | None], T],
    *,
    should_retry: Callable[[BaseException], bool] = is_retriable,
    is_over: Callable[[], bool] = lambda: False,
    on_retry: Callable[[BaseException, float], None] | None = None,
    wake: threading.Event | None = None,
) -> T:
    """Repeat ``call`` until it succeeds, fails with an error that is not retried, or the policy ends the retry.

    Args:
        policy: back-off and limits.
        call: receives the seconds left until the deadline (None without a deadline), to use as the RPC's timeout.
        should_retry: whether to retry after a failure.
        is_over: returns True when the result is no longer needed; called after every failure.
        on_retry: called with the failure and the pause in seconds before each retry.
        wake: event that ends a pause early; set it after ``is_over`` starts to return True.

    Raises:
        Exception: the last failure that names a cause.
    """
    deadline, options = _options(policy, should_retry, is_over, on_retry)
    if wake is not None:
        options["sleep"] = tenacity.sleep_using_event(wake)
    result: T = tenacity.Retrying(**options)(lambda: call(_seconds_left(deadline)))
    return result


async def wait_until(condition: Callable[[], bool], timeout_s: float, *, poll_s: float = 0.005) -> bool:
    """Check a condition every ``poll_s`` until it is true or ``timeout_s`` has passed; return whether it is true."""
    return await tenacity.AsyncRetrying(
        retry=tenacity.retry_if_result(lambda found: not found),
        wait=tenacity.wait_fixed(poll_s),
        stop=tenacity.stop_after_delay(timeout_s),
        retry_error_callback=lambda state: bool(state.outcome and state.outcome.result()),
    )(_once, condition)


async def _once(condition: Callable[[], bool]) -> bool:
    return condition()


async def call_with_retry_async(
    policy: RetryPolicy,
    call: Callable[[float | None], Awaitable[T]],
    *,
    should_retry: Callable[[BaseException], bool] = is_retriable,
    is_over: Callable[[], bool] = lambda: False,
    on_retry: Callable[[BaseException, float], None] | None = None,
) -> T:
    """Do the same as `call_with_retry` for a coroutine function."""
    deadline, options = _options(policy, should_retry, is_over, on_retry)

    async def once() -> T:
        return await call(_seconds_left(deadline))

    result: T = await tenacity.AsyncRetrying(**options)(once)
    return result


def _options(
    policy: RetryPolicy,
    should_retry: Callable[[BaseException], bool],
    is_over: Callable[[], bool],
    on_retry: Callable[[BaseException, float], None] | None,
) -> tuple[float | None, dict[str, Any]]:
    deadline = None if policy.deadline_ms is None else time.monotonic() + policy.deadline_ms / 1000
    causes = _Causes()

    def before_sleep(retry_state: tenacity.RetryCallState) -> None:
        causes.note(retry_state)
        failure = retry_state.outcome.exception() if retry_state.outcome is not None else None
        if on_retry is not None and failure is not None:
            on_retry(failure, retry_state.upcoming_sleep)

    return (
        deadline,
        {
            "retry": tenacity.retry_if_exception(should_retry),
            "wait": _Backoff(policy, random.Random(), deadline),
            "stop": _StopWhen(policy, deadline, is_over),
            "before_sleep": before_sleep,
            "retry_error_callback": causes.give_up_with_last_cause,
        },
    )


def _seconds_left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    return max(deadline - time.monotonic(), _SMALLEST_BUDGET_MS / 1000)
