"""`FetchState`: where the fetching of one partition stands."""

from paceline.broker.partition.partition import Partition
from paceline.log.partition_log import PartitionLog


class FetchState:
    """Where the fetching of one partition stands. A new leader epoch makes a new state."""

    __slots__ = (
        "delay_ms",
        "delayed",
        "fetch_offset",
        "lag",
        "last_fetched_epoch",
        "leader_epoch",
        "partition",
        "sent_log_start_offset",
        "sent_offset",
        "since_ms",
    )

    def __init__(self, partition: Partition, log: PartitionLog, now_ms: float) -> None:
        self.partition = partition
        self.since_ms = now_ms
        """When fetching began, on the scheduler's clock."""
        self.leader_epoch = partition.leader_epoch
        self.fetch_offset = 0
        self.last_fetched_epoch: int | None = None
        self.lag: int | None = None
        """Records the leader has committed beyond this log; None until the first answer."""
        self.delayed = False
        self.delay_ms: float | None = None
        """Latest delay after an error that should pass by itself; the next one is twice as long."""
        self.sent_offset: int | None = None
        """Offset in the latest request that names the partition; None before that."""
        self.sent_log_start_offset = -1
        self.take_position(log)

    @property
    def is_in_sync(self) -> bool:
        """Whether it holds all that is committed; before the first answer, whether its leader's epoch began so."""
        return self.partition.in_sync_at_epoch if self.lag is None else self.lag <= 0

    def take_position(self, log: PartitionLog) -> None:
        """Fetch from the log's end next."""
        self.fetch_offset = log.log_end_offset
        self.last_fetched_epoch = log.latest_epoch
