"""One configured log directory: its path, its first storage error, and a callback for that error."""

from collections.abc import Callable

from paceline.model.errors import KafkaStorageError


class LogDirectory:
    """A log directory. It goes offline at its first storage error and stays offline until the process restarts."""

    __slots__ = ("_on_failure", "_write_recovery_points", "failure", "load_completed", "path")

    def __init__(
        self,
        path: str,
        on_failure: Callable[[str, Exception], None],
        write_recovery_points: Callable[["LogDirectory"], None],
    ) -> None:
        """Create an online directory.

        Args:
            path: path of the directory.
            on_failure: called with the path and the first storage error.
            write_recovery_points: writes the recovery point checkpoint of this directory.
        """
        self.path = path
        self.failure: Exception | None = None
        """The first storage error, ``None`` while the directory is online."""
        self.load_completed = False
        """Whether every log was loaded; otherwise a clean stop writes no clean-shutdown marker (KAFKA-15375)."""
        self._on_failure = on_failure
        self._write_recovery_points = write_recovery_points

    @property
    def is_offline(self) -> bool:
        """Whether a storage error took the directory offline."""
        return self.failure is not None

    def fail(self, error: Exception) -> None:
        """Take the directory offline and call the callback; later errors are ignored."""
        if self.failure is None:
            self.failure = error
            self._on_failure(self.path, error)

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery point checkpoint, after a truncation below a recovery point that it contains."""
        self._write_recovery_points(self)

    def check_online(self) -> None:
        """Check that the directory is online.

        Raises:
            KafkaStorageError: the directory is offline.
        """
        if self.failure is not None:
            raise KafkaStorageError(f"log directory {self.path} is offline: {self.failure}")
