"""What clients ask of a broker and what it answers, as plain values (wire form: `paceline.v1` LogService)."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto

from paceline.model.errors import ErrorCode
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import EpochEnd


class RequiredAcks(IntEnum):
    """How many replicas must have a record before the answer; Kafka's numbers."""

    ALL = -1
    NONE = 0
    LEADER = 1


class Isolation(Enum):
    """What a reader may see."""

    READ_UNCOMMITTED = auto()
    READ_COMMITTED = auto()


class OffsetKind(Enum):
    """Which offset ListOffsets looks for."""

    LATEST = auto()
    EARLIEST = auto()
    TIMESTAMP = auto()


@dataclass(slots=True)
class LeaderHint:
    """Leader of a partition as the answering broker knows it; the servicer adds the address."""

    leader_id: int
    leader_epoch: int
    topic_id: str | None = None
    """The topic it speaks of: epochs of different topics of one name say nothing of each other. None when not known."""


@dataclass(slots=True)
class PartitionFailure:
    """Why one partition of a request failed."""

    code: ErrorCode
    message: str = ""
    leader: LeaderHint | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None


@dataclass(slots=True)
class ProduceData:
    """One batch for one partition."""

    topic_partition: TopicPartition
    topic_id: str | None
    batch: bytes
    current_leader_epoch: int | None = None
    """Leader epoch the producer knows; None skips the check."""


@dataclass(slots=True)
class ProduceResult:
    """What became of it."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchPartition:
    """One partition of a client's fetch."""

    topic_partition: TopicPartition
    topic_id: str | None
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int | None = None
    last_fetched_epoch: int | None = None


@dataclass(slots=True)
class FetchRequest:
    """A client's fetch."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation
    partitions: list[FetchPartition]
    session_id: int = 0
    session_epoch: int = -1
    forgotten: list[TopicPartition] = field(default_factory=list)
    rack: str = ""
    """Where the caller is; empty: it reads from leaders only (KIP-392)."""


@dataclass(slots=True)
class FetchResult:
    """What was read from one partition."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEnd | None = None
    batches: bytes = b""
    preferred_read_replica: int | None = None
    """Follower to fetch from next; nothing was read here then."""


@dataclass(slots=True)
class FetchResponse:
    """Answer to a client's fetch."""

    results: list[FetchResult]
    session_id: int = 0
    failure: PartitionFailure | None = None
    """Why the whole request failed (fetch session errors)."""


@dataclass(slots=True)
class OffsetQuery:
    """One partition of ListOffsets."""

    topic_partition: TopicPartition
    kind: OffsetKind
    timestamp_ms: int = -1
    current_leader_epoch: int | None = None


@dataclass(slots=True)
class OffsetAnswer:
    """The offset found; None when no record is that young."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    leader_epoch: int = -1


@dataclass(slots=True)
class DeleteRecordsQuery:
    """One partition of DeleteRecords."""

    topic_partition: TopicPartition
    topic_id: str | None = None
    before_offset: int | None = None
    """First offset that stays; None for everything that is committed."""
    current_leader_epoch: int | None = None


@dataclass(slots=True)
class DeleteRecordsResult:
    """What became of one partition."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    low_watermark: int = -1
    """Smallest log start offset among the live replicas."""


@dataclass(slots=True)
class EpochQuery:
    """One partition of OffsetForLeaderEpoch."""

    topic_partition: TopicPartition
    leader_epoch: int
    current_leader_epoch: int | None = None


@dataclass(slots=True)
class EpochAnswer:
    """End of the largest epoch not above the asked one; None when the log knows no such epoch."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    end: EpochEnd | None = None


@dataclass(slots=True)
class ReplicaProgressView:
    """What a leader knows of one replica, itself included; None where it does not know yet."""

    broker_id: int
    log_end_offset: int | None
    log_start_offset: int | None
    last_caught_up_ago_ms: int | None
    last_fetch_ago_ms: int | None
    in_sync: bool
    high_watermark: int | None = None
    """What it was last told; the leader's own for the leader."""
    lag_records: int | None = None
    broker_epoch: int | None = None
    online: bool = True
    """Whether its broker is alive and its log directory well, as the controller last said."""


@dataclass(slots=True)
class PartitionReplicasView:
    """A leader's view of one partition."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    leader: int = -1
    leader_epoch: int = -1
    leader_epoch_start_offset: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    isr: tuple[int, ...] = ()
    maximal_isr: tuple[int, ...] = ()
    replicas: tuple[ReplicaProgressView, ...] = ()
    topic_id: str | None = None
    zk_version: int = -1
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    min_insync_replicas: int = 1
    under_replicated: bool = False
    bytes_in: int = 0
    """Bytes that producers have appended at this leader since it was told to host the partition."""
    bytes_out: int = 0
    """Bytes that consumers have read at this leader, counted in the same way."""


@dataclass(slots=True)
class DigestQuery:
    """A range of one replica; offsets are start inclusive, end exclusive."""

    topic_partition: TopicPartition
    topic_id: str | None
    start_offset: int
    end_offset: int
    max_bytes: int = 0
    """0: as many as one answer may cover."""


@dataclass(slots=True)
class DigestAnswer:
    """What a replica has stored in a range, in whole batches."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    first_offset: int | None = None
    """Base offset of the first batch; None when there is none."""
    last_offset: int | None = None
    """Last offset of the last batch."""
    record_count: int = 0
    size_bytes: int = 0
    leader_epochs: list[int] = field(default_factory=list)
    stored_crc32c: int = 0
    """Of the batches as stored."""
    content_crc32c: int = 0
    """The same with leader epochs read as zero."""
    next_offset: int = 0
    """Where to continue: the first offset that the digest does not cover."""
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
