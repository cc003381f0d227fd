"""Limit the calls of a thread-pool server whose message has not arrived (docs/protocol/limits.md#silent-callers).

gRPC starts a handler on the headers of a call. A caller that sends nothing else would keep the handler's thread.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from paceline.rpc.admission.listener_limits import ListenerLimits

MAX_SILENT_CALLS: Final = 16
GRACE_S: Final = 0.1
"""Age below which no call is cancelled: gRPC delivers the messages of many honest calls after the headers of all."""
_LIMIT: Final = "control.silent.calls.max"


class SilentCalls:
    """Calls that wait for their message. Above the limit, cancels the oldest of the caller with most such calls.

    Args:
        listener: name of the listener.
        most: maximum number of waiting calls.
        limits: counts and logs the cancelled calls.
        grace_s: age below which no call is cancelled, in seconds; a further call waits until a call has this age.
    """

    def __init__(self, listener: str, most: int, limits: ListenerLimits, grace_s: float = GRACE_S) -> None:
        self._listener = listener
        self._most = most
        self._limits = limits
        self._grace_s = grace_s
        self._changed = threading.Condition()
        self._waiting: dict[Any, tuple[str, float]] = {}
        """Callers and begin by the contexts of their calls, oldest first."""

    @contextlib.contextmanager
    def waiting(self, caller: str, context: Any) -> Iterator[None]:
        """Count a call of this caller; its read fails when the call is cancelled in favour of another call."""
        surplus, crowd = None, ""
        with self._changed:
            self._waiting[context] = caller, time.monotonic()
            self._report()
            while len(self._waiting) > self._most and context in self._waiting:
                ((crowd, _),) = Counter(of for of, _ in self._waiting.values()).most_common(1)
                oldest, begin_s = next((call, begin_s) for call, (of, begin_s) in self._waiting.items() if of == crowd)
                left_s = begin_s + self._grace_s - time.monotonic()
                if left_s <= 0:
                    del self._waiting[oldest]
                    surplus = oldest
                    break
                self._changed.wait(left_s)
        if surplus is not None:
            surplus.cancel()
            self._limits.refuse(self._listener, _LIMIT, crowd, "cancelling a call whose message has not arrived")
        try:
            yield
        finally:
            with self._changed:
                self._waiting.pop(context, None)
                self._report()
                self._changed.notify_all()

    def _report(self) -> None:
        self._limits.observe_use(self._listener, _LIMIT, min(len(self._waiting), self._most))
