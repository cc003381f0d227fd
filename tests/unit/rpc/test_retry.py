"""Retries end, pause as configured, and report the last cause."""

import asyncio
import random
import threading

import pytest

from paceline.model.errors import (
    LeaderNotAvailableError,
    MessageTooLargeError,
    NotControllerError,
    RequestTimedOutError,
)
from paceline.rpc.retry import RetryPolicy, call_with_retry, call_with_retry_async, wait_until

FAST = RetryPolicy(initial_backoff_ms=0, max_backoff_ms=0, deadline_ms=None, max_attempts=4)


class Scripted:
    """Raises or returns the entries of a script, one per call."""

    def __init__(self, *script: object) -> None:
        self.script = list(script)
        self.budgets: list[float | None] = []

    def __call__(self, seconds_left: float | None) -> object:
        self.budgets.append(seconds_left)
        step = self.script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


def test_a_call_that_recovers_returns_its_result() -> None:
    call = Scripted(LeaderNotAvailableError("1"), LeaderNotAvailableError("2"), "done")
    assert call_with_retry(FAST, call) == "done"
    assert call.budgets == [None, None, None]


def test_an_error_that_is_not_retriable_ends_at_once() -> None:
    call = Scripted(MessageTooLargeError("no"), "never asked")
    with pytest.raises(MessageTooLargeError, match="no"):
        call_with_retry(FAST, call)
    assert call.script == ["never asked"]


def test_the_attempts_are_counted_and_the_last_cause_is_raised() -> None:
    call = Scripted(*(LeaderNotAvailableError(str(number)) for number in range(1, 9)))
    with pytest.raises(LeaderNotAvailableError, match="4"):
        call_with_retry(FAST, call)
    assert len(call.script) == 4


def test_the_final_error_is_the_last_cause_and_not_a_timeout() -> None:
    call = Scripted(NotControllerError("not me"), *(RequestTimedOutError("late") for _ in range(3)))
    with pytest.raises(NotControllerError, match="not me"):
        call_with_retry(FAST, call)


def test_a_retry_whose_attempts_all_timed_out_raises_a_timeout() -> None:
    with pytest.raises(RequestTimedOutError, match="late"):
        call_with_retry(FAST, Scripted(*(RequestTimedOutError("late") for _ in range(4))))


def test_a_retry_ends_when_its_owner_is_closed() -> None:
    over = threading.Event()
    call = Scripted(*(LeaderNotAvailableError(str(number)) for number in range(9)))

    def note(failure: BaseException, pause: float) -> None:
        if str(failure) == "1":
            over.set()

    with pytest.raises(LeaderNotAvailableError, match="2"):
        call_with_retry(
            RetryPolicy(initial_backoff_ms=0, max_backoff_ms=0), call, is_over=over.is_set, on_retry=note, wake=over
        )


def test_the_deadline_bounds_all_attempts_and_each_call_gets_the_remaining_time() -> None:
    policy = RetryPolicy(initial_backoff_ms=20, max_backoff_ms=20, jitter=0, deadline_ms=100)
    call = Scripted(*(LeaderNotAvailableError("down") for _ in range(50)))
    with pytest.raises(LeaderNotAvailableError, match="down"):
        call_with_retry(policy, call)
    budgets = [budget for budget in call.budgets if budget is not None]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[0] <= 0.1
    assert 2 <= len(budgets) <= 7


def test_pauses_grow_to_the_maximum_and_jitter_stays_within_its_bounds() -> None:
    policy = RetryPolicy(initial_backoff_ms=100, max_backoff_ms=1_000, jitter=0.2)
    rng = random.Random(7)
    for attempt, plain in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1_000), (5_000, 1_000)]:
        for _ in range(50):
            assert plain * 0.8 <= policy.backoff_ms(attempt, rng) <= plain * 1.2


def test_a_policy_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="needs an end"):
        RetryPolicy(deadline_ms=None)


async def test_coroutines_are_retried_by_the_same_rules() -> None:
    call = Scripted(LeaderNotAvailableError("1"), "done")

    async def once(seconds_left: float | None) -> object:
        await asyncio.sleep(0)
        return call(seconds_left)

    assert await call_with_retry_async(FAST, once) == "done"

    failing = Scripted(NotControllerError("why"), *(RequestTimedOutError("late") for _ in range(3)))

    async def fail(seconds_left: float | None) -> object:
        return failing(seconds_left)

    with pytest.raises(NotControllerError, match="why"):
        await call_with_retry_async(FAST, fail)


async def test_a_wait_ends_when_its_condition_is_true_and_when_its_time_is_over() -> None:
    looks = iter([False, False, True])
    assert await wait_until(lambda: next(looks), 60.0, poll_s=0.001)
    assert not await wait_until(lambda: False, 0.01, poll_s=0.001)


async def test_a_wait_raises_what_its_condition_raises() -> None:
    def fails() -> bool:
        raise NotControllerError("why")

    with pytest.raises(NotControllerError, match="why"):
        await wait_until(fails, 60.0)
