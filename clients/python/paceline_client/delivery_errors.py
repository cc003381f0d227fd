"""What is told of records that were not delivered: the last real cause, and whether they may be in the log."""

from paceline.model.errors import ErrorCode, PacelineError, RequestTimedOutError
from paceline_client.batch import ProducerBatch
from paceline_client.errors import DeliveryFailedError, ProducerClosedError
from paceline_client.partition_queue import PartitionQueue


def delivery_failed(queue: PartitionQueue, batch: ProducerBatch, timeout_ms: int) -> DeliveryFailedError:
    """Return the error of a batch whose time is over, with the last real cause."""
    cause = batch.last_error or queue.last_error or RequestTimedOutError("no broker answered yet")
    return DeliveryFailedError(
        f"{batch.count} records of {batch.topic_partition} were not delivered within "
        f"{timeout_ms} ms and {batch.attempts} attempts: {in_words(cause)}",
        batch.topic_partition,
        cause,
        batch.maybe_appended or batch.on_wire,
    )


def closed_before(queue: PartitionQueue, batch: ProducerBatch, error: ProducerClosedError) -> ProducerClosedError:
    """Return the error of a producer that was closed with what has kept this batch from its log until then."""
    cause = batch.last_error or queue.last_error
    unclear = "; it may be in the log" if batch.maybe_appended or batch.on_wire else ""
    told = ProducerClosedError(f"{error}{unclear}{'' if cause is None else f'; {in_words(cause)}'}")
    told.__cause__ = cause
    return told


def in_words(cause: PacelineError) -> str:
    """Return an error with the name of its code, where that says something."""
    return str(cause) if cause.code is ErrorCode.UNKNOWN_SERVER_ERROR else f"{cause.code.name}: {cause}"
