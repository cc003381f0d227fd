"""What jobs have in common: a result with an exit code, and a listener for their steps."""

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
    """The job ran, and found what it looks for."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended."""

    exit_code: ExitCode
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Names and figures for the last lines of the output."""


class JobFailedError(PacelineError):
    """A job could not do its work; the message says which step failed and why."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class JobListener(Protocol):
    """Receives the steps of a running job."""

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        """Note that a step has ended; ``facts`` holds what is known about it."""


class SilentListener:
    """Ignores every step."""

    def step(self, name: str, facts: Mapping[str, Any]) -> None:
        """Do nothing."""
