"""`CleaningTask`: a cleaning in slices, each of which may run on another thread than the owner of the log."""

from collections.abc import Callable

from paceline.log.compaction.cleaner import CleanedSegment, Cleaner
from paceline.log.log_directory import LogDirectory
from paceline.model.errors import KafkaStorageError, PacelineError


class CleaningTask:
    """One cleaning of one log. `run` does the slow part and leaves its results in the attributes."""

    def __init__(self, cleaner: Cleaner, directory: LogDirectory, is_current: Callable[[], bool]) -> None:
        """``is_current`` says whether the log is still as it was when the cleaning began."""
        self._cleaner = cleaner
        self._directory = directory
        self._steps = cleaner.steps()
        self.is_current = is_current
        self.is_finished = False
        """Whether there is nothing left to do: the log is clean, or has changed in the meantime."""
        self.cleaned: CleanedSegment | None = None
        """A segment to put in place before the next `run`."""
        self.bytes_processed = 0
        """Bytes read and written by the last `run`."""

    @property
    def end_offset(self) -> int:
        """Offset up to which the log is clean when the task is finished."""
        return self._cleaner.end_offset

    def run(self, limit_bytes: int) -> None:
        """Read and write about ``limit_bytes``, less where a segment is ready to be put in place.

        Raises:
            KafkaStorageError: storage failed; the directory is offline.
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
                # The log was truncated or deleted meanwhile: missing and shorter files are expected.
                return
            if isinstance(error, PacelineError):
                raise
            self._directory.fail(error)
            raise KafkaStorageError(f"the log cannot be compacted: {error}") from error
