"""A ZooKeeper client that measures response times."""

import time
from collections.abc import Callable, Sequence

from paceline.coordination.interface import Request, Response, SessionEvent, SessionState, WatchEvent, ZooKeeper
from paceline.coordination.patient_zookeeper import WrappedZooKeeper


class MeasuredZooKeeper(WrappedZooKeeper):
    """Wraps a client and reports the seconds from each submit to its answer, including waits for a connection."""

    def __init__(self, inner: ZooKeeper, observe: Callable[[float], None]) -> None:
        super().__init__(inner)
        self._observe = observe
        self.session_state = SessionState.DISCONNECTED
        self._since_s = time.monotonic()
        self.session_events = dict.fromkeys(SessionState, 0)
        """Number of times that the session entered each state."""

    def start(self, on_session: Callable[[SessionEvent], None], on_watch: Callable[[WatchEvent], None]) -> None:
        """Connect, and count the states of the session."""

        def counted(event: SessionEvent) -> None:
            if event.state is not self.session_state:
                self._since_s = time.monotonic()
            self.session_state = event.state
            self.session_events[event.state] += 1
            on_session(event)

        super().start(counted, on_watch)

    @property
    def state_ms(self) -> int:
        """Time for which the session has been in its present state."""
        return int((time.monotonic() - self._since_s) * 1000)

    def submit(self, requests: Sequence[Request], on_done: Callable[[list[Response]], None]) -> None:
        """Send requests, pipelined, and call back once with all responses."""
        begin = time.perf_counter()

        def measured(responses: list[Response]) -> None:
            self._observe(time.perf_counter() - begin)
            on_done(responses)

        self._inner.submit(requests, measured)

    def families(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Return the session's metrics as label families of `runtime.metrics`."""
        return {
            "zk_session_state": {(state.name.lower(),): float(state is self.session_state) for state in SessionState},
            "zk_session_events_total": {
                (state.name.lower(),): float(count) for state, count in self.session_events.items()
            },
        }
