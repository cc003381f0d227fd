"""How many requests may be on their way into memory at once.

gRPC takes the bytes of a request in before it calls a handler, so a budget in the handler comes too late: 200
connections that send 16 MiB each would put 3 GiB into a broker's memory. An interceptor runs before the bytes are
read. It lets a few calls at a time go on, in the order of their arrival; the others wait on the wire, held by HTTP/2's
flow control. Senders that are slow, or that never finish, step aside after a moment: they may go on, but there is a
limit to them, too, and they keep nobody waiting (hostile input H20).
"""

import asyncio
from typing import Any, Final

from paceline.model.errors import ThrottledError

ARRIVALS_AT_ONCE: Final = 8
SLOW_ARRIVALS: Final = 16
"""Times the largest request, these two together are what requests on their way may take."""
LONGEST_WAIT_S: Final = 10.0
"""After so long in the queue a call is refused; its sender tries again later."""
SLOW_AFTER_S: Final = 2.0
LONGEST_ARRIVAL_S: Final = 30.0
"""A sender that takes longer for one request is cut off."""


class Arrivals:
    """Slots for calls whose request is being received. All methods are for the event loop's thread.

    Args:
        slots: so many requests are received at once.
        slow_slots: and so many more of those that take long; one more cuts off the one that has taken longest.
        wait_s: longest wait for a slot.
        slow_after_s: how long a call may hold one of the first kind.
        arrival_s: how long it may take in all.
    """

    def __init__(
        self,
        slots: int = ARRIVALS_AT_ONCE,
        slow_slots: int = SLOW_ARRIVALS,
        wait_s: float = LONGEST_WAIT_S,
        slow_after_s: float = SLOW_AFTER_S,
        arrival_s: float = LONGEST_ARRIVAL_S,
    ) -> None:
        self._free = asyncio.Semaphore(slots)
        self._slow_slots = slow_slots
        self._wait_s = wait_s
        self._slow_after_s = slow_after_s
        self._arrival_s = arrival_s
        self._quick: dict[asyncio.Task[Any], asyncio.TimerHandle] = {}
        self._slow: dict[asyncio.Task[Any], asyncio.TimerHandle] = {}

    @property
    def under_way(self) -> int:
        """How many requests are being received."""
        return len(self._quick) + len(self._slow)

    async def enter(self) -> None:
        """Wait until this call's request may be received.

        Raises:
            ThrottledError: too many others were before it.
        """
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
        task.add_done_callback(self._leave)

    def arrived(self) -> None:
        """This call's request is complete, so the next one may come."""
        task = asyncio.current_task()
        if task is not None and (task in self._quick or task in self._slow):
            task.remove_done_callback(self._leave)
            self._leave(task)

    def _step_aside(self, task: "asyncio.Task[Any]") -> None:
        del self._quick[task]
        self._free.release()
        # Cancelling a call's task ends the call, whatever state it is in.
        left_s = self._arrival_s - self._slow_after_s
        self._slow[task] = asyncio.get_running_loop().call_later(left_s, task.cancel)
        if len(self._slow) > self._slow_slots:
            next(iter(self._slow)).cancel()

    def _leave(self, task: "asyncio.Task[Any]") -> None:
        timer = self._quick.pop(task, None)
        if timer is not None:
            timer.cancel()
            self._free.release()
            return
        timer = self._slow.pop(task, None)
        if timer is not None:
            timer.cancel()
