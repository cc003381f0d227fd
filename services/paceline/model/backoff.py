"""Compute pauses between attempts; services, clients and the cores that schedule retries use the same rule."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from paceline.model.scheduler import Cancellable, Scheduler


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow with every failed attempt, up to a limit."""

    initial_backoff_ms: float = 100
    max_backoff_ms: float = 1_000
    multiplier: float = 2.0
    jitter: float = 0.2
    """Random part of the pause: 0.2 gives 80 % to 120 %, so that callers do not retry at the same moment."""

    def __post_init__(self) -> None:
        if self.initial_backoff_ms < 0 or self.max_backoff_ms < self.initial_backoff_ms or self.multiplier < 1:
            raise ValueError("0 <= initial_backoff_ms <= max_backoff_ms and multiplier >= 1 must hold")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter is a fraction")

    def backoff_ms(self, attempt: int, rng: random.Random | None = None) -> float:
        """Return the pause after failed attempt ``attempt``, counted from 1; without ``rng`` there is no jitter."""
        exponent = min(attempt - 1, 62)
        pause = min(self.initial_backoff_ms * self.multiplier**exponent, float(self.max_backoff_ms))
        return pause if rng is None else pause * (1 + self.jitter * (2 * rng.random() - 1))


BACKOFF: Final = Backoff()


class Retries:
    """Schedules the attempts of a task after growing pauses, from a tenth of a second to about a second."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self.failures = 0
        """Attempts that failed since the last success."""

    def schedule(self, attempt: Callable[[], None]) -> Cancellable:
        """Call ``attempt`` after a pause, because the previous attempt has failed."""
        self.failures += 1
        return self._scheduler.call_later(BACKOFF.backoff_ms(self.failures, self._rng), attempt)

    def reset(self) -> None:
        """Begin with the shortest pause again, because an attempt has succeeded."""
        self.failures = 0
