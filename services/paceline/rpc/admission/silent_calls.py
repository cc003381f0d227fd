"""Limit the calls of a thread-pool server whose message has not arrived (docs/protocol/limits.md#silent-callers).

gRPC starts a handler on the headers of a call. A caller that sends nothing else would keep the handler's thread.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from paceline.rpc.admission.listener_limits import ListenerLimits

MAX_SILENT_CALLS: Final = 16
_LIMIT: Final = "control.silent.calls.max"


class SilentCalls:
    """Calls that wait for their message. Above the limit, cancels the oldest of the caller with most such calls.

    Args:
        listener: name of the listener.
        most: maximum number of waiting calls.
        limits: counts and logs the cancelled calls.
    """

    def __init__(self, listener: str, most: int, limits: ListenerLimits) -> None:
        self._listener = listener
        self._most = most
        self._limits = limits
        self._lock = threading.Lock()
        self._waiting: dict[Any, str] = {}
        """Callers by the contexts of their calls, oldest first."""

    @contextlib.contextmanager
    def waiting(self, caller: str, context: Any) -> Iterator[None]:
        """Count a call of this caller; its read fails when the call is cancelled in favour of another call."""
        surplus = None
        with self._lock:
            self._waiting[context] = caller
            if len(self._waiting) > self._most:
                ((crowd, _),) = Counter(self._waiting.values()).most_common(1)
                surplus = next(call for call, of in self._waiting.items() if of == crowd)
                del self._waiting[surplus]
            self._limits.used(self._listener, _LIMIT, len(self._waiting))
        if surplus is not None:
            surplus.cancel()
            self._limits.refuse(self._listener, _LIMIT, crowd, "cancelling a call whose message has not arrived")
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(context, None)
                self._limits.used(self._listener, _LIMIT, len(self._waiting))
