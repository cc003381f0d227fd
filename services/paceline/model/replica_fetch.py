"""A follower's fetch and the leader's response, as plain values (wire form: `paceline.internal.v1`)."""

from dataclasses import dataclass

from paceline.model.errors import ErrorCode
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition


@dataclass(slots=True)
class ReplicaFetchRequest:
    """A follower's fetch; an incremental session lists only added and changed partitions."""

    replica_id: int
    broker_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    """0 before a session is open."""
    session_epoch: int
    """0 opens a session, -1 is a full fetch without a session."""
    partitions: list[FetchPosition]
    forgotten: list[TopicPartition]
    wants_high_watermark: bool = False
    """Whether the leader responds as soon as a high watermark advances, because consumers read from this follower."""


@dataclass(slots=True)
class EpochEnd:
    """A leader epoch and the first offset after it."""

    epoch: int
    end_offset: int


@dataclass(slots=True)
class ReplicaFetchResult:
    """The leader's result for one partition."""

    topic_partition: TopicPartition
    error: ErrorCode = ErrorCode.NONE
    leader_epoch: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    """Leader's log end, exclusive; also set with OFFSET_OUT_OF_RANGE."""
    diverging_epoch: EpochEnd | None = None
    batches: bytes = b""


@dataclass(slots=True)
class ReplicaFetchResponse:
    """Response to a follower's fetch."""

    session_id: int
    results: list[ReplicaFetchResult]
    error: ErrorCode = ErrorCode.NONE
