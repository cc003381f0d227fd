"""Let one large piece of work run in each round of the event loop (docs/protocol/limits.md#event-loop-turns).

An event loop runs every callback that is ready before it takes callbacks that other threads have posted. Twenty fetches
of megabytes that become ready together would therefore delay a control request by the sum of their copies, not by one
of them. Work on megabytes waits for its turn, and each round has one turn; small work never waits.
"""

import asyncio
from collections import deque
from typing import Final

WORTH_A_TURN_BYTES: Final = 64 * 1024
"""Less is moved faster than a turn is taken, and is not counted."""
TURN_BYTES: Final = 1024 * 1024
"""So much is moved in one round; the last piece may go beyond it."""
_WOKEN_AT_ONCE: Final = 64
"""So many of those who wait look in each round whether it is their turn; most find that the first of them took it."""


class LoopFairness:
    """LoopFairness of one event loop; all methods are for its thread."""

    def __init__(self) -> None:
        self._moved_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> bool:
        """Whether large work may begin now."""
        return self._moved_bytes < TURN_BYTES

    async def wait(self) -> None:
        """Wait until large work may begin; what begins must follow at once, and be told to `moved` afterwards."""
        while not self.free:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    async def take(self, size_bytes: int) -> None:
        """Wait for a turn for work of a known size."""
        if size_bytes >= WORTH_A_TURN_BYTES:
            await self.wait()
            self.moved(size_bytes)

    async def after(self, size_bytes: int) -> None:
        """Wait for a turn for work on a request of that size, which has been received in this round."""
        self.moved(size_bytes)
        await self.take(size_bytes)

    def moved(self, size_bytes: int) -> None:
        """Count bytes that were, or are about to be, copied, read or checked in this round of the loop."""
        if size_bytes < WORTH_A_TURN_BYTES:
            return
        if not self._moved_bytes:
            asyncio.get_running_loop().call_soon(self._next_round)
        self._moved_bytes += size_bytes

    def _next_round(self) -> None:
        self._moved_bytes = 0
        # Those who find the turn taken again queue up behind those who have not been woken; nobody is passed for long.
        for _ in range(min(len(self._waiting), _WOKEN_AT_ONCE)):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._waiting:
            # Whoever was woken may have nothing large after all.
            asyncio.get_running_loop().call_soon(self._again)

    def _again(self) -> None:
        if not self._moved_bytes and self._waiting:
            self._next_round()
