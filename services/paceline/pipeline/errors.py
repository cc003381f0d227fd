"""Errors of Spark jobs, in addition to the errors of brokers.

Spark shows only the class name and the message of a Python error, so the message carries the advice.
"""

from paceline.model.errors import ErrorCode, InvalidConfigError, OffsetOutOfRangeError, PacelineError


class InvalidOptionError(InvalidConfigError):
    """An option of the data source is unknown, refused, or contradicts another option."""


class DataLossError(OffsetOutOfRangeError):
    """Requested records are no longer in the log, and ``failOnDataLoss`` is true."""


class UnsupportedOperationError(PacelineError):
    """The data source does not support this kind of read or write."""

    code = ErrorCode.INVALID_REQUEST


class InvalidRowError(PacelineError):
    """A row cannot be written: its topic is missing, its partition does not exist, or it is too large."""

    code = ErrorCode.INVALID_REQUEST


class PublishFencedError(PacelineError):
    """A later batch of the same query has been published; this driver is outdated and must stop."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class StagedDataLostError(PacelineError):
    """Batches of a decision were deleted from the staging topic, so the publish cannot be completed."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE
