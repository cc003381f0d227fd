"""Virtual time, labelled random streams, and the event queue.

All events of a run are callbacks in this queue. Time is in whole microseconds. Callbacks with the same time are ordered
by a random draw, not by insertion, so that the code cannot rely on an order by accident. Every random choice comes from
a labelled stream, so that the removal of one fault does not change the others
(docs/protocol/simulator.md#labelled-randomness).
"""

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.disk import ProcessKilled

MILLISECOND = 1_000
_EPOCH_WALL_MS = 1_700_000_000_000
MOST_IN_AN_INSTANT = 100_000
"""Callbacks that may run before time advances; more are a loop that makes no progress."""


class Timer:
    """A callback in the queue, which its process runs; `cancel` prevents that."""

    __slots__ = ("callback", "owner")

    def __init__(self, callback: Callable[[], None], owner: "NodeScheduler | None" = None) -> None:
        self.callback: Callable[[], None] | None = callback
        self.owner = owner

    def cancel(self) -> None:
        """Prevent the callback from running."""
        self.callback = None


class World:
    """The clock, the queue and the random streams of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_us = 0
        self.events = 0
        self._queue: list[tuple[int, int, int, Timer]] = []
        self._sequence = 0
        self._in_an_instant = 0
        self._ties = self.chance("ties")
        self._digest = hashlib.blake2b(digest_size=16)

    def chance(self, label: str) -> random.Random:
        """Return the random stream with this label; the same seed and label give the same stream."""
        key = hashlib.blake2b(f"{self.seed}/{label}".encode(), digest_size=16).digest()
        return random.Random(int.from_bytes(key, "big"))

    @property
    def now_ms(self) -> int:
        """Return the virtual time in whole milliseconds."""
        return self.now_us // MILLISECOND

    def after(self, delay_us: float, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` once ``delay_us`` have passed."""
        timer = Timer(callback)
        self.schedule(delay_us, timer)
        return timer

    def schedule(self, delay_us: float, timer: Timer) -> None:
        """Put a timer into the queue."""
        self._sequence += 1
        at = self.now_us + max(int(delay_us), 0)
        heapq.heappush(self._queue, (at, self._ties.getrandbits(32), self._sequence, timer))

    def step(self) -> bool:
        """Run the next callback; return False when the queue is empty."""
        while self._queue:
            at, _, _, timer = heapq.heappop(self._queue)
            callback = timer.callback
            if callback is None:
                continue
            self._in_an_instant = self._in_an_instant + 1 if at == self.now_us else 0
            if self._in_an_instant >= MOST_IN_AN_INSTANT:
                raise AssertionError(f"seed {self.seed}: {MOST_IN_AN_INSTANT} callbacks at {at} us: {callback}")
            self.now_us = at
            self.events += 1
            if timer.owner is None:
                callback()
            else:
                timer.owner.run(timer)
            return True
        return False

    def next_at_us(self) -> int | None:
        """Return when the next callback is due, None when nothing is queued."""
        while self._queue and self._queue[0][3].callback is None:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def run_until(self, at_us: int, after_each: Callable[[], None] = lambda: None) -> None:
        """Run callbacks up to a time and set the clock to it."""
        while (due := self.next_at_us()) is not None and due <= at_us:
            self.step()
            after_each()
        self.now_us = max(self.now_us, at_us)

    def note(self, text: str) -> None:
        """Add an event to the digest of the run."""
        self._digest.update(f"{self.now_us} {text}\n".encode())

    @property
    def digest(self) -> str:
        """Return the hash of everything noted so far; equal runs have equal hashes."""
        return self._digest.hexdigest()


@dataclass(slots=True)
class Skew:
    """Difference between a node's wall clock and virtual time."""

    offset_ms: int = 0


class NodeScheduler:
    """The `Scheduler` of one process.

    While paused, due callbacks wait and run in order after the resume, as after SIGSTOP and SIGCONT. After `kill` no
    callback runs. `call_soon` is first in, first out, like asyncio's. An exception of a callback is reported, and the
    process continues, as with asyncio.
    """

    def __init__(
        self,
        world: World,
        skew: Skew,
        on_error: Callable[[Exception], None] | None = None,
        name: str = "",
        on_killed: Callable[[], None] | None = None,
    ) -> None:
        self._world = world
        self._skew = skew
        self._on_error = on_error
        self._on_killed = on_killed
        self._held: list[Timer] = []
        self._soon: deque[Callable[[], None]] = deque()
        self.name = name
        self.paused = False
        self.resumed_us = 0
        """When the last pause ended."""
        self.dead = False

    def now_ms(self) -> int:
        return self._world.now_us // MILLISECOND

    def wall_ms(self) -> int:
        return _EPOCH_WALL_MS + self._world.now_us // MILLISECOND + self._skew.offset_ms

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)
        self._world.schedule(0, Timer(self._next_soon, self))

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback, self)
        self._world.schedule(delay_ms * MILLISECOND, timer)
        return timer

    def deliver(self, callback: Callable[[], None]) -> None:
        """Run a callback for an event from outside now, or hold it while the process is paused."""
        self.run(Timer(callback, self))

    def pause(self) -> None:
        """Stop running callbacks."""
        self.paused = True

    def resume(self) -> None:
        """Run the held callbacks in order, and continue."""
        self.paused = False
        self.resumed_us = self._world.now_us
        held, self._held = self._held, []
        for timer in held:
            self.run(timer)

    def kill(self) -> None:
        """Run no more callbacks."""
        self.dead = True
        self._held.clear()
        self._soon.clear()

    def run(self, timer: Timer) -> None:
        """Run a timer of this process, or hold it while the process is paused."""
        callback = timer.callback
        if self.dead or callback is None:
            return
        if self.paused:
            self._held.append(timer)
            return
        if self._on_error is None:
            callback()
            return
        try:
            callback()
        except ProcessKilled:
            assert self._on_killed is not None
            self._on_killed()
        except Exception as error:
            self._on_error(error)

    def _next_soon(self) -> None:
        if self._soon:
            self._soon.popleft()()
