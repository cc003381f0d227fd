"""`CleaningTask`: a cleaning in slices; each slice may run on another thread than the log's owner."""

from collections.abc import Callable

from paceline.log.compaction.cleaner import CleanedSegment, Cleaner
from paceline.log.log_directory import LogDirectory
from paceline.model.errors import PacelineError


class CleaningTask:
    """One cleaning of one log. `run` reads and writes files and stores its results in the attributes."""

    def __init__(self, cleaner: Cleaner, directory: LogDirectory, is_current: Callable[[], bool]) -> None:
        """``is_current`` returns whether the log was neither closed nor truncated since the cleaning began."""
        self._cleaner = cleaner
        self._directory = directory
        self._steps = cleaner.steps()
        self.is_current = is_current
        self.is_finished = False
        """Whether the cleaning has ended: the range is clean, the log was closed or truncated, or an error occurred."""
        self.cleaned: CleanedSegment | None = None
        """Segment that the owner must put in place before the next `run`, ``None`` when there is none."""
        self.bytes_processed = 0
        """Bytes read and written by the last `run`."""

    @property
    def end_offset(self) -> int:
        """Exclusive end of the clean part of the log when the task is finished."""
        return self._cleaner.end_offset

    def run(self, limit_bytes: int) -> None:
        """Read and write about ``limit_bytes``; stop earlier when a segment is ready to be put in place.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
            LogDirFullError: the disk is full; the half-written segment was removed.
            PacelineError: a batch cannot be read.
        """
        self.cleaned = None
        self.bytes_processed = 0
        try:
            while self.bytes_processed < limit_bytes and self.cleaned is None:
                step = next(self._steps, None) if self.is_current() else None
                if step is None:
                    self.is_finished = True
                    return
                if isinstance(step, CleanedSegment):
                    self.cleaned = step
                else:
                    self.bytes_processed += step
        except (OSError, PacelineError) as error:
            self.is_finished = True
            if not self.is_current():
                # The log was truncated or deleted during the cleaning, so files may be missing or shorter.
                return
            if isinstance(error, PacelineError):
                raise
            raise self._directory.error_of(error, "the log cannot be compacted") from error
