"""Convert between the messages of GatewayService and the values of the pure modules."""

from collections.abc import Iterable
from typing import Any, Final

from paceline.gateway.values import (
    Assigned,
    Batch,
    Committed,
    Deliver,
    Effect,
    Refusal,
    Refused,
    Revoked,
)
from paceline.model.errors import PacelineError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition
from paceline.v1.errors_pb2 import PartitionError
from paceline.v1.gateway_service_pb2 import (
    AcknowledgementRefused,
    DeliveredRecords,
    PartitionsAssigned,
    PartitionsRevoked,
    Position,
    Positions,
    SubscribeResponse,
)
from paceline.v1.record_pb2 import Header, Record
from paceline_client import BufferExhaustedError, DeliveryFailedError, FetchedBatches

REFUSALS: Final[dict[Refusal, Any]] = {reason: reason.value for reason in Refusal}
"""Numbers of AcknowledgementError; the two lists have the same order."""


def batch_of(fetched: FetchedBatches) -> Batch:
    """Decode fetched batches.

    Raises:
        CorruptMessageError: a batch cannot be read.
    """
    records, offsets, sizes = [], [], []
    for one in fetched.records():
        key, value, timestamp = one.key, one.value, one.timestamp
        record = Record(key=key, value=value, timestamp_ms=timestamp, offset=one.offset)
        size = (len(key) if key else 0) + (len(value) if value else 0)
        for name, content in one.headers or ():
            record.headers.append(Header(key=name, value=content))
            size += len(name) + (len(content) if content else 0)
        records.append(record)
        offsets.append(one.offset)
        sizes.append(size)
    return Batch(records, offsets, sizes, fetched.next_offset, fetched.high_watermark, sum(sizes))


def position_of(topic_partition: TopicPartition, offset: int | None) -> Position:
    """Return a position; -1 for an offset that is not known."""
    topic, partition = topic_partition
    return Position(topic=topic, partition=partition, offset=-1 if offset is None else offset)


def delivered_records(topic_partition: TopicPartition, batch: Batch) -> DeliveredRecords:
    """Return the message of a delivered batch."""
    topic, partition = topic_partition
    return DeliveredRecords(
        topic=topic,
        partition=partition,
        records=batch.records,
        next=position_of(topic_partition, batch.next_offset),
        lag=max(0, batch.high_watermark - batch.next_offset),
    )


def committed_notice(positions: Iterable[tuple[TopicPartition, int]]) -> SubscribeResponse:
    """Return the notice of committed positions."""
    return SubscribeResponse(committed=Positions(positions=[position_of(tp, offset) for tp, offset in positions]))


def notice_of(effect: Effect) -> tuple[int, SubscribeResponse] | None:
    """Return the stream and the message of an effect; None for an effect that is not a message."""
    match effect:
        case Deliver(stream, tp, batch):
            return stream, SubscribeResponse(records=delivered_records(tp, batch))
        case Assigned(stream, tp, position):
            return stream, SubscribeResponse(assigned=PartitionsAssigned(positions=[position_of(tp, position)]))
        case Revoked(stream, tp, acknowledged, within_ms):
            revoked = PartitionsRevoked(positions=[position_of(tp, acknowledged)], acknowledge_within_ms=within_ms)
            return stream, SubscribeResponse(revoked=revoked)
        case Committed(stream, tp, position):
            return stream, committed_notice([(tp, position)])
        case Refused(stream, tp, position, reason, message):
            refused = AcknowledgementRefused(
                position=position_of(tp, position), error=REFUSALS[reason], message=message
            )
            return stream, SubscribeResponse(refused=refused)
    return None


def merged(earlier: SubscribeResponse, later: SubscribeResponse) -> bool:
    """Add a notice to an earlier one of the same kind that was not sent yet; return False for other messages."""
    kind = later.WhichOneof("event")
    if kind != earlier.WhichOneof("event") or kind not in ("assigned", "revoked", "committed"):
        return False
    if kind == "revoked" and earlier.revoked.acknowledge_within_ms != later.revoked.acknowledge_within_ms:
        return False
    getattr(earlier, kind).positions.extend(getattr(later, kind).positions)
    return True


def public_publish_error(error: PacelineError) -> PacelineError:
    """Return the error for a caller: the cause when the record was surely not appended, else a timeout."""
    if isinstance(error, DeliveryFailedError):
        if error.maybe_appended:
            return RequestTimedOutError(str(error))
        return error.cause
    if isinstance(error, BufferExhaustedError):
        return RequestTimedOutError(str(error))
    return error


def partition_error(error: PacelineError) -> PartitionError:
    """Return the message of an error of one record."""
    return PartitionError(code=error.code.value, message=str(error))  # type: ignore[arg-type]
