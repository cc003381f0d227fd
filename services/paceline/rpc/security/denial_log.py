"""Write the denial log: one JSON object per denied call, at a limited rate for each principal."""

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

LOGGER: Final = "paceline.denials"
BURST: Final = 50
LINES_PER_S: Final = 1.0
_MAX_PRINCIPALS: Final = 1_000

LOG = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class Denial:
    """One denied call."""

    principal: str
    uri: str
    peer: str
    listener: str
    method: str
    reason: str


@dataclass(slots=True)
class _Budget:
    lines: float
    at_s: float
    suppressed: int = 0


class DenialLog:
    """Writes denials: per principal at most ``BURST`` lines at once, and ``LINES_PER_S`` lines a second on average.

    Each line has the number of denials suppressed since the principal's previous line.
    """

    def __init__(
        self, write: Callable[[str], None] = LOG.warning, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def put(self, denial: Denial) -> None:
        """Write a denial, or count it as suppressed while its principal is over the limit."""
        now_s = self._clock_s()
        with self._lock:
            budget = self._budgets.pop(denial.principal, None) or _Budget(BURST, now_s)
            self._budgets[denial.principal] = budget
            if len(self._budgets) > _MAX_PRINCIPALS:
                self._budgets.popitem(last=False)
            budget.lines = min(BURST, budget.lines + (now_s - budget.at_s) * LINES_PER_S)
            budget.at_s = now_s
            if budget.lines < 1:
                budget.suppressed += 1
                return
            budget.lines -= 1
            suppressed, budget.suppressed = budget.suppressed, 0
        # Pass one argument only, so that logging does not interpret a percent sign in the caller's text as a format.
        self._write(json.dumps({"event": "denied", **asdict(denial), "suppressed": suppressed}))
