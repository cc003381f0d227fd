"""The reader of a fetch, its limits, and the result of a partition."""

from dataclasses import dataclass

from paceline.model.errors import PacelineError
from paceline.model.replica_fetch import EpochEnd
from paceline.replication.fetch_session import FetchPosition


@dataclass(slots=True, eq=False)
class Reader:
    """The reader: a follower with broker id and epoch, or a client, optionally with its rack."""

    replica_id: int | None
    broker_epoch: int = -1
    rack: str = ""
    """A client with a rack may be served by a follower (KIP-392)."""
    wants_high_watermark: bool = False
    """Whether to answer a follower as soon as a high watermark has advanced."""


class FetchLimits:
    """Longest wait, and minimum and maximum bytes."""

    __slots__ = ("max_bytes", "max_wait_ms", "min_bytes")

    def __init__(self, max_wait_ms: int, min_bytes: int, max_bytes: int) -> None:
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min(min_bytes, max_bytes)
        self.max_bytes = max_bytes


class PartitionRead:
    """Result of a partition for its reader."""

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
        """Replica from which the client should read; the result then has no records."""
        self.available = False
        """Whether there is data at the position, returned or omitted for lack of space."""
        self.settled = True
        """Whether later fetches of the session may skip the partition until it is marked (`FetchSession.mark`)."""
        self.to_added_replica = False
        """Whether the reader is a replica added by a reassignment."""

    @property
    def ends_wait(self) -> bool:
        """Whether the response must not wait."""
        return self.error is not None or self.diverging_epoch is not None or self.preferred_replica is not None
