"""`FetchState`: how far a follower has fetched one partition."""

from paceline.broker.fetcher.follower_log import FollowerLog
from paceline.broker.partition.partition import Partition
from paceline.log.partition_log import PartitionLog


class FetchState:
    """Fetch progress of one partition. A new leader epoch creates a new state."""

    __slots__ = (
        "delay_ms",
        "delayed",
        "fetch_offset",
        "follower_log",
        "lag",
        "last_fetched_epoch",
        "leader_epoch",
        "partition",
        "sent_log_start_offset",
        "sent_offset",
        "since_ms",
    )

    def __init__(self, partition: Partition, follower_log: FollowerLog, log: PartitionLog, now_ms: float) -> None:
        self.partition = partition
        self.follower_log = follower_log
        self.since_ms = now_ms
        """Time when fetching began, by the scheduler's clock."""
        self.leader_epoch = partition.leader_epoch
        self.fetch_offset = 0
        self.last_fetched_epoch: int | None = None
        self.lag: int | None = None
        """Committed records of the leader that this log lacks; None until the first response."""
        self.delayed = False
        self.delay_ms: float | None = None
        """Latest delay after a transient error; the next delay is twice as long."""
        self.sent_offset: int | None = None
        """Fetch offset in the latest request that named the partition; None before the first request."""
        self.sent_log_start_offset = -1
        self.take_position(log)

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
