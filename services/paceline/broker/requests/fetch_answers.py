"""Convert fetches of clients and followers to read positions, and the results to responses."""

from collections.abc import Callable

from paceline.broker.partition.hosted_partitions import HostedPartitions
from paceline.broker.requests.errors import failure_of
from paceline.broker.requests.fetch import FetchHandler
from paceline.broker.requests.fetch_types import FetchLimits, PartitionRead, Reader
from paceline.broker.requests.leader_hints import refusal
from paceline.broker.requests.proof_waits import ProofWaits
from paceline.model.client_io import FetchRequest, FetchResponse, FetchResult
from paceline.model.errors import (
    ErrorCode,
    FetchSessionIdNotFoundError,
    InvalidFetchSessionEpochError,
    OffsetOutOfRangeError,
)
from paceline.model.replica_fetch import (
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from paceline.replication.purgatory import Cancel

_SessionErrors = (FetchSessionIdNotFoundError, InvalidFetchSessionEpochError)
_CLIENT = Reader(None)


def fetch_for_client(
    hosted: HostedPartitions,
    fetches: FetchHandler,
    proofs: ProofWaits,
    request: FetchRequest,
    reply: Callable[[FetchResponse], None],
) -> Cancel | None:
    """Answer a client's fetch, now or after a wait; return a function that cancels the wait.

    Without contact the fetch is handled when the leaderships of its partitions are proved.
    """
    if hosted.in_contact():
        return _fetch_for_client(hosted, fetches, request, reply)
    asked_ms = hosted.now_ms()

    def fetch() -> Cancel | None:
        request.max_wait_ms = max(0, request.max_wait_ms - (hosted.now_ms() - asked_ms))
        return _fetch_for_client(hosted, fetches, request, reply)

    named = [item.topic_partition for item in request.partitions]
    named += fetches.sessions.partitions_of(request.session_id)
    return proofs.when_proved(named, asked_ms, request.proof_timeout_ms, fetch)


def _fetch_for_client(
    hosted: HostedPartitions, fetches: FetchHandler, request: FetchRequest, reply: Callable[[FetchResponse], None]
) -> Cancel | None:
    max_bytes = min(request.max_bytes, hosted.config.fetch_max_bytes)

    def answer(session_id: int, reads: list[PartitionRead]) -> None:
        reply(FetchResponse([_client_result(hosted, read) for read in reads], session_id))

    try:
        return fetches.fetch(
            Reader(None, rack=request.rack) if request.rack else _CLIENT,
            FetchLimits(request.max_wait_ms, request.min_bytes, max_bytes),
            request.session_id,
            request.session_epoch,
            request.partitions,
            request.forgotten,
            answer,
        )
    except _SessionErrors as error:
        reply(FetchResponse([], 0, failure_of(error)))
        return None


def _client_result(hosted: HostedPartitions, read: PartitionRead) -> FetchResult:
    topic_partition = read.position.topic_partition
    if read.error is not None:
        return FetchResult(topic_partition, refusal(hosted, read.error, topic_partition, read.position.topic_id))
    return FetchResult(
        topic_partition,
        None,
        read.high_watermark,
        read.high_watermark,
        read.log_start_offset,
        read.diverging_epoch,
        read.batches,
        read.preferred_replica,
    )


def fetch_for_follower(
    fetches: FetchHandler, request: ReplicaFetchRequest, reply: Callable[[ReplicaFetchResponse], None]
) -> Cancel | None:
    """Answer a follower's fetch, now or after a wait; return a function that cancels the wait."""
    try:
        return fetches.fetch(
            Reader(request.replica_id, request.broker_epoch, wants_high_watermark=request.wants_high_watermark),
            FetchLimits(request.max_wait_ms, request.min_bytes, request.max_bytes),
            request.session_id,
            request.session_epoch,
            request.partitions,
            request.forgotten,
            lambda session_id, reads: reply(
                ReplicaFetchResponse(session_id, [_replica_result(read) for read in reads])
            ),
        )
    except _SessionErrors as error:
        reply(ReplicaFetchResponse(0, [], error.code))
        return None


def _replica_result(read: PartitionRead) -> ReplicaFetchResult:
    error = read.error
    if error is None:
        return ReplicaFetchResult(
            read.position.topic_partition,
            ErrorCode.NONE,
            read.leader_epoch,
            read.high_watermark,
            read.log_start_offset,
            read.log_end_offset,
            read.diverging_epoch,
            read.batches,
        )
    result = ReplicaFetchResult(read.position.topic_partition, error.code, read.leader_epoch)
    if isinstance(error, OffsetOutOfRangeError):
        result.log_start_offset = read.log_start_offset
        result.log_end_offset = read.log_end_offset
    return result
