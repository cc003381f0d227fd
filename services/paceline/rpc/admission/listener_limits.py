"""Use and refusals of the limits of listeners, for metrics and the log. A limit has the name of its setting."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

LOG_INTERVAL_S: Final = 60.0
_MAX_CALLERS: Final = 1_000

LOG = logging.getLogger("paceline.rpc")

Observe = Callable[[str, str, int], None]
"""Called with listener, limit and a number."""


class ListenerLimits:
    """Reports use and refusals, and logs one line a minute for each limit and caller that is refused. Thread-safe.

    Args:
        used: called with the present use of a limit, in the unit of its setting.
        refused: called with the number of refusals.
        clock_s: the time in seconds.
    """

    def __init__(
        self,
        used: Observe = lambda *_: None,
        refused: Observe = lambda *_: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.observe_use = used
        self._refused = refused
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, str, str], tuple[float, int]] = {}
        """Time of the latest line, and refusals since, by listener, limit and caller."""

    def refuse(self, listener: str, limit: str, caller: str, effect: str, count: int = 1) -> None:
        """Count refusals of a caller, which is a principal or an address; ``effect`` is the text of the log line."""
        self._refused(listener, limit, count)
        key, now_s = (listener, limit, caller), self._clock_s()
        with self._lock:
            line_s, refused = self._lines.pop(key, (now_s - LOG_INTERVAL_S, 0))
            refused += count
            is_due = now_s - line_s >= LOG_INTERVAL_S
            self._lines[key] = (now_s, 0) if is_due else (line_s, refused)
            if len(self._lines) > _MAX_CALLERS:
                del self._lines[next(iter(self._lines))]
        if is_due:
            LOG.warning("%s: listener=%s limit=%s caller=%s count=%d", effect, listener, limit, caller, refused)
