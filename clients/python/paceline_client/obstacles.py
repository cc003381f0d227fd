"""What keeps a partition from being read: when it is tried again, and when `poll` is told."""

from collections.abc import Callable
from typing import Final

from paceline.model.errors import LeaderNotAvailableError, PacelineError, UnknownServerError
from paceline_client.clock import monotonic_ms
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.subscription import PartitionState

BACKOFF_MS: Final = 50
_LONGEST_BACKOFF_MS: Final = 500
"""Pause between attempts at a partition that could not be read for some seconds."""
LONGEST_SLEEP_MS: Final = 1_000
"""Whoever has news tells; who waits for it looks after so long all the same."""


class Obstacles:
    """Notes them in the states of partitions; the consumer holds its lock around every call."""

    def __init__(self, metadata: MetadataRefresher, limit_ms: int, on_news: Callable[[], None]) -> None:
        """``limit_ms`` is how long a partition may be out of reach before ``on_news`` wakes who polls."""
        self._metadata = metadata
        self._limit_ms = limit_ms
        self._on_news = on_news

    def hinder(self, state: PartitionState, error: PacelineError) -> None:
        """The partition cannot be read now; poll is told when waiting has not helped for long."""
        state.hindered(error, monotonic_ms(), self._limit_ms)
        if state.error is not None:
            self._on_news()

    def call_failed(self, state: PartitionState, error: PacelineError) -> None:
        """A call about the partition failed as a whole; poll is told at once of what waiting does not cure."""
        if error.retriable or isinstance(error, UnknownServerError):
            self.hinder(state, error)
        else:
            state.error = error

    def leaderless(self, state: PartitionState, now_ms: int) -> int:
        """Ask for its leader; return when to look again, in ms."""
        if state.absent:
            return LONGEST_SLEEP_MS
        self._metadata.request()
        tp = state.topic_partition
        known = self._metadata.partition(tp)
        if known is None:
            why = f"there is no {tp} any more"
        elif known.leader is None:
            why = f"{tp} has no leader"
        else:
            why = f"broker {known.leader}, which leads {tp}, is not alive"
        error = self._metadata.last_error or LeaderNotAvailableError(why)
        state.hindered(error, now_ms, self._limit_ms)
        if state.error is not None:
            self._on_news()
        return BACKOFF_MS

    def try_later(self, state: PartitionState) -> None:
        """Leave a partition alone for a quarter of the time for which it could not be read, within limits."""
        now_ms = monotonic_ms()
        hindered_ms = 0 if state.hindered_since_ms is None else now_ms - state.hindered_since_ms
        state.retry_at_ms = now_ms + min(max(BACKOFF_MS, hindered_ms // 4), _LONGEST_BACKOFF_MS)
