"""Work that a thread of a synchronous server hands to the event loop."""

import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

from paceline.model.errors import RequestTimedOutError

T = TypeVar("T")
Post = Callable[[Callable[[], None]], None]
"""Runs a callback on the event loop; callable from any thread."""


def run_on_loop(post: Post, work: Callable[[], T], timeout_s: float) -> T:
    """Wait until ``work`` has run on the event loop, and return its result or raise its exception.

    Raises:
        RequestTimedOutError: the loop has not run it in time.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def on_loop() -> None:
        # The caller has timed out and retries: doing the work here too would delay all waiting callers.
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work())
        except Exception as failure:
            outcome.set_exception(failure)

    post(on_loop)
    try:
        return outcome.result(timeout_s)
    except concurrent.futures.TimeoutError:
        outcome.cancel()
        raise RequestTimedOutError("the event loop has not taken the request in time") from None
