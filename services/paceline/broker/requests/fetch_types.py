"""The reader of a fetch, its limits, and the result of a partition."""

from dataclasses import dataclass

from paceline.model.errors import PacelineError
from paceline.model.fetch_position import FetchPosition
from paceline.model.replica_fetch import EpochEnd


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


@dataclass(slots=True, eq=False)
class PartitionRead:
    """Result of a partition for its reader."""

    position: FetchPosition
    error: PacelineError | None = None
    leader_epoch: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    diverging_epoch: EpochEnd | None = None
    batches: bytes = b""
    preferred_replica: int | None = None
    """Replica from which the client should read; the result then has no records."""
    available: bool = False
    """Whether there is data at the position, returned or omitted for lack of space."""
    settled: bool = True
    """Whether later fetches of the session may skip the partition until it is marked (`FetchSession.mark`)."""
    to_added_replica: bool = False
    """Whether the reader is a replica added by a reassignment."""

    @property
    def ends_wait(self) -> bool:
        """Whether the response must not wait."""
        return self.error is not None or self.diverging_epoch is not None or self.preferred_replica is not None
