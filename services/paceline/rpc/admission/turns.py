"""Turns of large requests on the event loop (docs/protocol/limits.md#large-requests).

The event loop serves all callers of a listener, so a request that takes it for 50 ms delays all of them. Large requests
are handled one after the other, in slices of a few milliseconds, and after each slice the loop is left to other callers
for as long as the slice took. A caller that has sent a large request sends its next request when the first is paid for,
at `BYTES_PER_S`; until then HTTP/2 flow control keeps the bytes at the sender. Batches of records take no turns.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

LARGE_BYTES: Final = 32 * 1024
"""Size from which a request is large."""
BYTES_PER_S: Final = 16 * 1024 * 1024
"""Rate at which large requests are received from one caller."""
SLICE: Final = 200
"""Elements of a list that are handled in one slice."""
LONGEST_PAUSE_S: Final = 0.05

A = TypeVar("A")
B = TypeVar("B")


class Debt:
    """The large requests of one caller that are not paid for; its holder may send the next request."""

    def __init__(self) -> None:
        self.paid_s = 0.0
        """The time when all large requests are paid for."""
        self.is_held = False
        self._new: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting calls by connection, oldest first, of connections that had no turn since they wait."""
        self._old: dict[str, deque[asyncio.Future[None]]] = {}
        """Those of the other connections, which take turns."""
        self._new_is_next = False

    async def acquire(self, connection: str) -> None:
        """Wait until no other call holds the debt."""
        if not self.is_held:
            self.is_held = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        calls = self._old.get(connection)
        (self._new.setdefault(connection, deque()) if calls is None else calls).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(connection, turn)
            else:
                self.release()
            raise

    def _forget(self, connection: str, turn: asyncio.Future[None]) -> None:
        for waiting in (self._new, self._old):
            calls = waiting.get(connection)
            if calls is not None and turn in calls:
                calls.remove(turn)
                if not calls:
                    del waiting[connection]

    def release(self) -> None:
        """Pass the debt on, in turn to the newest connection and to the one that had its turn the longest ago."""
        while self._new or self._old:
            self._new_is_next = not self._new_is_next
            if self._new and (self._new_is_next or not self._old):
                connection, calls = self._new.popitem()
            else:
                connection = next(iter(self._old))
                calls = self._old.pop(connection)
            turn = calls.popleft()
            if calls:
                self._old[connection] = calls
            if not turn.done():
                turn.set_result(None)
                return
        self.is_held = False


class Turns:
    """Gives one caller at a time a turn, in the order of their calls. All methods run on the event loop's thread."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._next_s = 0.0
        """The earliest time of the next turn."""
        self._debts: dict[str, Debt] = {}

    def owes(self, caller: str) -> bool:
        """Whether this caller has sent a large request that is not yet paid for."""
        return caller in self._debts

    async def pay(self, caller: str, connection: str) -> Debt:
        """Wait until the large requests of a caller are paid for; return its debt, to release after a request."""
        debt = self._debts[caller]
        await debt.acquire(connection)
        try:
            await asyncio.sleep(debt.paid_s - asyncio.get_running_loop().time())
        except BaseException:
            debt.release()
            raise
        return debt

    async def received(self, read: Callable[[], Awaitable[Any]], caller: str) -> Any:
        """Return the request that ``read`` returns, a large one when the caller may use the event loop."""
        request = await read()
        if isinstance(request, bytes) and len(request) >= LARGE_BYTES:
            now_s = asyncio.get_running_loop().time()
            self._debts = {one: debt for one, debt in self._debts.items() if debt.paid_s > now_s or debt.is_held}
            debt = self._debts.setdefault(caller, Debt())
            debt.paid_s = max(debt.paid_s, now_s) + len(request) / BYTES_PER_S
            await self.turn()
        return request

    async def turn(self) -> None:
        """Return when the caller may use the event loop; its turn ends when it next waits."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            await asyncio.sleep(self._next_s - loop.time())
            # The loop runs this callback as soon as the caller waits.
            loop.call_soon(self._ended, loop.time())

    async def each(self, work: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """Return the results of ``work``, in slices with a turn for each slice but the first."""
        results: list[B] = []
        for start in range(0, len(items), SLICE):
            if start:
                await self.turn()
            results += map(work, items[start : start + SLICE])
        return results

    def _ended(self, begin_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self._next_s = now_s + min(now_s - begin_s, LONGEST_PAUSE_S)
