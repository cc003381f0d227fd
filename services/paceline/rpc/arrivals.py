"""How many requests may be on their way into memory at once.

gRPC takes the bytes of a request in before it calls a handler, so a budget in the handler comes too late: 200
connections that send 16 MiB each would put 3 GiB into a broker's memory. An interceptor runs before the bytes are
read. It lets a few calls at a time go on, in the order of their arrival; the others wait on the wire, held by HTTP/2's
flow control.
"""

import asyncio
from typing import Any, Final

from paceline.model.errors import ThrottledError

ARRIVALS_AT_ONCE: Final = 8
"""Times the largest request this is what requests under way may take."""
LONGEST_WAIT_S: Final = 10.0
"""After so long in the queue a call is refused; its sender tries again later."""
LONGEST_ARRIVAL_S: Final = 30.0
"""A sender that takes longer for one request is cut off: it would keep others waiting (hostile input H20)."""


class Arrivals:
    """Slots for calls whose request is being received. All methods are for the event loop's thread.

    Args:
        slots: so many requests are received at once.
        wait_s: longest wait for a slot.
        arrival_s: longest time a call may hold one.
    """

    def __init__(
        self,
        slots: int = ARRIVALS_AT_ONCE,
        wait_s: float = LONGEST_WAIT_S,
        arrival_s: float = LONGEST_ARRIVAL_S,
    ) -> None:
        self._free = asyncio.Semaphore(slots)
        self._wait_s = wait_s
        self._arrival_s = arrival_s
        self._held: dict[asyncio.Task[Any], asyncio.TimerHandle] = {}

    @property
    def under_way(self) -> int:
        """How many requests are being received."""
        return len(self._held)

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
        # Cancelling the call's task ends the call, whatever state it is in.
        self._held[task] = asyncio.get_running_loop().call_later(self._arrival_s, task.cancel)
        task.add_done_callback(self._leave)

    def arrived(self) -> None:
        """This call's request is complete, so the next one may come."""
        task = asyncio.current_task()
        if task is not None and task in self._held:
            task.remove_done_callback(self._leave)
            self._leave(task)

    def _leave(self, task: "asyncio.Task[Any]") -> None:
        timer = self._held.pop(task, None)
        if timer is not None:
            timer.cancel()
            self._free.release()
