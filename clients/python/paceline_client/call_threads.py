"""Daemon threads that make blocking calls, as many as are under way at once.

gRPC's own future starts a thread whenever none of the channel's calls is under way, so a producer that sends one
record at a time started a thread per record: 0.2 ms and a page fault each. A blocking call on a thread that stays
costs half (docs/decisions/0008).
"""

import queue
import threading
import time
from collections.abc import Callable


class CallThreads:
    """Runs work at once, on a thread that is free or a new one; the user limits how much is under way."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
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
                name = f"{self._name}-{len(self._threads) + 1}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
        self._work.put(work)

    def close(self) -> None:
        """Let every thread end when its present work is done; closing the channel ends a call under way."""
        with self._lock:
            self._closed = True
            count = len(self._threads)
        for _ in range(count):
            self._work.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for at most ``timeout_s`` until every thread has ended; call `close` first, and close the channels."""
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # it holds a request's bytes
            with self._lock:
                if self._closed:
                    return
                self._free += 1
