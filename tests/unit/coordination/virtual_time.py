"""A scheduler on virtual time for tests; the seed decides the order of callbacks with equal due times."""

import heapq
import random
from collections.abc import Callable

from paceline.coordination.interface import (
    Request,
    Response,
    SessionEvent,
    SessionState,
    WatchEvent,
    ZooKeeper,
)


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualScheduler:
    """Implements the `Scheduler` port; time passes only in `run_for` and `run_until`."""

    def __init__(self, seed: int = 0) -> None:
        self._now_ms = 1_000.0
        self._rng = random.Random(seed)
        self._queue: list[tuple[float, float, int, _Timer]] = []
        self._count = 0

    def now_ms(self) -> int:
        return int(self._now_ms)

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._now_ms)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0, callback)

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        self._count += 1
        due_ms = self._now_ms + max(delay_ms, 0)
        heapq.heappush(self._queue, (due_ms, self._rng.random(), self._count, timer))
        return timer

    def step(self, until_ms: float) -> bool:
        """Run the next callback due by then; False when there is none."""
        while self._queue and self._queue[0][0] <= until_ms:
            due_ms, _, _, timer = heapq.heappop(self._queue)
            if timer.callback is not None:
                self._now_ms = max(self._now_ms, due_ms)
                timer.callback()
                return True
        return False

    def run_for(self, duration_ms: float) -> None:
        end_ms = self._now_ms + duration_ms
        while self.step(end_ms):
            pass
        self._now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], within_ms: float = 60_000) -> None:
        end_ms = self._now_ms + within_ms
        while not condition():
            assert self.step(end_ms), f"not reached within {within_ms} ms"


class Recorder:
    """A started client that records its session events and watch events, in order."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self.zookeeper = zookeeper
        self.log: list[SessionEvent | WatchEvent | list[Response]] = []
        zookeeper.start(self.log.append, self.log.append)

    @property
    def states(self) -> list[SessionState]:
        return [entry.state for entry in self.log if isinstance(entry, SessionEvent)]

    @property
    def watch_events(self) -> list[WatchEvent]:
        return [entry for entry in self.log if isinstance(entry, WatchEvent)]

    def submit(self, *requests: Request) -> list[Response]:
        """Submit and return the list that gets the responses."""
        answers: list[Response] = []

        def done(responses: list[Response]) -> None:
            answers.extend(responses)
            self.log.append(responses)

        self.zookeeper.submit(requests, done)
        return answers
