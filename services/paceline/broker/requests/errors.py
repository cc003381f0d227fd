"""Convert a typed error to the failure of a partition in a response."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from paceline.model.client_io import (
    DeleteRecordsQuery,
    DigestQuery,
    EpochQuery,
    LeaderHint,
    OffsetQuery,
    PartitionFailure,
    ProduceData,
)
from paceline.model.errors import ErrorCode, OffsetOutOfRangeError, PacelineError
from paceline.model.identifiers import TopicPartition

PartitionQuery = ProduceData | EpochQuery | DigestQuery | OffsetQuery | DeleteRecordsQuery
A = TypeVar("A")
_WITH_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)


def failure_of(error: PacelineError, leader: LeaderHint | None = None) -> PartitionFailure:
    """Return the failure for an error; depending on its code, add the leader hint or the bounds of the log."""
    failure = PartitionFailure(error.code, str(error))
    if isinstance(error, OffsetOutOfRangeError):
        failure.log_start_offset = error.log_start_offset
        failure.high_watermark = error.end_offset
    if error.code in _WITH_LEADER:
        failure.leader = leader
    return failure


def refuse_all(
    refusal: PacelineError | None,
    queries: Iterable[PartitionQuery],
    answer: Callable[[TopicPartition, PartitionFailure], A],
) -> list[A]:
    """Return an error for each query while the broker is not serving, otherwise an empty list."""
    return [] if refusal is None else [answer(query.topic_partition, failure_of(refusal)) for query in queries]
