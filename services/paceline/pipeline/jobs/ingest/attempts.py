"""Repeat a batch that failed, and find the cause in an error of Spark."""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from paceline.model.errors import InvalidConfigError, PacelineError
from paceline.pipeline.errors import DataLossError
from paceline.pipeline.jobs.ingest.config import IngestConfig
from paceline.pipeline.jobs.ingest.delta_table import CommitConflictError
from paceline.pipeline.jobs.run import JobFailedError, JobListener
from paceline.rpc.retry import RetryPolicy, call_with_retry

PAUSE: Final = RetryPolicy(initial_backoff_ms=500, max_backoff_ms=30_000, deadline_ms=None, max_attempts=1 << 62)

T = TypeVar("T")


def repeated(config: IngestConfig, listener: JobListener, stop: threading.Event, action: Callable[[], T]) -> T | None:
    """Repeat a call until it succeeds; return None once ``stop`` is set.

    A continuous run retries forever, another run up to its number of attempts.

    Raises:
        DataLossError: records were deleted before they were copied.
        PacelineError: the error of the last attempt.
        JobFailedError: the last attempt failed in Spark.
    """
    policy = PAUSE if config.continuous else RetryPolicy(500, 5_000, deadline_ms=None, max_attempts=config.attempts)

    def attempt(_: float | None) -> T | None:
        return None if stop.is_set() else action()

    def tell(error: BaseException, pause_s: float) -> None:
        listener.step("paused", {"seconds": pause_s, "because": first_line(error)})

    try:
        return call_with_retry(policy, attempt, should_retry=may_pass, is_over=stop.is_set, on_retry=tell, wake=stop)
    except Exception as error:
        if is_data_loss(error):
            # The message advises the option of the data source, or comes from a task.
            raise DataLossError(f"{first_line(error)}: --allow-data-loss") from error
        if isinstance(error, PacelineError | OSError):
            raise
        raise JobFailedError(first_line(error)) from error


def may_pass(error: BaseException) -> bool:
    """Return whether another attempt of a batch may succeed; not after data loss, a wrong setting or a bug.

    Not after a conflict either: two drivers of one table would take turns, and count the rows of each other.
    """
    if isinstance(error, InvalidConfigError | CommitConflictError | KeyboardInterrupt) or is_data_loss(error):
        return False
    return isinstance(error, Exception) and not isinstance(error, AssertionError | TypeError)


def is_data_loss(error: BaseException) -> bool:
    """Return whether records were deleted; an error of a task has only the name of the class in its text."""
    return isinstance(error, DataLossError) or "DataLossError" in str(error)


def first_line(error: BaseException) -> str:
    """Return the line of an error with its message: for a Python error in a task, the last line of its traceback."""
    if isinstance(error, PacelineError):
        return f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line and not line.startswith(("File", "at "))]
    return f"{type(error).__name__}: {(named or lines or [''])[-1 if named else 0]}"
