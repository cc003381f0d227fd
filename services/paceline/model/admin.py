"""Values of administration that clients and servers share: parts of requests, results, descriptions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.model.assignment import ReplicaAssignment
from paceline.model.errors import PacelineError
from paceline.model.identifiers import TopicPartition


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; None means the controller's default."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    assignments: Sequence[Sequence[int]] = ()
    """Manual placement: broker ids per partition, the preferred leader first. The other two numbers must be None."""
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Result for one topic of a request; ``error`` is None on success."""

    name: str
    error: PacelineError | None = None
    topic_id: str = ""
    assignments: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """New number of partitions of a topic."""

    topic: str
    count: int
    """New total, including the existing partitions."""
    assignments: Sequence[Sequence[int]] = ()
    """Manual placement of the new partitions: broker ids, the preferred leader first. Empty: automatic."""


@dataclass(frozen=True, slots=True)
class NewPartitionsResult:
    """Result for one topic; ``error`` is None on success."""

    topic: str
    error: PacelineError | None = None
    first_partition: int = 0
    assignments: tuple[tuple[int, ...], ...] = ()
    """Replicas of the new partitions, lowest index first."""


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    """Result for one partition; ``error`` is None when the reassignment was accepted."""

    topic_partition: TopicPartition
    error: PacelineError | None = None


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """Result for one partition; ``error`` is None on success."""

    topic_partition: TopicPartition
    error: PacelineError | None = None
    leader: int | None = None
    """The elected leader, or with ``validate_only`` the leader that would be elected."""
    leader_epoch: int | None = None
    """None when no leader was elected, and for ``validate_only``."""
    unclean: bool = False
    """Whether the leader was not in the ISR: records may be lost."""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition; ``leader`` is None when it has no leader."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    """Replicas that a running reassignment adds; only controllers fill in this field and the next."""
    removing_replicas: tuple[int, ...] = ()

    @property
    def assignment(self) -> ReplicaAssignment:
        """Replicas with those that a running reassignment adds and removes, all from one description."""
        return ReplicaAssignment(self.replicas, self.adding_replicas, self.removing_replicas)


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """A leader's knowledge of a follower, or of itself; None for a value that is not known in this leader epoch."""

    broker_id: int
    log_end_offset: int | None
    log_start_offset: int | None
    last_caught_up_ago_ms: int | None
    last_fetch_ago_ms: int | None
    in_sync: bool
    high_watermark: int | None = None
    """High watermark last sent to the follower; for the leader, its own high watermark."""
    lag_records: int | None = None
    broker_epoch: int | None = None
    online: bool = True
    """Whether its broker is alive and its log directory works, according to the controller's latest request."""
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """The latest leader epochs of its log, each with its start offset, oldest first; only of the answering broker."""
