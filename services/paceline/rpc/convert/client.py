"""Client requests and answers: `model.client_io` <-> ``paceline.v1`` LogService and DescribeReplicas.

Structured records are not handled here; `broker/service/record_codec.py` encodes them. Enum values
that are not given mean what the protos say; values nobody knows are refused, never guessed.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from paceline.model.client_io import (
    DeleteRecordsQuery,
    DeleteRecordsResult,
    DigestAnswer,
    DigestQuery,
    EpochAnswer,
    EpochQuery,
    FetchPartition,
    FetchRequest,
    FetchResult,
    Isolation,
    LeaderHint,
    OffsetAnswer,
    OffsetKind,
    OffsetQuery,
    PartitionFailure,
    PartitionReplicasView,
    ProduceResult,
    ReplicaProgressView,
    RequiredAcks,
)
from paceline.model.control import Endpoint
from paceline.model.errors import ErrorCode, InvalidRequestError, InvalidRequiredAcksError
from paceline.model.identifiers import TopicPartition
from paceline.rpc.convert.common import (
    MAX_CLIENT_PARTITIONS,
    at_least,
    bounded,
    epoch_end_from_proto,
    epoch_end_to_proto,
    forgotten_to_proto,
    known_code,
    partition_of,
    refuse_duplicates,
    topic_id_of,
)
from paceline.rpc.errors import THROTTLE_RETRY_DELAY_MS
from paceline.v1 import errors_pb2, metadata_service_pb2
from paceline.v1 import log_service_pb2 as pb

DEFAULT_TIMEOUT_MS: Final = 30_000
MAX_TIMEOUT_MS: Final = 600_000
MAX_WAIT_MS: Final = 60_000
MAX_RACK_CHARACTERS: Final = 256
DEFAULT_FETCH_BYTES: Final = 1024 * 1024
OPENING_EPOCH: Final = 0
"""Session epoch in the core of a full fetch that opens a session, as in Kafka's protocol and between brokers."""
CLOSING_EPOCH: Final = -1
"""Session epoch in the core of a full fetch without a session; a session that it names ends."""

AddressOf = Callable[[int], Endpoint | None]
"""Address of a broker on the listener a request arrived on; None when not known."""


def no_address(broker_id: int) -> Endpoint | None:
    """Know no addresses."""
    return None


_ACKS: Final[dict[int, RequiredAcks]] = {
    pb.ACKS_UNSPECIFIED: RequiredAcks.ALL,
    pb.ACKS_NONE: RequiredAcks.NONE,
    pb.ACKS_LEADER: RequiredAcks.LEADER,
    pb.ACKS_ALL: RequiredAcks.ALL,
}
_ACKS_TO_PROTO: Final[dict[RequiredAcks, Any]] = {
    RequiredAcks.NONE: pb.ACKS_NONE,
    RequiredAcks.LEADER: pb.ACKS_LEADER,
    RequiredAcks.ALL: pb.ACKS_ALL,
}
_ISOLATION: Final[dict[int, Isolation]] = {
    pb.ISOLATION_LEVEL_UNSPECIFIED: Isolation.READ_UNCOMMITTED,
    pb.ISOLATION_LEVEL_READ_UNCOMMITTED: Isolation.READ_UNCOMMITTED,
    pb.ISOLATION_LEVEL_READ_COMMITTED: Isolation.READ_COMMITTED,
}
_ISOLATION_TO_PROTO: Final[dict[Isolation, Any]] = {
    Isolation.READ_UNCOMMITTED: pb.ISOLATION_LEVEL_READ_UNCOMMITTED,
    Isolation.READ_COMMITTED: pb.ISOLATION_LEVEL_READ_COMMITTED,
}
_SPEC: Final[dict[int, OffsetKind]] = {
    pb.OFFSET_SPEC_UNSPECIFIED: OffsetKind.LATEST,
    pb.OFFSET_SPEC_LATEST: OffsetKind.LATEST,
    pb.OFFSET_SPEC_EARLIEST: OffsetKind.EARLIEST,
    pb.OFFSET_SPEC_TIMESTAMP: OffsetKind.TIMESTAMP,
}
_SPEC_TO_PROTO: Final[dict[OffsetKind, Any]] = {
    OffsetKind.LATEST: pb.OFFSET_SPEC_LATEST,
    OffsetKind.EARLIEST: pb.OFFSET_SPEC_EARLIEST,
    OffsetKind.TIMESTAMP: pb.OFFSET_SPEC_TIMESTAMP,
}


def acks_from_proto(number: int) -> RequiredAcks:
    """Return the acks asked for; unspecified means ALL.

    Raises:
        InvalidRequiredAcksError: nobody knows that number.
    """
    acks = _ACKS.get(number)
    if acks is None:
        raise InvalidRequiredAcksError(f"acks {number} is not one of NONE, LEADER, ALL")
    return acks


def acks_to_proto(acks: RequiredAcks) -> Any:
    """Return the enum value."""
    return _ACKS_TO_PROTO[acks]


def isolation_from_proto(number: int) -> Isolation:
    """Return the isolation level; unspecified means READ_UNCOMMITTED.

    Raises:
        InvalidRequestError: nobody knows that number.
    """
    isolation = _ISOLATION.get(number)
    if isolation is None:
        raise InvalidRequestError(f"isolation level {number} is not known")
    return isolation


def timeout_from_proto(timeout_ms: int) -> int:
    """Return a request's timeout: 0 means 30 s, long ones are cut to ten minutes.

    Raises:
        InvalidRequestError: it is negative.
    """
    return min(at_least(timeout_ms, 0, "timeout"), MAX_TIMEOUT_MS) or DEFAULT_TIMEOUT_MS


def failure_to_proto(failure: PartitionFailure, address_of: AddressOf = no_address) -> errors_pb2.PartitionError:
    """Return the message, with the leader's address when it is known."""
    leader = None
    if failure.leader is not None:
        endpoint = address_of(failure.leader.leader_id)
        leader = errors_pb2.LeaderHint(
            leader_id=failure.leader.leader_id,
            leader_epoch=failure.leader.leader_epoch,
            host=endpoint.host if endpoint else "",
            port=endpoint.port if endpoint else 0,
            topic_id=failure.leader.topic_id or "",
        )
    return errors_pb2.PartitionError(
        code=int(failure.code),  # type: ignore[arg-type]
        message=failure.message or failure.code.name,
        current_leader=leader,
        log_start_offset=failure.log_start_offset,
        high_watermark=failure.high_watermark,
        retry_after_ms=THROTTLE_RETRY_DELAY_MS if failure.code is ErrorCode.THROTTLED else None,
    )


def no_leader_to_proto(topic_partition: TopicPartition) -> errors_pb2.PartitionError:
    """Return the error of a partition that has no leader."""
    return failure_to_proto(
        PartitionFailure(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic_partition} has no leader at the moment")
    )


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
    """Return (host, port) of the leader a failed result points to, None when it names none."""
    if not message.HasField("error") or not message.error.HasField("current_leader"):
        return None
    hint = message.error.current_leader
    return (hint.host, hint.port) if hint.host and hint.port else None


def produce_result_to_proto(result: ProduceResult, address_of: AddressOf = no_address) -> pb.ProducePartitionResult:
    """Return the message; offsets stay 0 in a failed one."""
    topic, partition = result.topic_partition
    if result.failure is not None:
        return pb.ProducePartitionResult(
            topic=topic, partition=partition, error=failure_to_proto(result.failure, address_of)
        )
    return pb.ProducePartitionResult(
        topic=topic,
        partition=partition,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )


def fetch_from_proto(message: pb.FetchRequest) -> FetchRequest:
    """Return a client's fetch; waits are cut to 60 s, sizes of 0 mean 1 MiB. Offsets are the log's to judge.

    Raises:
        InvalidRequestError: a partition twice, or numbers that cannot be.
        InvalidTopicError: a topic name is not legal.
    """
    partitions = [
        FetchPartition(
            topic_partition=partition_of(one),
            topic_id=topic_id_of(one.topic_id),
            fetch_offset=one.fetch_offset,
            max_bytes=at_least(one.max_bytes, 0, "max bytes") or DEFAULT_FETCH_BYTES,
            current_leader_epoch=one.current_leader_epoch if one.HasField("current_leader_epoch") else None,
            last_fetched_epoch=one.last_fetched_epoch if one.HasField("last_fetched_epoch") else None,
        )
        for one in bounded(message.partitions, MAX_CLIENT_PARTITIONS, "partitions")
    ]
    refuse_duplicates([one.topic_partition for one in partitions])
    return FetchRequest(
        max_wait_ms=min(at_least(message.max_wait_ms, 0, "max wait"), MAX_WAIT_MS),
        min_bytes=at_least(message.min_bytes, 0, "min bytes"),
        max_bytes=at_least(message.max_bytes, 0, "max bytes") or DEFAULT_FETCH_BYTES,
        isolation=isolation_from_proto(message.isolation_level),
        partitions=partitions,
        session_id=at_least(message.session_id, 0, "session id"),
        session_epoch=_session_epoch(message),
        forgotten=[partition_of(one) for one in bounded(message.forgotten, MAX_CLIENT_PARTITIONS, "partitions")],
        rack=_rack(message.rack_id),
    )


def _session_epoch(message: pb.FetchRequest) -> int:
    """Return the epoch as sessions count it: `OPENING_EPOCH` and `CLOSING_EPOCH` are the two kinds of full fetches.

    Raises:
        InvalidRequestError: the number is negative, or a fetch in a session asks to open one.
    """
    epoch = at_least(message.session_epoch, 0, "session epoch")
    if message.open_session:
        if epoch:
            raise InvalidRequestError(f"open_session goes with session_epoch 0, not with {epoch}")
        return OPENING_EPOCH
    return epoch or CLOSING_EPOCH


def _rack(text: str) -> str:
    if len(text) > MAX_RACK_CHARACTERS:
        raise InvalidRequestError(f"a rack has at most {MAX_RACK_CHARACTERS} characters")
    return text


def fetch_to_proto(request: FetchRequest) -> pb.FetchRequest:
    """Return the message of a fetch for batches."""
    return pb.FetchRequest(
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=_ISOLATION_TO_PROTO[request.isolation],
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


def fetch_result_to_proto(result: FetchResult, address_of: AddressOf = no_address) -> pb.FetchPartitionResult:
    """Return the message in batches form; the servicer makes the records form from the same result."""
    topic, partition = result.topic_partition
    message = pb.FetchPartitionResult(
        topic=topic,
        partition=partition,
        error=failure_to_proto(result.failure, address_of) if result.failure is not None else None,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        diverging_epoch=epoch_end_to_proto(result.diverging_epoch),
        preferred_read_replica=result.preferred_read_replica,
    )
    if result.batches:
        message.batches = bytes(result.batches)
    return message


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


def digest_query_from_proto(message: pb.DigestRangeRequest) -> DigestQuery:
    """Return the query.

    Raises:
        InvalidRequestError: an offset or a size is negative, or the range ends before it starts.
        InvalidTopicError: the topic name is not legal.
    """
    start = at_least(message.start_offset, 0, "start offset")
    return DigestQuery(
        partition_of(message),
        topic_id_of(message.topic_id),
        start,
        at_least(message.end_offset, start, "end offset"),
        at_least(message.max_bytes, 0, "max bytes"),
    )


def digest_answer_to_proto(answer: DigestAnswer, address_of: AddressOf = no_address) -> pb.DigestRangeResponse:
    """Return the message of a digest."""
    message = pb.DigestRangeResponse(
        first_offset=answer.first_offset,
        last_offset=answer.last_offset,
        record_count=answer.record_count,
        size_bytes=answer.size_bytes,
        leader_epochs=answer.leader_epochs,
        stored_crc32c=answer.stored_crc32c,
        content_crc32c=answer.content_crc32c,
        next_offset=answer.next_offset,
        log_start_offset=answer.log_start_offset,
        log_end_offset=answer.log_end_offset,
        high_watermark=answer.high_watermark,
    )
    if answer.failure is not None:
        message.error.CopyFrom(failure_to_proto(answer.failure, address_of))
    return message


def list_offsets_from_proto(message: pb.ListOffsetsRequest) -> tuple[list[OffsetQuery], Isolation]:
    """Return (queries, isolation).

    Raises:
        InvalidRequestError: a partition twice, an unknown kind of offset, a negative time.
        InvalidTopicError: a topic name is not legal.
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
    return queries, isolation_from_proto(message.isolation_level)


def list_offsets_to_proto(queries: Sequence[OffsetQuery], isolation: Isolation) -> pb.ListOffsetsRequest:
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
        isolation_level=_ISOLATION_TO_PROTO[isolation],
    )


def delete_records_from_proto(message: pb.DeleteRecordsRequest) -> list[DeleteRecordsQuery]:
    """Return the queries.

    Raises:
        InvalidRequestError: a partition twice, or a negative offset.
        InvalidTopicError: a topic name is not legal.
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
    """Return the message."""
    return pb.DeleteRecordsPartitionResult(
        topic=result.topic_partition.topic,
        partition=result.topic_partition.partition,
        error=failure_to_proto(result.failure, address_of) if result.failure is not None else None,
        low_watermark=result.low_watermark if result.failure is None else 0,
    )


def offset_answer_to_proto(answer: OffsetAnswer, address_of: AddressOf = no_address) -> pb.ListOffsetsPartitionResult:
    """Return the message."""
    return pb.ListOffsetsPartitionResult(
        topic=answer.topic_partition.topic,
        partition=answer.topic_partition.partition,
        error=failure_to_proto(answer.failure, address_of) if answer.failure is not None else None,
        offset=answer.offset,
        timestamp_ms=answer.timestamp_ms,
        leader_epoch=answer.leader_epoch,
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


def epoch_queries_from_proto(
    partitions: Sequence[pb.EpochPartition], limit: int = MAX_CLIENT_PARTITIONS
) -> list[EpochQuery]:
    """Return the queries of an epoch look-up, a client's or a follower's.

    Raises:
        InvalidRequestError: a partition twice, or too many.
        InvalidTopicError: a topic name is not legal.
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


def epoch_queries_to_proto(queries: Sequence[EpochQuery]) -> list[pb.EpochPartition]:
    """Return the messages."""
    return [
        pb.EpochPartition(
            topic=one.topic_partition.topic,
            partition=one.topic_partition.partition,
            leader_epoch=one.leader_epoch,
            current_leader_epoch=one.current_leader_epoch,
        )
        for one in queries
    ]


def epoch_answer_to_proto(answer: EpochAnswer, address_of: AddressOf = no_address) -> pb.EpochPartitionResult:
    """Return the message."""
    return pb.EpochPartitionResult(
        topic=answer.topic_partition.topic,
        partition=answer.topic_partition.partition,
        error=failure_to_proto(answer.failure, address_of) if answer.failure is not None else None,
        end=epoch_end_to_proto(answer.end),
    )


def epoch_answer_from_proto(message: pb.EpochPartitionResult) -> EpochAnswer:
    """Return the answer."""
    return EpochAnswer(
        TopicPartition(message.topic, message.partition),
        failure_from_proto(message),
        epoch_end_from_proto(message, "end"),
    )


def partition_replicas_to_proto(
    view: PartitionReplicasView, address_of: AddressOf = no_address
) -> metadata_service_pb2.PartitionReplicas:
    """Return the message of a leader's view of one partition."""
    topic, partition = view.topic_partition
    if view.failure is not None:
        return metadata_service_pb2.PartitionReplicas(
            topic=topic, partition=partition, error=failure_to_proto(view.failure, address_of)
        )
    return metadata_service_pb2.PartitionReplicas(
        topic=topic,
        partition=partition,
        leader=view.leader,
        leader_epoch=view.leader_epoch,
        leader_epoch_start_offset=view.leader_epoch_start_offset,
        high_watermark=view.high_watermark,
        log_start_offset=view.log_start_offset,
        isr=view.isr,
        maximal_isr=view.maximal_isr,
        replicas=[
            metadata_service_pb2.ReplicaProgress(
                broker_id=one.broker_id,
                log_end_offset=one.log_end_offset,
                log_start_offset=one.log_start_offset,
                last_caught_up_ago_ms=one.last_caught_up_ago_ms,
                last_fetch_ago_ms=one.last_fetch_ago_ms,
                in_sync=one.in_sync,
                high_watermark=one.high_watermark,
                lag_records=one.lag_records,
                broker_epoch=one.broker_epoch,
                online=one.online,
            )
            for one in view.replicas
        ],
        topic_id=view.topic_id or "",
        zk_version=view.zk_version,
        adding_replicas=view.adding_replicas,
        removing_replicas=view.removing_replicas,
        min_insync_replicas=view.min_insync_replicas,
        under_replicated=view.under_replicated,
        bytes_in=view.bytes_in,
        bytes_out=view.bytes_out,
    )


def partition_replicas_from_proto(message: metadata_service_pb2.PartitionReplicas) -> PartitionReplicasView:
    """Return a leader's view of one partition."""
    topic_partition = TopicPartition(message.topic, message.partition)
    failure = failure_from_proto(message)
    if failure is not None:
        return PartitionReplicasView(topic_partition, failure)
    return PartitionReplicasView(
        topic_partition,
        None,
        leader=message.leader,
        leader_epoch=message.leader_epoch,
        leader_epoch_start_offset=message.leader_epoch_start_offset,
        high_watermark=message.high_watermark,
        log_start_offset=message.log_start_offset,
        isr=tuple(message.isr),
        maximal_isr=tuple(message.maximal_isr),
        replicas=tuple(
            ReplicaProgressView(
                broker_id=one.broker_id,
                log_end_offset=_optional(one, "log_end_offset"),
                log_start_offset=_optional(one, "log_start_offset"),
                last_caught_up_ago_ms=_optional(one, "last_caught_up_ago_ms"),
                last_fetch_ago_ms=_optional(one, "last_fetch_ago_ms"),
                in_sync=one.in_sync,
                high_watermark=_optional(one, "high_watermark"),
                lag_records=_optional(one, "lag_records"),
                broker_epoch=_optional(one, "broker_epoch"),
                online=one.online,
            )
            for one in message.replicas
        ),
        topic_id=message.topic_id or None,
        zk_version=message.zk_version,
        adding_replicas=tuple(message.adding_replicas),
        removing_replicas=tuple(message.removing_replicas),
        min_insync_replicas=message.min_insync_replicas,
        under_replicated=message.under_replicated,
        bytes_in=message.bytes_in,
        bytes_out=message.bytes_out,
    )


def _optional(message: Any, field: str) -> int | None:
    return getattr(message, field) if message.HasField(field) else None
