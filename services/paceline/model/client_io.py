"""Requests of clients to a broker and their responses, as plain values (wire form: `paceline.v1` LogService)."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto

from paceline.model.admin import ReplicaDescription
from paceline.model.errors import ErrorCode
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import EpochEnd


class RequiredAcks(IntEnum):
    """Replicas that must have a record before the leader responds, numbered as in Kafka."""

    ALL = -1
    NONE = 0
    LEADER = 1


class OffsetKind(Enum):
    """Offset that ListOffsets looks up."""

    LATEST = auto()
    EARLIEST = auto()
    TIMESTAMP = auto()


@dataclass(slots=True)
class LeaderHint:
    """Leader of a partition in the answering broker's metadata; the servicer adds the address."""

    leader_id: int
    leader_epoch: int
    topic_id: str | None = None
    """Topic id, because leader epochs of different topics cannot be compared; None when not known."""


@dataclass(slots=True)
class PartitionFailure:
    """Error of one partition of a request."""

    code: ErrorCode
    message: str = ""
    leader: LeaderHint | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None


@dataclass(slots=True)
class ProduceData:
    """A batch for one partition."""

    topic_partition: TopicPartition
    topic_id: str | None
    batch: bytes
    current_leader_epoch: int | None = None
    """Leader epoch known to the producer; None skips the check."""


@dataclass(slots=True)
class ProduceResult:
    """Result of the append."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchRequest:
    """A client's fetch."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: list[FetchPosition]
    session_id: int = 0
    session_epoch: int = -1
    forgotten: list[TopicPartition] = field(default_factory=list)
    rack: str = ""
    """Rack of the client; a client without a rack reads only from leaders (KIP-392)."""
    proof_timeout_ms: int = 30_000
    """Time for which the fetch may wait for a proof of leadership."""


@dataclass(slots=True)
class FetchResult:
    """Records read from one partition."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: EpochEnd | None = None
    batches: bytes = b""
    preferred_read_replica: int | None = None
    """Follower to fetch from next; the result then has no records."""


@dataclass(slots=True)
class FetchResponse:
    """Answer to a client's fetch."""

    results: list[FetchResult]
    session_id: int = 0
    failure: PartitionFailure | None = None
    """Error of the whole request, for example of its fetch session; None without such an error."""


@dataclass(slots=True)
class OffsetQuery:
    """One partition of ListOffsets."""

    topic_partition: TopicPartition
    kind: OffsetKind
    timestamp_ms: int = -1
    current_leader_epoch: int | None = None


@dataclass(slots=True)
class OffsetAnswer:
    """Result of an offset lookup; ``offset`` is None when every record is older."""

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
    """First offset to keep; None deletes all committed records."""
    current_leader_epoch: int | None = None


@dataclass(slots=True)
class DeleteRecordsResult:
    """Result for one partition."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    low_watermark: int = -1
    """Smallest log start offset among the live replicas."""
    old_log_start_offset: int | None = None
    """Log start offset of the leader before the request; None if nothing was deleted."""


@dataclass(slots=True)
class EpochQuery:
    """One partition of OffsetForLeaderEpoch."""

    topic_partition: TopicPartition
    leader_epoch: int
    current_leader_epoch: int | None = None


@dataclass(slots=True)
class EpochAnswer:
    """End of the largest epoch that is not above the requested epoch; ``end`` is None without such an epoch."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    end: EpochEnd | None = None


@dataclass(slots=True)
class PartitionReplicasView:
    """A leader's view of one partition; with a failure, the view of a broker that is not its leader."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    leader: int = -1
    leader_epoch: int = -1
    leader_epoch_start_offset: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    isr: tuple[int, ...] = ()
    maximal_isr: tuple[int, ...] = ()
    replicas: tuple[ReplicaDescription, ...] = ()
    topic_id: str | None = None
    zk_version: int = -1
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    min_insync_replicas: int = 1
    under_replicated: bool = False
    bytes_in: int = 0
    """Bytes that producers have appended at this leader since it began to host the partition."""
    bytes_out: int = 0
    """Bytes that consumers have read from this leader, counted in the same way."""


@dataclass(slots=True)
class DigestQuery:
    """A range of one replica; offsets are start inclusive, end exclusive."""

    topic_partition: TopicPartition
    topic_id: str | None
    start_offset: int
    end_offset: int
    max_bytes: int = 0
    """0: the maximum for a response."""


@dataclass(slots=True)
class RangeDigest:
    """Digest of the whole record batches in a range of a replica, and the offsets of the replica's log."""

    first_offset: int | None = None
    """None when the range has no batch."""
    last_offset: int | None = None
    """Inclusive."""
    record_count: int = 0
    size_bytes: int = 0
    leader_epochs: list[int] = field(default_factory=list)
    """Distinct leader epochs of the batches, in order."""
    stored_crc32c: int = 0
    """CRC-32C of the batches as stored."""
    content_crc32c: int = 0
    """The same with every leader epoch set to zero."""
    next_offset: int = 0
    """First offset that the digest does not cover; below the end of the range when that has more than 4 MiB."""
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0


@dataclass(slots=True)
class DigestAnswer:
    """Digest of a range of one replica."""

    topic_partition: TopicPartition
    failure: PartitionFailure | None = None
    digest: RangeDigest = field(default_factory=RangeDigest)
