"""Limit how many requests are received into memory at the same time (docs/protocol/limits.md#receiving).

gRPC reads the bytes of a request before it calls a handler, so a limit in the handler would be too late. The
interceptor runs before the bytes are read. It gives slots to a few calls at a time, and HTTP/2 flow control keeps the
bytes of the other calls at their senders. Free slots go in turn to the newest call and to the caller that has been
quiet for the longest time: in a flood of requests the waiting calls belong to the flood, and a client with one small
request is served soon. A caller is a principal, or a connection without a certificate; one caller never has all slots.
A call that has not been received after `SLOW_AFTER_S` gives its slot back and counts as a slow sender; if there are too
many, the oldest of the caller with most of them is cancelled.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from paceline.model.errors import ThrottledError
from paceline.rpc.admission.turns import Debt, Turns

RECEIVED_AT_ONCE: Final = 8
SLOW_SENDERS: Final = 24
"""Maximum number of slow senders. The memory for receiving is limited to (`RECEIVED_AT_ONCE` + `SLOW_SENDERS`) times
the largest request."""
SLOW_AFTER_S: Final = 0.25
LONGEST_RECEIPT_S: Final = 30.0
LONGEST_WAIT_S: Final = 10.0
"""A call that has waited this long for a slot is throttled; its client retries later."""


class ReceiveLimiter:
    """Slots for calls whose request is being received. All methods run on the event loop's thread.

    Args:
        slots: requests that are received at the same time.
        slow_senders: further requests that have taken longer than ``slow_after_s``; above that one is cancelled.
        slow_after_s: longest time that a call holds a slot.
        receipt_s: longest time to receive a request.
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
        self._most = max(1, slots - 1)
        """Maximum number of slots of one caller."""
        self._held: Counter[str] = Counter()
        """Slots by caller."""
        self._slow_senders = slow_senders
        self._slow_after_s = slow_after_s
        self._receipt_s = receipt_s
        self._wait_s = wait_s
        self._check_interval_s = min(slow_after_s, wait_s)
        self._waiting: dict[str, dict[asyncio.Future[None], float]] = {}
        """Calls that wait for a slot, oldest first, with the end of their wait, by caller.

        The caller with the latest call is the last one.
        """
        self._newest_is_next = True
        self._quick: dict[asyncio.Task[Any], tuple[float, str]] = {}
        """Calls with a slot, oldest first, with the time when they got it, and their callers."""
        self._slow: dict[asyncio.Task[Any], tuple[float, str]] = {}
        """Slow senders, which gave their slot back, oldest first, with the time when they got it, and their callers."""
        self._timer: asyncio.TimerHandle | None = None
        self.turns = Turns()
        """Turns of large requests on the event loop."""

    @property
    def under_way(self) -> int:
        """Number of requests that are being received."""
        return len(self._quick) + len(self._slow)

    async def receive(
        self,
        read: Callable[[], Awaitable[Any]],
        caller: str = "",
        *,
        takes_turns: bool = False,
        connection_of: Callable[[], str] = str,
    ) -> Any:
        """Return the result of ``read``, which starts when this call has a slot.

        With ``takes_turns`` a large request keeps its slot until its turn, so that few of them are in memory, and a
        caller is read no faster than `turns.BYTES_PER_S`, its connections, which ``connection_of`` returns, in turn.

        Raises:
            ThrottledError: no slot became free in time, or the request took too long to arrive.
        """
        if not takes_turns:
            return await self._receive(read, caller)
        paid: Debt | None = None
        if self.turns.owes(caller):
            try:
                paid = await asyncio.wait_for(self.turns.pay(caller, connection_of()), self._wait_s)
            except TimeoutError:
                text = "this caller sends more large requests than the broker receives; try again"
                raise ThrottledError.at("BYTES_PER_S", text) from None
        try:
            return await self._receive(lambda: self.turns.received(read, caller), caller)
        finally:
            if paid is not None:
                paid.release()

    async def _receive(self, read: Callable[[], Awaitable[Any]], caller: str) -> Any:
        loop = asyncio.get_running_loop()
        self._watch(loop)
        if self._free and self._held[caller] < self._most:
            self._free -= 1
            self._held[caller] += 1
        else:
            await self._slot(loop, caller)
            self._watch(loop)  # between the end of another call and this line, a check finds no call
        task = asyncio.current_task()
        assert task is not None
        self._quick[task] = loop.time(), caller
        try:
            return await read()
        except asyncio.CancelledError:
            # `_check` removes a call that it cancels.
            if task in self._quick or task in self._slow or task.uncancel():
                raise
            raise ThrottledError.at("SLOW_SENDERS", "the request took too long to arrive; try again") from None
        finally:
            if self._quick.pop(task, None) is not None:
                self._free_slot(caller)
            else:
                self._slow.pop(task, None)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(self._check_interval_s, self._check)

    async def _slot(self, loop: asyncio.AbstractEventLoop, caller: str) -> None:
        slot: asyncio.Future[None] = loop.create_future()
        calls = self._waiting.pop(caller, {})
        calls[slot] = loop.time() + self._wait_s
        self._waiting[caller] = calls
        try:
            await slot
        except asyncio.CancelledError:
            if not self._forget(caller, slot) and not slot.cancelled() and slot.exception() is None:
                self._free_slot(caller)  # this call got a slot at the moment of its cancellation
            raise

    def _forget(self, caller: str, slot: asyncio.Future[None]) -> bool:
        calls = self._waiting.get(caller, {})
        was_waiting = calls.pop(slot, None) is not None
        if not calls:
            self._waiting.pop(caller, None)
        return was_waiting

    def _free_slot(self, of: str) -> None:
        """Give a slot of a caller to a waiting call, if any, of a caller that may have one more."""
        self._held[of] -= 1
        if not self._held[of]:
            del self._held[of]
        self._newest_is_next = not self._newest_is_next
        order = reversed(tuple(self._waiting)) if self._newest_is_next else tuple(self._waiting)
        for caller in order:
            while self._held[caller] < self._most and (calls := self._waiting.pop(caller, None)) is not None:
                slot, _ = calls.popitem()
                if calls:
                    self._waiting[caller] = calls
                if not slot.done():
                    self._held[caller] += 1
                    slot.set_result(None)
                    return
        self._free += 1

    def _check(self) -> None:
        """Throttle calls that have waited too long, take slots from slow senders, and cancel the slowest of these."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        waiting = [(caller, slot, end_s) for caller, calls in self._waiting.items() for slot, end_s in calls.items()]
        for caller, slot, end_s in waiting:
            if now_s < end_s:
                continue
            self._forget(caller, slot)
            if not slot.done():
                slot.set_exception(
                    ThrottledError.at(
                        "RECEIVED_AT_ONCE", "the broker receives its maximum number of large requests; try again"
                    )
                )
        for task in [task for task, (begun_s, _) in self._quick.items() if now_s - begun_s >= self._slow_after_s]:
            self._slow[task] = self._quick.pop(task)
            self._free_slot(self._slow[task][1])
        late = [task for task, (begun_s, _) in self._slow.items() if now_s - begun_s >= self._receipt_s]
        for _ in range(len(self._slow) - len(late) - self._slow_senders):
            rest = {task: caller for task, (_, caller) in self._slow.items() if task not in late}
            ((most, _count),) = Counter(rest.values()).most_common(1)
            late.append(next(task for task, caller in rest.items() if caller == most))
        for task in late:
            del self._slow[task]
            task.cancel()
        busy = self._quick or self._slow or self._waiting
        self._timer = loop.call_later(self._check_interval_s, self._check) if busy else None
