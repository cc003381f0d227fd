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
