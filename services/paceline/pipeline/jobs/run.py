"""Types that all jobs share: a result with an exit code, and a listener for progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from paceline.model.errors import ErrorCode, PacelineError


class ExitCode(IntEnum):
    """Exit code of ``paceline pipeline``."""

    OK = 0
    FAILURE = 1
    NEGATIVE_VERDICT = 3
    """The job ran and its result is negative, such as a difference or a missing module."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """Result of a job."""

    exit_code: ExitCode
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Names and values for the summary at the end of the output."""


class JobFailedError(PacelineError):
    """A job failed; the message names the step and the cause."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class JobListener(Protocol):
    """Receives the progress of a job."""

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        """Record the end of a step; ``facts`` are its details."""


class SilentListener:
    """Ignores every step."""

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        """Do nothing."""
