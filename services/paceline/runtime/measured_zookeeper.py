"""A ZooKeeper client that measures how long answers take."""

import time
from collections.abc import Callable, Sequence

from paceline.coordination.interface import Request, Response, SessionEvent, WatchEvent, ZooKeeper


class MeasuredZooKeeper:
    """Wraps a client and reports the seconds from each submit to its answer, waits for a connection included."""

    def __init__(self, inner: ZooKeeper, observe: Callable[[float], None]) -> None:
        self._inner = inner
        self._observe = observe

    @property
    def session_id(self) -> int:
        """Id of the current session, 0 before the first connection."""
        return self._inner.session_id

    @property
    def connected(self) -> bool:
        """Whether requests submitted now would be sent at once."""
        return self._inner.connected

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect, and keep connecting until closed."""
        self._inner.start(on_session, on_watch)

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        """Send requests, pipelined, and call back once with all responses."""
        begin = time.perf_counter()

        def measured(responses: list[Response]) -> None:
            self._observe(time.perf_counter() - begin)
            on_done(responses)

        self._inner.submit(requests, measured)

    def close(self) -> None:
        """End the session."""
        self._inner.close()
