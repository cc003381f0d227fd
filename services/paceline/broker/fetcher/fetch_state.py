"""`FetchState`: how far a follower has fetched one partition."""

from dataclasses import dataclass

from paceline.broker.fetcher.follower_log import FollowerLog
from paceline.broker.partition.partition import Partition
from paceline.log.partition_log import PartitionLog


@dataclass(slots=True, eq=False)
class FetchState:
    """Fetch progress of one partition. A new leader epoch creates a new state."""

    partition: Partition
    follower_log: FollowerLog
    since_ms: float
    """Time when fetching began, by the scheduler's clock."""
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int | None
    lag: int | None = None
    """Committed records of the leader that this log lacks; None until the first response."""
    delayed: bool = False
    delay_ms: float | None = None
    """Latest delay after a transient error; the next delay is twice as long."""
    sent_offset: int | None = None
    """Fetch offset in the latest request that named the partition; None before the first request."""
    sent_log_start_offset: int = -1

    @property
    def is_in_sync(self) -> bool:
        """Whether the log has all committed records.

        Before the first response: whether the replica was in the ISR at the start of the leader epoch.
        """
        return self.partition.in_sync_at_epoch if self.lag is None else self.lag <= 0

    def take_position(self, log: PartitionLog) -> None:
        """Let the next fetch begin at the end of the log."""
        self.fetch_offset = log.log_end_offset
        self.last_fetched_epoch = log.latest_epoch
