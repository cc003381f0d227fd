"""Turn the errors of a log's files into the errors that its callers know."""

from types import TracebackType

from paceline.log.damage import DamagedLogError
from paceline.log.files import NO_DESCRIPTOR
from paceline.log.log_directory import LogDirectory
from paceline.model.errors import CorruptMessageError, KafkaStorageError, ThrottledError
from paceline.model.identifiers import TopicPartition


class StorageErrors:
    """A context manager around file operations of one log.

    An OSError takes the directory offline and becomes KafkaStorageError; a CorruptMessageError, which here can only be
    about bytes that the log itself holds, becomes DamagedLogError.
    """

    __slots__ = ("_directory", "_only_reads", "_topic_partition")

    def __init__(self, directory: LogDirectory, topic_partition: TopicPartition, *, only_reads: bool = False) -> None:
        """``only_reads``: a process without file descriptors gets ThrottledError, and its directory stays online."""
        self._directory = directory
        self._topic_partition = topic_partition
        self._only_reads = only_reads

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
            self._directory.fail(error)
            raise KafkaStorageError(f"{self._topic_partition}: {error}") from error
