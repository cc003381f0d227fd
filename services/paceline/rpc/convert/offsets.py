"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: `model.client_io` <-> ``paceline.v1``."""

from collections.abc import Sequence
from typing import Final

from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    EpochAnswer,
    EpochQuery,
    OffsetAnswer,
    OffsetKind,
    OffsetQuery,
)
from paceline.model.errors import InvalidRequestError
from paceline.rpc.convert.common import (
    MAX_CLIENT_PARTITIONS,
    at_least,
    bounded,
    epoch_end_to_proto,
    message_of,
    partition_of,
    refuse_duplicates,
    topic_id_of,
)
from paceline.rpc.convert.failures import AddressOf, no_address, optional_failure
from paceline.rpc.convert.fetch import check_isolation
from paceline.v1 import log_service_pb2 as pb

_SPEC: Final[dict[int, OffsetKind]] = {
    pb.OFFSET_SPEC_UNSPECIFIED: OffsetKind.LATEST,
    pb.OFFSET_SPEC_LATEST: OffsetKind.LATEST,
    pb.OFFSET_SPEC_EARLIEST: OffsetKind.EARLIEST,
    pb.OFFSET_SPEC_TIMESTAMP: OffsetKind.TIMESTAMP,
}


def list_offsets_from_proto(message: pb.ListOffsetsRequest) -> list[OffsetQuery]:
    """Decode the request.

    Raises:
        InvalidRequestError: too many partitions, a partition is listed twice or is negative, an offset spec or
            isolation level is unknown, or a timestamp is negative.
        InvalidTopicError: a topic name is invalid.
    """
    queries = []
    for one in bounded(message.partitions, MAX_CLIENT_PARTITIONS, "partitions"):
        kind = _SPEC.get(one.spec)
        if kind is None:
            raise InvalidRequestError(f"offset spec {one.spec} is not known")
        if kind is OffsetKind.TIMESTAMP:
            at_least(one.timestamp_ms, 0, "timestamp")
        queries.append(
            OffsetQuery(
                topic_partition=partition_of(one),
                kind=kind,
                timestamp_ms=one.timestamp_ms if kind is OffsetKind.TIMESTAMP else -1,
                current_leader_epoch=one.current_leader_epoch if one.HasField("current_leader_epoch") else None,
            )
        )
    refuse_duplicates([query.topic_partition for query in queries])
    check_isolation(message.isolation_level)
    return queries


def offset_answer_to_proto(answer: OffsetAnswer, address_of: AddressOf = no_address) -> pb.ListOffsetsPartitionResult:
    """Encode the result of one partition."""
    return message_of(pb.ListOffsetsPartitionResult, answer, error=optional_failure(answer.failure, address_of))


def epoch_queries_from_proto(
    partitions: Sequence[pb.EpochPartition], limit: int = MAX_CLIENT_PARTITIONS
) -> list[EpochQuery]:
    """Decode the queries of a client's or follower's leader epoch lookup.

    Raises:
        InvalidRequestError: too many partitions, a partition is listed twice or is negative, or a leader epoch is
            below -1.
        InvalidTopicError: a topic name is invalid.
    """
    queries = [
        EpochQuery(
            topic_partition=partition_of(one),
            leader_epoch=at_least(one.leader_epoch, -1, "leader epoch"),
            current_leader_epoch=one.current_leader_epoch if one.HasField("current_leader_epoch") else None,
        )
        for one in bounded(partitions, limit, "partitions")
    ]
    refuse_duplicates([query.topic_partition for query in queries])
    return queries


def epoch_answer_to_proto(answer: EpochAnswer, address_of: AddressOf = no_address) -> pb.EpochPartitionResult:
    """Encode the result of one partition."""
    failure = optional_failure(answer.failure, address_of)
    return message_of(pb.EpochPartitionResult, answer, error=failure, end=epoch_end_to_proto(answer.end))


def delete_records_from_proto(message: pb.DeleteRecordsRequest) -> list[DeleteRecordsQuery]:
    """Decode the request.

    Raises:
        InvalidRequestError: too many partitions, a partition is listed twice or is negative, an offset is negative,
            or a topic id is invalid.
        InvalidTopicError: a topic name is invalid.
    """
    queries = [
        DeleteRecordsQuery(
            topic_partition=partition_of(one),
            topic_id=topic_id_of(one.topic_id),
            before_offset=at_least(one.before_offset, 0, "offset") if one.HasField("before_offset") else None,
            current_leader_epoch=one.current_leader_epoch if one.HasField("current_leader_epoch") else None,
        )
        for one in bounded(message.partitions, MAX_CLIENT_PARTITIONS, "partitions")
    ]
    refuse_duplicates([query.topic_partition for query in queries])
    return queries


def delete_records_result_to_proto(
    result: DeleteRecordsResult, address_of: AddressOf = no_address
) -> pb.DeleteRecordsPartitionResult:
    """Encode the result of one partition."""
    failure = optional_failure(result.failure, address_of)
    low_watermark = result.low_watermark if failure is None else 0
    return message_of(pb.DeleteRecordsPartitionResult, result, error=failure, low_watermark=low_watermark)
