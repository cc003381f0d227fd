"""Limit how many requests are being received into memory at once (docs/protocol/limits.md#receiving).

gRPC reads the bytes of a request before it calls a handler, so a budget in the handler comes too late. An interceptor
runs before the bytes are read: it admits a few calls at a time, and HTTP/2's flow control holds the bytes of the others
at their senders. The newest call is admitted first: under a flood the calls that wait are those of the flood, and a
client that sends one small request gets the next free slot. A sender that has not finished after a moment leaves its
slot to others and finishes outside, where the oldest sender is cut off when there are too many.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from paceline.model.errors import ThrottledError

RECEIVED_AT_ONCE: Final = 8
SLOW_SENDERS: Final = 24
"""Together with the others, times the largest request, this is the memory that requests on their way may take."""
SLOW_AFTER_S: Final = 0.25
LONGEST_RECEIPT_S: Final = 30.0
LONGEST_WAIT_S: Final = 10.0
"""After so long without a slot a call is refused; its sender tries again later."""


class ReceiveLimiter:
    """Slots for calls whose request is being received. All methods are for the event loop's thread.

    Args:
        slots: requests that are received at once.
        slow_senders: further ones that have taken longer than ``slow_after_s``; one more cuts off the oldest.
        slow_after_s: how long a call may hold a slot.
        receipt_s: how long it may take in all.
        wait_s: longest wait for a slot.
    """

    def __init__(
        self,
        *,
        slots: int = RECEIVED_AT_ONCE,
        slow_senders: int = SLOW_SENDERS,
        slow_after_s: float = SLOW_AFTER_S,
        receipt_s: float = LONGEST_RECEIPT_S,
        wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._free = slots
        self._slow_senders = slow_senders
        self._slow_after_s = slow_after_s
        self._receipt_s = receipt_s
        self._wait_s = wait_s
        self._look_s = min(slow_after_s, wait_s)
        self._waiting: dict[asyncio.Future[None], float] = {}
        """Calls without a slot, oldest first, with the time until which they wait."""
        self._quick: dict[asyncio.Task[Any], float] = {}
        """Calls with a slot, oldest first, with the time of admission."""
        self._slow: dict[asyncio.Task[Any], float] = {}
        """Calls that left their slot, oldest first, with the time of admission."""
        self._cut_off: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> int:
        """Requests that are being received now."""
        return len(self._quick) + len(self._slow)

    async def receive(self, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of ``read``, which starts when this call has a slot.

        Raises:
            ThrottledError: no slot became free in time, or the request took too long to arrive.
        """
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_later(self._look_s, self._look)
        if self._free:
            self._free -= 1
        else:
            await self._slot(loop)
        task = asyncio.current_task()
        assert task is not None
        self._quick[task] = loop.time()
        try:
            return await read()
        except asyncio.CancelledError:
            if task not in self._cut_off:
                raise
            task.uncancel()
            raise ThrottledError("the request took too long to arrive; try again") from None
        finally:
            self._cut_off.discard(task)
            if self._quick.pop(task, None) is not None:
                self._give_slot()
            else:
                self._slow.pop(task, None)

    async def _slot(self, loop: asyncio.AbstractEventLoop) -> None:
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting[turn] = loop.time() + self._wait_s
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None and not turn.cancelled() and turn.exception() is None:
                self._give_slot()  # it was given in the same moment
            raise

    def _give_slot(self) -> None:
        while self._waiting:
            turn, _ = self._waiting.popitem()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _look(self) -> None:
        """Refuse calls that have waited too long, take slots from slow senders, and cut off the slowest of these."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        late = [turn for turn, until_s in self._waiting.items() if now_s >= until_s]
        for turn in late:
            del self._waiting[turn]
            if not turn.done():
                turn.set_exception(ThrottledError("the broker is receiving as many requests as it may; try again"))
        slow = [task for task, begun_s in self._quick.items() if now_s - begun_s >= self._slow_after_s]
        for task in slow:
            self._slow[task] = self._quick.pop(task)
            self._give_slot()
        surplus = len(self._slow) - len(self._cut_off) - self._slow_senders
        for task, begun_s in self._slow.items():
            if task not in self._cut_off and (surplus > 0 or now_s - begun_s >= self._receipt_s):
                surplus -= 1
                self._cut_off.add(task)
                task.cancel()
        busy = self._quick or self._slow or self._waiting
        self._timer = loop.call_later(self._look_s, self._look) if busy else None
