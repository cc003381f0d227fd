"""A ZooKeeper client that measures response times."""

import time
from collections.abc import Callable, Sequence

from paceline.coordination.interface import Request, Response, SessionEvent, SessionState, WatchEvent, ZooKeeper


class MeasuredZooKeeper:
    """Wraps a client and reports the seconds from each submit to its answer, including waits for a connection."""

    def __init__(self, inner: ZooKeeper, observe: Callable[[float], None]) -> None:
        self._inner = inner
        self._observe = observe
        self.session_state = SessionState.DISCONNECTED
        self.session_events = dict.fromkeys(SessionState, 0)
        """Number of times that the session entered each state."""

    @property
    def session_id(self) -> int:
        """Id of the current session, 0 before the first connection."""
        return self._inner.session_id

    @property
    def connected(self) -> bool:
        """Whether requests submitted now would be sent at once."""
        return self._inner.connected

    @property
    def session_may_be_over(self) -> bool:
        """Whether the server may have ended the session by now."""
        return self._inner.session_may_be_over

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect, and keep connecting until closed."""

        def counted(event: SessionEvent) -> None:
            self.session_state = event.state
            self.session_events[event.state] += 1
            on_session(event)

        self._inner.start(counted, on_watch)

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

    def families(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Return the session's metrics as label families of `runtime.metrics`."""
        return {
            "zk_session_state": {(state.name.lower(),): float(state is self.session_state) for state in SessionState},
            "zk_session_events_total": {
                (state.name.lower(),): float(count) for state, count in self.session_events.items()
            },
        }
