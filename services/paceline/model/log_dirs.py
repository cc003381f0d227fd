"""Contents of a broker's log directories, as plain values (KIP-113; wire form: `paceline.v1` AdminService)."""

from dataclasses import dataclass

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    """One replica in a log directory."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    """Records below the leader's last known high watermark that this replica lacks; 0 for a leader."""
    is_future: bool = False


@dataclass(frozen=True, slots=True)
class LogDirSpace:
    """Space of the disk that holds a log directory, when the broker last measured it."""

    free_bytes: int
    total_bytes: int
    min_free_bytes: int
    """Produce requests are refused below so many free bytes."""
    reserve_bytes: int
    """Followers pause below so many free bytes."""
    room: int
    """Number of a ``LogDirRoom`` of ``paceline.v1``."""


@dataclass(frozen=True, slots=True)
class LogDirView:
    """A log directory with its replicas, or with the error that took it offline."""

    path: str
    error: PacelineError | None = None
    """Error of a failed directory, whose contents are unknown."""
    replicas: tuple[ReplicaOnDisk, ...] = ()
    """Sorted by topic and partition."""
    space: LogDirSpace | None = None
    """None for a failed directory, or while the space is not known."""


@dataclass(frozen=True, slots=True)
class ReplicaLogDir:
    """Requested log directory of a replica."""

    topic_partition: TopicPartition
    path: str
