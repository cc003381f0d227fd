"""A follower's fetch and leader epoch lookup: `model.replica_fetch` <-> ``paceline.internal.v1``."""

from paceline.internal.v1 import replication_service_pb2 as pb
from paceline.model.client_io import EpochQuery
from paceline.model.fetch_position import FetchPosition
from paceline.model.identifiers import TopicPartition
from paceline.model.replica_fetch import (
    ReplicaFetchRequest,
    ReplicaFetchResult,
)
from paceline.rpc.convert.common import (
    MAX_INTERNAL_PARTITIONS,
    at_least,
    bounded,
    code_to_proto,
    epoch_end_from_proto,
    epoch_end_to_proto,
    error_code_of,
    forgotten_to_proto,
    message_of,
    partition_of,
    refuse_duplicates,
    topic_id_of,
)
from paceline.rpc.convert.offsets import epoch_queries_from_proto

MAX_REPLICA_WAIT_MS = 60_000


def replica_fetch_to_proto(request: ReplicaFetchRequest) -> pb.FetchRequest:
    """Encode the request."""
    return message_of(
        pb.FetchRequest,
        request,
        partitions=[message_of(pb.FetchPartition, one) for one in request.partitions],
        forgotten=forgotten_to_proto(request.forgotten),
    )


def replica_fetch_from_proto(message: pb.FetchRequest) -> ReplicaFetchRequest:
    """Decode the request; the log checks the fetch offsets.

    Raises:
        InvalidRequestError: a partition is listed twice, or a number is out of range.
        InvalidTopicError: a topic name is invalid.
    """
    partitions = [
        FetchPosition(
            topic_partition=partition_of(one),
            topic_id=topic_id_of(one.topic_id),
            current_leader_epoch=at_least(one.current_leader_epoch, 0, "leader epoch"),
            fetch_offset=one.fetch_offset,
            last_fetched_epoch=one.last_fetched_epoch if one.HasField("last_fetched_epoch") else None,
            log_start_offset=one.log_start_offset,
            max_bytes=at_least(one.max_bytes, 0, "max bytes"),
        )
        for one in bounded(message.partitions, MAX_INTERNAL_PARTITIONS, "partitions")
    ]
    forgotten = [partition_of(one) for one in bounded(message.forgotten, MAX_INTERNAL_PARTITIONS, "partitions")]
    refuse_duplicates([one.topic_partition for one in partitions])
    return ReplicaFetchRequest(
        replica_id=at_least(message.replica_id, 0, "replica id"),
        broker_epoch=at_least(message.broker_epoch, -1, "broker epoch"),
        max_wait_ms=min(at_least(message.max_wait_ms, 0, "max wait"), MAX_REPLICA_WAIT_MS),
        min_bytes=at_least(message.min_bytes, 0, "min bytes"),
        max_bytes=at_least(message.max_bytes, 0, "max bytes"),
        session_id=at_least(message.session_id, 0, "session id"),
        session_epoch=at_least(message.session_epoch, -1, "session epoch"),
        partitions=partitions,
        forgotten=forgotten,
        wants_high_watermark=message.wants_high_watermark,
    )


def replica_fetch_result_to_proto(result: ReplicaFetchResult, batches: bytes) -> pb.FetchPartitionResult:
    """Encode the result of one partition, with ``batches`` instead of its own."""
    diverging_epoch = epoch_end_to_proto(result.diverging_epoch)
    return message_of(
        pb.FetchPartitionResult,
        result,
        error=code_to_proto(result.error),
        diverging_epoch=diverging_epoch,
        batches=batches,
    )


def replica_fetch_result_from_proto(message: pb.FetchPartitionResult) -> ReplicaFetchResult:
    """Decode the result of one partition."""
    return ReplicaFetchResult(
        topic_partition=TopicPartition(message.topic, message.partition),
        error=error_code_of(message),
        leader_epoch=message.leader_epoch,
        high_watermark=message.high_watermark,
        log_start_offset=message.log_start_offset,
        log_end_offset=message.log_end_offset,
        diverging_epoch=epoch_end_from_proto(message, "diverging_epoch"),
        batches=message.batches,
    )


def replica_epochs_from_proto(message: pb.OffsetsForLeaderEpochRequest) -> tuple[int, list[EpochQuery]]:
    """Decode the request; return (replica id, queries).

    Raises:
        InvalidRequestError: a partition is listed twice, or a number is out of range.
        InvalidTopicError: a topic name is invalid.
    """
    replica_id = at_least(message.replica_id, 0, "replica id")
    return replica_id, epoch_queries_from_proto(message.partitions, MAX_INTERNAL_PARTITIONS)
