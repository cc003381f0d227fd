"""Daemon threads that make blocking calls, as many as are under way at once.

gRPC's own future starts a thread whenever none of the channel's calls is under way, so a producer that sends one
record at a time started a thread per record: 0.2 ms and a page fault each. A blocking call on a thread that stays
costs half (docs/decisions/0008).
"""

import queue
import threading
from collections.abc import Callable


class CallThreads:
    """Runs work at once, on a thread that is free or a new one; the user limits how much is under way."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = 0
        self._free = 0
        self._closed = False

    @property
    def free(self) -> int:
        """How many threads wait for work."""
        return self._free

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work``, which must not raise."""
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                self._count += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._count}", daemon=True).start()
        self._work.put(work)

    def close(self) -> None:
        """Let every thread end when its present work is done; closing the channel ends a call under way."""
        with self._lock:
            self._closed = True
            count = self._count
        for _ in range(count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # it holds a request's bytes
            with self._lock:
                if self._closed:
                    return
                self._free += 1
