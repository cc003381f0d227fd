"""What can go wrong in a Spark job over Paceline, beside the errors of the brokers themselves.

Spark shows only the class name and the message of a Python error, so the message carries the advice.
"""

from paceline.model.errors import ErrorCode, InvalidConfigError, OffsetOutOfRangeError, PacelineError


class InvalidOptionError(InvalidConfigError):
    """An option of the data source is unknown, refused, or contradicts another one."""


class DataLossError(OffsetOutOfRangeError):
    """Records that the query asked for are not in the log any more, and ``failOnDataLoss`` is true."""


class UnsupportedOperationError(PacelineError):
    """The data source does not offer this way of reading or writing."""

    code = ErrorCode.INVALID_REQUEST


class InvalidRowError(PacelineError):
    """A row cannot be written: it has no topic, a partition that does not exist, or is too large."""

    code = ErrorCode.INVALID_REQUEST


class PublishFencedError(PacelineError):
    """A later batch of the same query has been published; this driver is an old one and must stop."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class StagedDataLostError(PacelineError):
    """Batches that a decision names are not in the staging topic any more, so the publish cannot be completed."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE
