"""How many requests may be on their way into memory at once.

gRPC takes the bytes of a request in before it calls a handler, so a budget in the handler comes too late: 200
connections that send 16 MiB each would put 3 GiB into a broker's memory. An interceptor runs before the bytes are
read. It lets a few calls at a time go on, in the order of their arrival; the others wait on the wire, held by HTTP/2's
flow control. Senders that are slow, or that never finish, step aside after a moment: they may go on, but there is a
limit to them, too, and they keep nobody waiting (hostile input H20). Who is cut off is told so, with a status.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from paceline.model.errors import ThrottledError
from paceline.rpc.turns import WORTH_A_TURN_BYTES, Turns

ARRIVALS_AT_ONCE: Final = 2
"""Each that is complete is copied on the event loop, and all of them may be complete at once."""
SLOW_ARRIVALS: Final = 8
"""Times the largest request, these two together are what requests on their way may take."""
LONGEST_WAIT_S: Final = 10.0
"""After so long in the queue a call is refused; its sender tries again later."""
SLOW_AFTER_S: Final = 2.0
LONGEST_ARRIVAL_S: Final = 30.0
"""A sender that takes longer for one request is cut off."""


class Arrivals:
    """Slots for calls whose request is being received. All methods are for the event loop's thread.

    Args:
        turns: taken by large requests before anybody works on them; they keep their slots until then.
        slots: so many requests are received at once.
        slow_slots: and so many more of those that take long; one more cuts off the one that has taken longest.
        wait_s: longest wait for a slot.
        slow_after_s: how long a call may hold one of the first kind.
        arrival_s: how long it may take in all.
    """

    def __init__(
        self,
        turns: Turns | None = None,
        *,
        slots: int = ARRIVALS_AT_ONCE,
        slow_slots: int = SLOW_ARRIVALS,
        wait_s: float = LONGEST_WAIT_S,
        slow_after_s: float = SLOW_AFTER_S,
        arrival_s: float = LONGEST_ARRIVAL_S,
    ) -> None:
        self._turns = turns or Turns()
        self._free = asyncio.Semaphore(slots)
        self._slow_slots = slow_slots
        self._wait_s = wait_s
        self._slow_after_s = slow_after_s
        self._arrival_s = arrival_s
        self._quick: dict[asyncio.Task[Any], asyncio.TimerHandle] = {}
        self._slow: dict[asyncio.Task[Any], asyncio.TimerHandle] = {}
        self._cut_off: set[asyncio.Task[Any]] = set()

    @property
    def under_way(self) -> int:
        """How many requests are being received."""
        return len(self._quick) + len(self._slow)

    async def receive(self, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return what ``read`` returns, the bytes of this call's request or a mark for their end, when it may be read.

        Raises:
            ThrottledError: too many others were before it, or it took too long.
        """
        task = await self._enter()
        try:
            request = await read()
            if isinstance(request, bytes) and len(request) >= WORTH_A_TURN_BYTES:
                await self._turns.after(len(request))
            return request
        except asyncio.CancelledError:
            if task not in self._cut_off:
                raise
            task.uncancel()
            raise ThrottledError("the request took too long to arrive; try again") from None
        finally:
            self._leave(task)

    async def _enter(self) -> "asyncio.Task[Any]":
        if self._free.locked():
            try:
                async with asyncio.timeout(self._wait_s):
                    await self._free.acquire()
            except TimeoutError:
                raise ThrottledError("the broker is receiving as many requests as it may; try again") from None
        else:
            await self._free.acquire()
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._quick[task] = loop.call_later(self._slow_after_s, self._step_aside, task)
        return task

    def _step_aside(self, task: "asyncio.Task[Any]") -> None:
        del self._quick[task]
        self._free.release()
        left_s = self._arrival_s - self._slow_after_s
        self._slow[task] = asyncio.get_running_loop().call_later(left_s, self._cut, task)
        if len(self._slow) > self._slow_slots:
            self._cut(next(one for one in self._slow if one not in self._cut_off))

    def _cut(self, task: "asyncio.Task[Any]") -> None:
        if task not in self._cut_off:
            self._cut_off.add(task)
            task.cancel()

    def _leave(self, task: "asyncio.Task[Any]") -> None:
        self._cut_off.discard(task)
        timer = self._quick.pop(task, None)
        if timer is not None:
            timer.cancel()
            self._free.release()
            return
        timer = self._slow.pop(task, None)
        if timer is not None:
            timer.cancel()
