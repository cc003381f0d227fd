"""Who fetches, within which limits, and what one partition had for the reader."""

from paceline.model.errors import PacelineError
from paceline.model.replica_fetch import EpochEnd
from paceline.replication.fetch_session import FetchPosition


class Reader:
    """Who fetches: a follower by broker id and epoch, or a client, maybe with its rack."""

    __slots__ = ("broker_epoch", "rack", "replica_id", "wants_high_watermark")

    def __init__(
        self, replica_id: int | None, broker_epoch: int = -1, rack: str = "", wants_high_watermark: bool = False
    ) -> None:
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        self.rack = rack
        """A client that says where it is may be served by a follower (KIP-392)."""
        self.wants_high_watermark = wants_high_watermark
        """Whether a follower is to hear at once of a high watermark that moved."""


class FetchLimits:
    """How long to wait, and how much for."""

    __slots__ = ("max_bytes", "max_wait_ms", "min_bytes")

    def __init__(self, max_wait_ms: int, min_bytes: int, max_bytes: int) -> None:
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min(min_bytes, max_bytes)
        self.max_bytes = max_bytes


class PartitionRead:
    """What one partition had for its reader."""

    __slots__ = (
        "available",
        "batches",
        "diverging_epoch",
        "error",
        "high_watermark",
        "leader_epoch",
        "log_end_offset",
        "log_start_offset",
        "position",
        "preferred_replica",
        "settled",
        "to_added_replica",
    )

    def __init__(self, position: FetchPosition) -> None:
        self.position = position
        self.error: PacelineError | None = None
        self.leader_epoch = -1
        self.high_watermark = -1
        self.log_start_offset = -1
        self.log_end_offset = -1
        self.diverging_epoch: EpochEnd | None = None
        self.batches = b""
        self.preferred_replica: int | None = None
        """Where the client should read; nothing was read here then."""
        self.available = False
        """Whether there is data at the position, read or left out for want of room."""
        self.settled = True
        """Whether later fetches of the session need to look only after a mark."""
        self.to_added_replica = False
        """Whether the reader is a replica that a reassignment adds."""

    @property
    def ends_wait(self) -> bool:
        """Whether the answer must not wait."""
        return self.error is not None or self.diverging_epoch is not None or self.preferred_replica is not None
