"""Handle partitions that cannot be read: schedule retries, and decide when `poll` raises an error."""

from collections.abc import Callable
from typing import Final

from paceline.model.errors import LeaderNotAvailableError, PacelineError, UnknownServerError
from paceline_client.clock import monotonic_ms
from paceline_client.metadata_refresher import MetadataRefresher
from paceline_client.subscription import PartitionState

BACKOFF_MS: Final = 50
_LONGEST_BACKOFF_MS: Final = 500
"""Longest pause between attempts for a partition that could not be read for some seconds."""
LONGEST_SLEEP_MS: Final = 1_000
"""Longest sleep; normally a notification ends it earlier."""


class PartitionErrors:
    """Records read failures in the states of partitions; the caller holds the consumer's lock."""

    def __init__(self, metadata: MetadataRefresher, limit_ms: int, on_news: Callable[[], None]) -> None:
        """``limit_ms`` is the time for which a partition may be unreachable before ``on_news`` wakes the poller."""
        self._metadata = metadata
        self._limit_ms = limit_ms
        self._on_news = on_news

    def record(self, state: PartitionState, error: PacelineError) -> None:
        """Record that the partition cannot be read; poll raises the error when this lasts longer than the limit."""
        state.read_failed(error, monotonic_ms(), self._limit_ms)
        if state.error is not None:
            self._on_news()

    def call_failed(self, state: PartitionState, error: PacelineError) -> None:
        """Handle a call that failed as a whole; `poll` raises the error at once unless a retry may succeed."""
        if error.retriable or isinstance(error, UnknownServerError):
            self.record(state, error)
        else:
            state.error = error

    def leaderless(self, state: PartitionState, now_ms: int) -> int:
        """Request new metadata for a partition without a live leader; return the time until the next check, in ms."""
        if state.absent:
            return LONGEST_SLEEP_MS
        self._metadata.request()
        tp = state.topic_partition
        known = self._metadata.cluster.partition(tp)
        if known is None:
            why = f"{tp} no longer exists"
        elif known.leader is None:
            why = f"{tp} has no leader"
        else:
            why = f"broker {known.leader}, which leads {tp}, is not alive"
        error = self._metadata.last_error or LeaderNotAvailableError(why)
        state.read_failed(error, now_ms, self._limit_ms)
        if state.error is not None:
            self._on_news()
        return BACKOFF_MS

    def try_later(self, state: PartitionState) -> None:
        """Delay the next attempt by a quarter of the time for which the partition could not be read, within limits."""
        now_ms = monotonic_ms()
        failing_ms = 0 if state.failing_since_ms is None else now_ms - state.failing_since_ms
        state.retry_at_ms = now_ms + min(max(BACKOFF_MS, failing_ms // 4), _LONGEST_BACKOFF_MS)
