"""Limit how many requests are being received into memory at once (docs/protocol/limits.md#receiving).

gRPC reads the bytes of a request before it calls a handler, so a budget in the handler comes too late: 200 connections
that send 16 MiB each would put 3 GiB into a broker's memory. An interceptor runs before the bytes are read. It admits a
few calls at a time; HTTP/2's flow control holds the other calls at their senders. Connections take turns, each with its
calls in order. A sender that is slow, or that never finishes, moves to a second group after a moment: it may finish
there, the group has a limit of its own, and it delays no other call. A connection with such a sender is served after
all other connections, and makes way for them at once. A call that is cut off ends with a status that says so.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from paceline.model.errors import ThrottledError
from paceline.rpc.admission.loop_fairness import WORTH_A_TURN_BYTES, LoopFairness

ARRIVALS_AT_ONCE: Final = 2
"""Each that is complete is copied on the event loop, and all of them may be complete at once."""
SLOW_ARRIVALS: Final = 8
"""Times the largest request, these two together are what requests on their way may take."""
LONGEST_WAIT_S: Final = 10.0
"""After so long in the queue a call is refused; its sender tries again later."""
SLOW_AFTER_S: Final = 2.0
LONGEST_ARRIVAL_S: Final = 30.0
"""A sender that takes longer for one request is cut off."""


Who = Callable[[], str]
"""Tells a call's connection; only asked when calls have to wait."""


def _nobody() -> str:
    return ""


class _Sender:
    """Who holds a slot, and when that ends."""

    __slots__ = ("peer", "timer", "who")

    def __init__(self, who: Who, timer: asyncio.TimerHandle) -> None:
        self.who = who
        self.timer = timer
        self.peer = ""
        """The connection of one that has stepped aside."""


class ReceiveLimiter:
    """Slots for calls whose request is being received. All methods are for the event loop's thread.

    Args:
        turns: taken by large requests before anybody works on them; they keep their slots until then.
        slots: so many requests are received at once.
        slow_slots: and so many more of those that take long; one more cuts off the one that has taken longest, of the
            connection that has most of them.
        wait_s: longest wait for a slot.
        slow_after_s: how long a call may hold one of the first kind.
        arrival_s: how long it may take in all.
    """

    def __init__(
        self,
        turns: LoopFairness | None = None,
        *,
        slots: int = ARRIVALS_AT_ONCE,
        slow_slots: int = SLOW_ARRIVALS,
        wait_s: float = LONGEST_WAIT_S,
        slow_after_s: float = SLOW_AFTER_S,
        arrival_s: float = LONGEST_ARRIVAL_S,
    ) -> None:
        self._fairness = turns or LoopFairness()
        self._free = slots
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Calls that wait for a slot, by connection; the connection whose turn is next comes first."""
        self._slow_slots = slow_slots
        self._wait_s = wait_s
        self._slow_after_s = slow_after_s
        self._arrival_s = arrival_s
        self._quick: dict[asyncio.Task[Any], _Sender] = {}
        self._slow: dict[asyncio.Task[Any], _Sender] = {}
        self._cut_off: set[asyncio.Task[Any]] = set()

    @property
    def under_way(self) -> int:
        """How many requests are being received."""
        return len(self._quick) + len(self._slow)

    async def receive(self, read: Callable[[], Awaitable[Any]], who: Who = _nobody) -> Any:
        """Return what ``read`` returns, the bytes of this call's request or a mark for their end, when it may be read.

        ``who`` tells the call's connection.

        Raises:
            ThrottledError: too many others were before it, or it took too long.
        """
        task = await self._enter(who)
        try:
            request = await read()
            if isinstance(request, bytes) and len(request) >= WORTH_A_TURN_BYTES:
                await self._fairness.after(len(request))
            return request
        except asyncio.CancelledError:
            if task not in self._cut_off:
                raise
            task.uncancel()
            raise ThrottledError("the request took too long to arrive; try again") from None
        finally:
            self._leave(task)

    async def _enter(self, who: Who) -> "asyncio.Task[Any]":
        if self._free:
            self._free -= 1
        else:
            await self._wait_for_slot(who())
        task = asyncio.current_task()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(self._slow_after_s, self._step_aside, task)
        self._quick[task] = _Sender(who, timer)
        return task

    async def _wait_for_slot(self, peer: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        self._make_way(peer)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as failure:
            if turn.done() and not turn.cancelled():  # it has become ours in the same moment
                self._give_slot()
            if isinstance(failure, TimeoutError):
                raise ThrottledError("the broker is receiving as many requests as it may; try again") from None
            raise

    def _make_way(self, peer: str) -> None:
        """Have a sender step aside whose connection has slow ones already, for one whose connection has none."""
        slow = self._slow_peers()
        if slow and peer not in slow:
            task = next((task for task, sender in self._quick.items() if sender.who() in slow), None)
            if task is not None:
                self._quick[task].timer.cancel()
                self._step_aside(task)

    def _give_slot(self) -> None:
        """Give a slot to whoever comes next."""
        slow = self._slow_peers()
        while self._waiting:
            peer = next((peer for peer in self._waiting if peer not in slow), next(iter(self._waiting)))
            turns = self._waiting.pop(peer)
            turn = turns.popleft()
            if turns:
                self._waiting[peer] = turns  # behind the other connections
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _slow_peers(self) -> Counter[str]:
        return Counter(sender.peer for task, sender in self._slow.items() if task not in self._cut_off)

    def _step_aside(self, task: "asyncio.Task[Any]") -> None:
        sender = self._slow[task] = self._quick.pop(task)
        sender.peer = sender.who()
        left_s = self._arrival_s - self._slow_after_s
        sender.timer = asyncio.get_running_loop().call_later(left_s, self._cut, task)
        if len(self._slow) > self._slow_slots:
            slow = self._slow_peers()
            most = max(slow.values())
            self._cut(
                next(one for one in self._slow if one not in self._cut_off and slow[self._slow[one].peer] == most)
            )
        self._give_slot()

    def _cut(self, task: "asyncio.Task[Any]") -> None:
        if task not in self._cut_off:
            self._cut_off.add(task)
            task.cancel()

    def _leave(self, task: "asyncio.Task[Any]") -> None:
        self._cut_off.discard(task)
        sender = self._quick.pop(task, None)
        if sender is not None:
            sender.timer.cancel()
            self._give_slot()
            return
        sender = self._slow.pop(task, None)
        if sender is not None:
            sender.timer.cancel()
