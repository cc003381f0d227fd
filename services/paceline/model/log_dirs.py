"""What lies in a broker's log directories, as plain values (KIP-113; wire form: `paceline.v1` AdminService)."""

from dataclasses import dataclass

from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    """One replica in a log directory."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    """Records its leader had committed, when it last said so, that are not here yet; 0 for a leader."""
    is_future: bool = False


@dataclass(frozen=True, slots=True)
class LogDirView:
    """One log directory."""

    path: str
    error: PacelineError | None = None
    """Why nothing is known of it: it has failed."""
    replicas: tuple[ReplicaOnDisk, ...] = ()
    """By topic and partition."""


@dataclass(frozen=True, slots=True)
class LogDirWish:
    """In which directory of its broker a replica shall lie."""

    topic_partition: TopicPartition
    path: str
