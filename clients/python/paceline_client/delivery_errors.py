"""Errors of records that were not delivered: the last cause, and whether the records may be in the log."""

from copy import copy

from paceline.model.errors import ErrorCode, PacelineError, RequestTimedOutError
from paceline_client.batch import ProducerBatch
from paceline_client.errors import DeliveryFailedError, ProducerClosedError
from paceline_client.partition_queue import PartitionQueue


def delivery_failed(queue: PartitionQueue, batch: ProducerBatch, timeout_ms: int) -> DeliveryFailedError:
    """Return the error of a batch whose delivery timeout expired, with the last cause."""
    cause = batch.last_error or queue.last_error or RequestTimedOutError("no broker has answered")
    return DeliveryFailedError(
        f"{batch.count} records of {batch.topic_partition} were not delivered within "
        f"{timeout_ms} ms and {batch.attempts} attempts: {in_words(cause)}",
        batch.topic_partition,
        cause,
        batch.may_be_in_log,
    )


def closed_before(queue: PartitionQueue, batch: ProducerBatch, error: ProducerClosedError) -> ProducerClosedError:
    """Return the error of a batch in a closed producer, with the reason why it was not delivered before."""
    cause = batch.last_error or queue.last_error
    unclear = "; it may be in the log" if batch.may_be_in_log else ""
    told = ProducerClosedError(f"{error}{unclear}{'' if cause is None else f'; {in_words(cause)}'}")
    told.__cause__ = cause
    return told


def with_doubt(batch: ProducerBatch, error: PacelineError) -> PacelineError:
    """Return ``error``, or a copy that is not definite if the batch may be in the log."""
    if not (batch.may_be_in_log and error.definite):
        return error
    unclear = copy(error)  # Other batches may have the same error.
    unclear.__cause__ = error.__cause__
    unclear.definite = False
    return unclear


def in_words(cause: PacelineError) -> str:
    """Return an error as text, with the name of its code unless that is UNKNOWN_SERVER_ERROR."""
    return str(cause) if cause.code is ErrorCode.UNKNOWN_SERVER_ERROR else f"{cause.code.name}: {cause}"
