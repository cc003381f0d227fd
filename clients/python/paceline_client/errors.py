"""Errors that the client itself raises, in addition to the server errors of `paceline.model.errors`.

Every class is a `PacelineError`, so that ``except PacelineError`` catches all errors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

from paceline.model.errors import ErrorCode, InvalidRequestError, PacelineError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition


class ClientClosedError(PacelineError):
    """The producer, consumer or admin client was closed."""

    code = ErrorCode.INVALID_REQUEST


class ProducerClosedError(ClientClosedError):
    """`Producer.close` was called. Records without a result when the timeout of `close` expires get this error too.

    ``definite`` is False if the record may be in the log.
    """


class BufferExhaustedError(RequestTimedOutError):
    """``buffer_memory`` stayed full for ``max_block_ms``; the record was not accepted."""

    definite = True


class BootstrapError(PacelineError):
    """No bootstrap address responded in time; the message has the cause for each address."""

    code = ErrorCode.BROKER_NOT_AVAILABLE
    retriable = True


class NoConnectionError(BootstrapError):
    """No bootstrap address accepted a connection within the ``connect_timeout_ms`` of an admin client."""

    retriable = False


class ProducerFatalError(PacelineError):
    """The producer cannot continue without the risk of duplicates or gaps; close it and create a new producer.

    ``cause`` is the broker's error: another producer uses this producer id with a newer epoch. None after an internal
    error of the sender. ``definite`` is False if the record may be in the log; after an internal error it is always
    False.
    """

    code = ErrorCode.INVALID_PRODUCER_EPOCH

    def __init__(self, message: str, cause: PacelineError | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.definite = cause is not None
        self.__cause__ = cause


class DeliveryFailedError(PacelineError):
    """A record was not delivered within ``delivery_timeout_ms``.

    ``cause`` is the last error other than a timeout, or a timeout if there was no other error; the message names the
    broker that returned the error. ``maybe_appended`` is True if the result of an attempt is unknown, so that the
    record may be in the log; ``definite`` is the opposite.
    """

    def __init__(
        self, message: str, topic_partition: TopicPartition, cause: PacelineError, maybe_appended: bool
    ) -> None:
        super().__init__(message)
        self.topic_partition = topic_partition
        self.cause = cause
        self.maybe_appended = maybe_appended
        self.definite = not maybe_appended
        self.__cause__ = cause


class LogTruncatedError(PacelineError):
    """Records that the consumer had read were truncated, for example after an unclean election.

    The error is raised once; the position is now ``divergent_offset``, where the next poll continues.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, topic_partition: TopicPartition, position: int, divergent_offset: int) -> None:
        super().__init__(
            f"{topic_partition}: the log was truncated; the consumer was at offset {position}, "
            f"the log is the same only below offset {divergent_offset}"
        )
        self.topic_partition = topic_partition
        self.position = position
        self.divergent_offset = divergent_offset


class CommitFailedError(PacelineError):
    """The commit was refused: the group has rebalanced, and other members may own the partitions.

    ``definite`` is False if an earlier attempt of the commit may have been applied.
    """

    code = ErrorCode.ILLEGAL_GENERATION


class NoOffsetError(PacelineError):
    """The position is out of range or was never set, and ``auto_offset_reset`` is "error"."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, topic_partition: TopicPartition, message: str) -> None:
        super().__init__(f"{topic_partition}: {message}")
        self.topic_partition = topic_partition


@contextmanager
def sendable(what: str = "request") -> Iterator[None]:
    """Convert a ValueError or OverflowError raised while a request or record is built to InvalidRequestError.

    Raises:
        InvalidRequestError: a number is out of the range of its field, or a text is not Unicode; nothing was sent.
    """
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"the {what} cannot be sent: {error}") from error


def nothing_sent(error: PacelineError) -> PacelineError:
    """Return a copy of ``error`` that is definite, for a record that was refused before it was sent."""
    certain = copy(error)  # Other calls may have the same error.
    certain.definite = True
    return certain
