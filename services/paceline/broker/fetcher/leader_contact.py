"""Whether a leader answers a fetcher. Source: docs/protocol/replication.md#leaders-that-do-not-answer."""

import logging
from typing import Final

from paceline.model.control import LiveBroker
from paceline.model.settings import BrokerConfig

LOG = logging.getLogger(__name__)
WARNING_INTERVAL_MS: Final = 60_000


class LeaderContact:
    """The time for which a leader has not answered, and the warnings about it."""

    def __init__(self, leader: LiveBroker, config: BrokerConfig) -> None:
        endpoint = leader.endpoint("REPLICATION")
        self._names = (leader.broker_id, "none" if endpoint is None else endpoint.address)
        self._limit_ms = max(config.replica_lag_time_max_ms // 3, 2 * config.replica_fetch_wait_max_ms)
        self._next_warning_ms = 0
        self._was_warned = False
        self.unanswered_since_ms: int | None = None
        self.error = ""
        """Error of the latest fetch, empty after an answer."""

    @property
    def address(self) -> str:
        """Address that is fetched from, ``none`` when the leader has none."""
        return self._names[1]

    def unanswered_ms(self, now_ms: int) -> int:
        """Return the time since the first fetch after the latest answer, 0 without such a fetch."""
        return 0 if self.unanswered_since_ms is None else now_ms - self.unanswered_since_ms

    def is_lost(self, now_ms: int) -> bool:
        """Whether the controller should know that the leader does not answer, before its ISRs shrink to itself."""
        return self.unanswered_ms(now_ms) >= self._limit_ms

    def ended(self, error: Exception | None, now_ms: int) -> str | None:
        """Record the end of a fetch, with None after an answer; return the cause when a warning was logged."""
        self.error = "" if error is None else str(error)
        if error is None:
            if self._was_warned:
                LOG.warning("leader answers again: leader=%d address=%s", *self._names)
            self.unanswered_since_ms, self._was_warned = None, False
        elif now_ms >= self._next_warning_ms:
            self._next_warning_ms, self._was_warned = now_ms + WARNING_INTERVAL_MS, True
            LOG.warning("leader does not answer fetches: leader=%d address=%s cause=%r", *self._names, str(error))
            return f"{self._names[1]} does not answer fetches: {error}"
        return None
