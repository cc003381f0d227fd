"""Convert errors of file operations into the errors of the log's interface."""

from types import TracebackType

from paceline.log.damage import DamagedLogError
from paceline.log.files import NO_DESCRIPTOR
from paceline.log.log_directory import LogDirectory
from paceline.model.errors import CorruptMessageError, KafkaStorageError, ThrottledError
from paceline.model.identifiers import TopicPartition


class StorageErrors:
    """A context manager for file operations of one log.

    An OSError takes the log directory offline and becomes KafkaStorageError, but the error of a full disk becomes
    LogDirFullError. A CorruptMessageError becomes DamagedLogError: inside the context it can only mean that bytes of
    the log itself are damaged.
    """

    __slots__ = ("_directory", "_in_steps", "_only_reads", "_topic_partition")

    def __init__(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        *,
        only_reads: bool = False,
        in_steps: bool = False,
    ) -> None:
        """Create the context.

        Args:
            directory: log directory of the log.
            topic_partition: partition of the log.
            only_reads: running out of file descriptors raises ThrottledError and keeps the directory online.
            in_steps: an operation that fails may be half done, so that even a full disk takes the directory offline.
        """
        self._directory = directory
        self._topic_partition = topic_partition
        self._only_reads = only_reads
        self._in_steps = in_steps

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            return
        if isinstance(error, CorruptMessageError):
            raise DamagedLogError(f"the log of {self._topic_partition} is damaged: {error}") from error
        if isinstance(error, OSError):
            if self._only_reads and error.errno in NO_DESCRIPTOR:
                raise ThrottledError(f"{self._topic_partition}: {error}") from error
            if self._in_steps:
                self._directory.fail(error)
                raise KafkaStorageError(f"{self._topic_partition}: {error}") from error
            raise self._directory.error_of(error, self._topic_partition) from error
