"""The reverse directions of `paceline.rpc.convert`, so that tests can send values over the wire and read responses."""

from collections.abc import Sequence
from typing import Any, Final

from paceline.internal.v1 import replication_service_pb2 as replica_pb
from paceline.model.admin import ReplicaDescription
from paceline.model.client_io import (
    EpochAnswer,
    FetchRequest,
    FetchResult,
    LeaderHint,
    OffsetAnswer,
    OffsetKind,
    OffsetQuery,
    PartitionFailure,
    PartitionReplicasView,
)
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import ReplicaFetchResponse
from paceline.rpc.convert.common import (
    code_to_proto,
    epoch_end_from_proto,
    error_code_of,
    forgotten_to_proto,
    known_code,
    value_of,
)
from paceline.rpc.convert.fetch import OPENING_EPOCH
from paceline.rpc.convert.replica import replica_fetch_result_from_proto, replica_fetch_result_to_proto
from paceline.v1 import errors_pb2, metadata_service_pb2
from paceline.v1 import log_service_pb2 as pb

_SPEC_TO_PROTO: Final[dict[OffsetKind, Any]] = {
    OffsetKind.LATEST: pb.OFFSET_SPEC_LATEST,
    OffsetKind.EARLIEST: pb.OFFSET_SPEC_EARLIEST,
    OffsetKind.TIMESTAMP: pb.OFFSET_SPEC_TIMESTAMP,
}


def failure_from_proto(message: Any) -> PartitionFailure | None:
    """Return the failure of any message with an ``optional PartitionError error``, None when it has none."""
    if not message.HasField("error"):
        return None
    error: errors_pb2.PartitionError = message.error
    hint = None
    if error.HasField("current_leader"):
        leader = error.current_leader
        hint = LeaderHint(leader.leader_id, leader.leader_epoch, leader.topic_id or None)
    return PartitionFailure(
        code=known_code(error.code),
        message=error.message,
        leader=hint,
        log_start_offset=error.log_start_offset if error.HasField("log_start_offset") else None,
        high_watermark=error.high_watermark if error.HasField("high_watermark") else None,
    )


def leader_address_from_proto(message: Any) -> tuple[str, int] | None:
    """Return (host, port) of the leader in a failed result, None when the result has none."""
    if not message.HasField("error") or not message.error.HasField("current_leader"):
        return None
    hint = message.error.current_leader
    return (hint.host, hint.port) if hint.host and hint.port else None


def fetch_to_proto(request: FetchRequest) -> pb.FetchRequest:
    """Return the message of a fetch for batches."""
    return pb.FetchRequest(
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        format=pb.FETCH_FORMAT_BATCHES,
        session_id=request.session_id,
        session_epoch=max(0, request.session_epoch),
        open_session=request.session_epoch == OPENING_EPOCH,
        partitions=[
            pb.FetchPartition(
                topic=one.topic_partition.topic,
                partition=one.topic_partition.partition,
                topic_id=one.topic_id or "",
                fetch_offset=one.fetch_offset,
                max_bytes=one.max_bytes,
                current_leader_epoch=one.current_leader_epoch,
                last_fetched_epoch=one.last_fetched_epoch,
            )
            for one in request.partitions
        ],
        forgotten=forgotten_to_proto(request.forgotten),
        rack_id=request.rack,
    )


def fetch_result_from_proto(message: pb.FetchPartitionResult) -> FetchResult:
    """Return the result of a fetch for batches."""
    return FetchResult(
        topic_partition=TopicPartition(message.topic, message.partition),
        failure=failure_from_proto(message),
        high_watermark=message.high_watermark,
        last_stable_offset=message.last_stable_offset,
        log_start_offset=message.log_start_offset,
        diverging_epoch=epoch_end_from_proto(message, "diverging_epoch"),
        batches=message.batches,
        preferred_read_replica=message.preferred_read_replica if message.HasField("preferred_read_replica") else None,
    )


def list_offsets_to_proto(queries: Sequence[OffsetQuery]) -> pb.ListOffsetsRequest:
    """Return the message."""
    return pb.ListOffsetsRequest(
        partitions=[
            pb.ListOffsetsPartition(
                topic=one.topic_partition.topic,
                partition=one.topic_partition.partition,
                spec=_SPEC_TO_PROTO[one.kind],
                timestamp_ms=one.timestamp_ms if one.kind is OffsetKind.TIMESTAMP else 0,
                current_leader_epoch=one.current_leader_epoch,
            )
            for one in queries
        ],
    )


def offset_answer_from_proto(message: pb.ListOffsetsPartitionResult) -> OffsetAnswer:
    """Return the answer."""
    return OffsetAnswer(
        topic_partition=TopicPartition(message.topic, message.partition),
        failure=failure_from_proto(message),
        offset=message.offset if message.HasField("offset") else None,
        timestamp_ms=message.timestamp_ms if message.HasField("timestamp_ms") else None,
        leader_epoch=message.leader_epoch,
    )


def epoch_answer_from_proto(message: pb.EpochPartitionResult) -> EpochAnswer:
    """Return the answer."""
    return EpochAnswer(
        TopicPartition(message.topic, message.partition),
        failure_from_proto(message),
        epoch_end_from_proto(message, "end"),
    )


def partition_replicas_from_proto(message: metadata_service_pb2.PartitionReplicas) -> PartitionReplicasView:
    """Return a leader's view of one partition."""
    topic_partition = TopicPartition(message.topic, message.partition)
    failure = failure_from_proto(message)
    if failure is not None:
        return PartitionReplicasView(topic_partition, failure)
    return value_of(
        PartitionReplicasView,
        message,
        failure=None,
        replicas=tuple(value_of(ReplicaDescription, one) for one in message.replicas),
        topic_id=message.topic_id or None,
    )


def replica_fetch_response_to_proto(response: ReplicaFetchResponse) -> replica_pb.FetchResponse:
    """Return the message."""
    return replica_pb.FetchResponse(
        error=code_to_proto(response.error),
        session_id=response.session_id,
        partitions=[replica_fetch_result_to_proto(one, one.batches) for one in response.results],
    )


def replica_fetch_response_from_proto(message: replica_pb.FetchResponse) -> ReplicaFetchResponse:
    """Return the answer."""
    return ReplicaFetchResponse(
        session_id=message.session_id,
        error=error_code_of(message),
        results=[replica_fetch_result_from_proto(one) for one in message.partitions],
    )
