"""Send commits in order, each after the response to the previous: concurrent calls may overtake each other."""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import grpc

from paceline.model.errors import PacelineError, RequestTimedOutError
from paceline_client.groups.committed import check_committed, commit, why_not_committed
from paceline_client.groups.coordinator import GroupCoordinator
from paceline_client.groups.values import CommitCallback, Offsets

COMMIT_TIMEOUT_S: Final = 5.0
"""Longest time from the call of `Committer.send` to the end of the commit."""


class Committer:
    """Commits of one member, in order."""

    def __init__(
        self, coordinator: GroupCoordinator, request_of: Callable[[Offsets], Any], on_news: Callable[[], None]
    ) -> None:
        """``request_of`` returns the request with the member id and generation at the time of sending."""
        self._coordinator = coordinator
        self._request_of = request_of
        self._on_news = on_news
        self._changed = threading.Condition()
        self._in_flight = False
        self._queue: deque[tuple[Offsets, CommitCallback, float]] = deque()
        """Commits to be sent, with the time at which they time out."""
        self._ended: deque[tuple[Offsets, CommitCallback, PacelineError | None]] = deque()
        """Commits whose callbacks have not run yet."""

    @property
    def is_busy(self) -> bool:
        """Whether a commit is in flight or queued."""
        return self._in_flight or bool(self._queue)

    @property
    def has_ended(self) -> bool:
        """Whether callbacks wait to be run."""
        return bool(self._ended)

    def call_back(self) -> None:
        """Run the waiting callbacks."""
        while self._ended:
            offsets, callback, error = self._ended.popleft()
            callback(offsets, error)

    def sync(self, offsets: Offsets, timeout_ms: float) -> None:
        """Commit after all earlier commits, and wait.

        Raises:
            CommitFailedError: the membership was lost.
            RequestTimedOutError: an earlier commit did not end in time, so these offsets were not sent.
            PacelineError: the coordinator refused, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        with self._changed:
            if not self._changed.wait_for(lambda: not self.is_busy, max(0.0, deadline - time.monotonic())):
                # The coordinator may still apply the earlier commit, and so replace these offsets by older offsets.
                raise _not_sent(timeout_ms / 1000)
        left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
        commit(self._coordinator, self._request_of(offsets), left_ms)

    def send(self, offsets: Offsets, callback: CommitCallback) -> None:
        """Commit without waiting."""
        with self._changed:
            self._queue.append((offsets, callback, time.monotonic() + COMMIT_TIMEOUT_S))
            if self._in_flight:
                return
            self._in_flight = True
        self._send_next()

    def _send_next(self) -> None:
        """Send the next queued commit; if it cannot be sent, end it with the error and try the commit after it."""
        more = True
        while more:
            with self._changed:
                offsets, callback, until_s = self._queue.popleft()
            try:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise _not_sent(COMMIT_TIMEOUT_S)
                stub = self._coordinator.stub(min(1.0, left_s))
                call = stub.CommitOffsets.future(self._request_of(offsets), timeout=left_s)
            except PacelineError as failure:
                more = self._end(offsets, callback, failure)
            else:
                call.add_done_callback(partial(self._answered, offsets, callback))
                return

    def _answered(self, offsets: Offsets, callback: CommitCallback, done: Any) -> None:
        if self._end(offsets, callback, self._failure_of(done)):
            self._send_next()

    def _failure_of(self, done: Any) -> PacelineError | None:
        if done.cancelled():
            return PacelineError("the commit was cancelled")
        failure = done.exception()
        if isinstance(failure, grpc.RpcError):
            return self._coordinator.failed(failure)
        try:
            check_committed(done.result())
        except PacelineError as error:
            return error
        return None

    def _end(self, offsets: Offsets, callback: CommitCallback, error: PacelineError | None) -> bool:
        """Queue the callback of a commit; return whether another commit is to be sent."""
        if error is not None:
            error = why_not_committed(self._coordinator.group_id, error)
        with self._changed:
            self._ended.append((offsets, callback, error))
            self._in_flight = bool(self._queue)
            more = self._in_flight
            self._changed.notify_all()
        self._on_news()
        return more


def _not_sent(waited_s: float) -> RequestTimedOutError:
    """Return the error of a commit that was not sent because earlier commits took too long."""
    error = RequestTimedOutError(f"earlier commits took longer than {waited_s:g} s; this one was not sent")
    error.definite = True
    return error
