"""One configured log directory: its path, its first storage error with a callback for it, and the space of its disk."""

from collections.abc import Callable

from paceline.log.directory_space import DirectorySpace
from paceline.log.files import DiskSpace, is_no_room
from paceline.model.errors import KafkaStorageError, LogDirFullError


class LogDirectory:
    """A log directory. It goes offline at its first storage error and stays offline; `DirectoryRetry` creates another.

    A full disk is no storage error: the directory stays online and takes appends again when there is room.
    """

    def __init__(
        self,
        path: str,
        on_failure: Callable[[str, Exception], None],
        write_recovery_points: Callable[["LogDirectory"], None],
        measure: Callable[[str], DiskSpace] | None = None,
        min_free_bytes: int | None = None,
    ) -> None:
        """Create an online directory.

        Args:
            path: path of the directory.
            on_failure: called with the path and the first storage error.
            write_recovery_points: writes the recovery point checkpoint of this directory.
            measure: returns the space of the disk at a path; ``None`` leaves the directory without limit.
            min_free_bytes: see `DirectorySpace`.
        """
        self.path = path
        self.failure: Exception | None = None
        """The first storage error, ``None`` while the directory is online."""
        self.load_completed = False
        """Whether every log was loaded; otherwise a clean stop writes no clean-shutdown marker (KAFKA-15375)."""
        self.log_starts_durable = True
        """Whether the last write of the log start offsets found room."""
        self.space = DirectorySpace(path, min_free_bytes)
        self._on_failure = on_failure
        self._write_recovery_points = write_recovery_points
        self._measure = measure

    @property
    def is_offline(self) -> bool:
        """Whether a storage error took the directory offline."""
        return self.failure is not None

    def fail(self, error: Exception) -> None:
        """Take the directory offline and call the callback; later errors are ignored."""
        if self.failure is None:
            self.failure = error
            self._on_failure(self.path, error)

    def error_of(self, error: OSError, subject: object) -> KafkaStorageError:
        """Return the error for the caller of a file operation that failed, with ``subject`` in its text.

        The directory goes offline, unless the operation only found no room: then the directory is FULL.
        """
        if is_no_room(error):
            self.space.note_no_room()
            return LogDirFullError(f"{subject}: {error}; {self.space.description()}")
        self.fail(error)
        return KafkaStorageError(f"{subject}: {error}")

    def note_append(self, size: int) -> None:
        """Count appended bytes, and measure the free space when they may have changed the state."""
        if self.space.note_append(size):
            self.measure_space()

    def measure_space(self, now_ms: int | None = None) -> None:
        """Measure the free space; see `DirectorySpace.measured`. A disk that does not answer keeps its last state."""
        if self._measure is None or self.is_offline:
            return
        try:
            self.space.measured(self._measure(self.path), now_ms)
        except OSError:
            return

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
