"""What the client itself may raise, beside the errors of `paceline.model.errors` that servers send.

Every class here is a `PacelineError` too, so ``except PacelineError`` catches all there is.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.model.errors import ErrorCode, InvalidRequestError, PacelineError, RequestTimedOutError
from paceline.model.identifiers import TopicPartition


class ClientClosedError(PacelineError):
    """The producer, consumer or admin client was closed."""

    code = ErrorCode.INVALID_REQUEST


class ProducerClosedError(ClientClosedError):
    """`Producer.close` was called; records that were still waiting carry this error too."""


class BufferExhaustedError(RequestTimedOutError):
    """``buffer_memory`` stayed full for ``max_block_ms``; the record was not accepted."""

    definite = True


class BootstrapError(PacelineError):
    """None of the bootstrap addresses answered, or they cannot be parsed; the message has each one's cause."""

    code = ErrorCode.BROKER_NOT_AVAILABLE
    retriable = True


class ProducerFatalError(PacelineError):
    """The producer cannot go on without risking duplicates or holes; close it and make a new one.

    ``cause`` is what the broker said: a sequence that cannot be continued, or a newer producer epoch.
    """

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def __init__(self, message: str, cause: PacelineError | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.__cause__ = cause


class DeliveryFailedError(PacelineError):
    """A record was not delivered within ``delivery_timeout_ms``.

    ``cause`` is the last real cause, never a mere "timed out" when more is known; the message names the broker that
    gave it. ``maybe_appended`` is True when some attempt's outcome is unknown, so the record may be in the log.
    """

    def __init__(
        self, message: str, topic_partition: TopicPartition, cause: PacelineError, maybe_appended: bool
    ) -> None:
        super().__init__(message)
        self.topic_partition = topic_partition
        self.cause = cause
        self.maybe_appended = maybe_appended
        self.__cause__ = cause


class LogTruncatedError(PacelineError):
    """Records the consumer had read were removed from the log by an unclean election.

    The consumer's position is now ``divergent_offset``; reading goes on from there after this was raised once.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, topic_partition: TopicPartition, position: int, divergent_offset: int) -> None:
        super().__init__(
            f"{topic_partition}: the log was truncated; the consumer was at offset {position}, "
            f"the log agrees with it only below offset {divergent_offset}"
        )
        self.topic_partition = topic_partition
        self.position = position
        self.divergent_offset = divergent_offset


class CommitFailedError(PacelineError):
    """Offsets were not committed: the group has rebalanced, and other members may own the partitions."""

    code = ErrorCode.ILLEGAL_GENERATION


class NoOffsetError(PacelineError):
    """The position is out of range or was never set, and ``auto_offset_reset`` is "error"."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, topic_partition: TopicPartition, message: str) -> None:
        super().__init__(f"{topic_partition}: {message}")
        self.topic_partition = topic_partition


@contextmanager
def sendable(what: str = "request") -> Iterator[None]:
    """Around the making of a request or record: what a field cannot hold is the caller's mistake; nothing was sent.

    Raises:
        InvalidRequestError: a number beyond its field, or a text that is not Unicode.
    """
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"the {what} cannot be sent: {error}") from error
