"""Daemon threads for blocking calls, as many as calls in flight.

gRPC's own futures start a thread whenever the channel has no call in flight, so that a producer with single records
started a thread per record: 0.2 ms and a page fault each. A blocking call on a kept thread costs half
(docs/decisions/0008).
"""

import queue
import threading
import time
from collections.abc import Callable


class CallThreads:
    """Runs work immediately, on an idle thread or a new thread; the caller limits the number of calls in flight."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._free = 0
        self._closed = False

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
        """End every thread after its current work; closing the channel aborts a call in flight."""
        with self._lock:
            self._closed = True
            count = len(self._threads)
        for _ in range(count):
            self._work.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for every thread to end; first call `close`, and close the channels."""
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # it references the bytes of a request
            with self._lock:
                if self._closed:
                    return
                self._free += 1
