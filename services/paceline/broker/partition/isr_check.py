"""`IsrCheck`: remove lagging followers from the ISR, twice per ``replica.lag.time.max.ms``.

Therefore a follower that stops fetching leaves the ISR after 1.0 to 1.5 times that time.
Source: docs/protocol/replication.md#leaving-the-isr.
"""

from typing import TYPE_CHECKING, Final

from paceline.broker.partition.partition import Partition
from paceline.model.scheduler import Cancellable

if TYPE_CHECKING:
    from paceline.broker.partition.replica_manager import ReplicaManager

_CHECKS_AT_ONCE: Final = 500


class IsrCheck:
    """Checks the led partitions periodically, in slices: checking thousands at once would delay every request."""

    def __init__(self, manager: "ReplicaManager") -> None:
        self._manager = manager
        self._period_ms = max(1, manager.config.replica_lag_time_max_ms // 2)
        self._timer: Cancellable | None = None
        self._stopped = False

    def start(self) -> None:
        """Check after one period, then periodically."""
        self._timer = self._manager.scheduler.call_later(self._period_ms, self._check)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        if self._stopped:
            return
        self.start()
        self._manager.fetches.sessions.close_silent(self._manager.now_ms())
        self._manager.damaged_logs.retry_pending()
        self._check_slice(self._manager.hosted.led())

    def _check_slice(self, partitions: list[Partition]) -> None:
        for partition in partitions[:_CHECKS_AT_ONCE]:
            if partition.is_leader:
                self._manager.isr_updates.maybe_shrink(partition)
                # A follower outside the ISR that has stopped fetching no longer delays the high watermark.
                partition.advance_high_watermark()
        self._manager.deliver_changes()
        rest = partitions[_CHECKS_AT_ONCE:]
        if rest and not self._stopped:
            self._manager.scheduler.call_soon(lambda: self._check_slice(rest))
