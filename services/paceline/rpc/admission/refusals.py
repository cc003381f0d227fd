"""Count what the limits of listeners refuse, and log it: per limit and caller one line a minute."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

LOG_INTERVAL_S: Final = 60.0
_MAX_CALLERS: Final = 1_000

LOG = logging.getLogger("paceline.rpc")


class Refusals:
    """Refusals by listener and limit since the start; a limit has the name of its setting. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, str, str], tuple[float, int]] = {}
        """Time of the latest line, and refusals since, by listener, limit and caller."""
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, listener: str, limit: str, caller: str, effect: str, count: int = 1) -> None:
        """Count refusals of a caller (principal or address); ``effect`` tells the operator what happens to them."""
        key, now_s = (listener, limit, caller), self._clock_s()
        with self._lock:
            self.counts[listener, limit] += count
            logged_s, pending = self._pending.pop(key, (now_s - LOG_INTERVAL_S, 0))
            is_due = now_s - logged_s >= LOG_INTERVAL_S
            self._pending[key] = (now_s, 0) if is_due else (logged_s, pending + count)
            if len(self._pending) > _MAX_CALLERS:
                del self._pending[next(iter(self._pending))]
        if is_due:
            LOG.warning("%s: listener=%s limit=%s caller=%s count=%d", effect, listener, limit, caller, pending + count)
