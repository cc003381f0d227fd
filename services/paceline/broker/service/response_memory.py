"""Limit the bytes of responses that clients have requested and not received yet, over all listeners of a broker.

Without a limit, clients that request 50 MiB and never read would fill the broker's memory. Without shares, a few
clients would use up the limit for all: a connection may hold only a part of the free memory, so room is left for the
next connection, and when memory becomes scarce the connection that has taken longest is cut.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from paceline.model.errors import ThrottledError
from paceline.rpc.connections import cut_connection

LONGEST_DELIVERY_S: Final = 60.0
"""A client that has not taken its answer by then is cut off: its answer's room is wanted by others."""
CONTESTED_DELIVERY_S: Final = 10.0
"""The same when there is no room left for somebody else; the longest first."""
LEAST_ANSWER_BYTES: Final = 1 << 20
"""While there is any room, a connection that holds nothing gets at least this much if it asks for it."""
LARGEST_PART: Final = 16
"""One answer takes at most this part of the limit: it is copied in one go, and everything else waits meanwhile."""
CONNECTION_PART: Final = 4
"""One connection holds at most this part of what is free."""
_WORTH_COUNTING_BYTES: Final = 4_096
"""What is smaller costs less than counting it."""

LOG = logging.getLogger("paceline.broker")


class _Answer:
    """One that is under way."""

    __slots__ = ("begin_s", "cancel", "peer", "size_bytes", "timer")

    def __init__(
        self, peer: str, size_bytes: int, begin_s: float, cancel: Callable[[], Any], timer: asyncio.TimerHandle
    ) -> None:
        self.peer = peer
        self.size_bytes = size_bytes
        self.begin_s = begin_s
        self.cancel = cancel
        self.timer = timer


class AnswerBudget:
    """All methods are for the event loop's thread.

    Args:
        limit_bytes: what all answers under way may take; the last one to be let in may go beyond it.
        delivery_s: longest time one may be under way.
        contested_s: the same while others find no room.
        cut: ends the connections of a peer, on a thread; returns whether there was one.
    """

    def __init__(
        self,
        limit_bytes: int,
        delivery_s: float = LONGEST_DELIVERY_S,
        contested_s: float = CONTESTED_DELIVERY_S,
        cut: Callable[[str], bool] = cut_connection,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._largest_bytes = max(limit_bytes // LARGEST_PART, LEAST_ANSWER_BYTES)
        self._delivery_s = delivery_s
        self._contested_s = contested_s
        self._cut = cut
        self._under_way: dict[int, _Answer] = {}
        self._held_bytes: dict[str, int] = {}
        self._last = 0
        self.used_bytes = 0

    def room_bytes(self, context: Any) -> int:
        """Return how large the next answer to the connection of this call may be.

        Raises:
            ThrottledError: too much is under way already, in all or on this connection.
        """
        if not self.used_bytes:
            return self._largest_bytes
        free = self._limit_bytes - self.used_bytes
        if free <= 0:
            self._make_room()
            raise ThrottledError(f"{self.used_bytes} bytes of answers are not taken yet; try again")
        held = self._held_bytes.get(context.peer(), 0)
        if not held:
            return min(self._largest_bytes, max(free // CONNECTION_PART, LEAST_ANSWER_BYTES))
        if held >= max(free // CONNECTION_PART, LEAST_ANSWER_BYTES):
            raise ThrottledError(f"{held} bytes of answers on this connection are not taken yet; try again")
        return min(self._largest_bytes, max(free // CONNECTION_PART - held, LEAST_ANSWER_BYTES))

    def hold(self, size_bytes: int, context: Any) -> None:
        """Count an answer until its call is over, delivered or not; to be called in the call's own task.

        Raises:
            ThrottledError: others were faster, and there is no room any more.
        """
        if size_bytes < _WORTH_COUNTING_BYTES:
            return
        if self.used_bytes >= self._limit_bytes:
            self._make_room()
            raise ThrottledError(f"{self.used_bytes} bytes of answers are not taken yet; try again")
        loop = asyncio.get_running_loop()
        self._last = number = self._last + 1
        peer = context.peer()
        timer = loop.call_later(self._delivery_s, self._give_up, number)
        self._under_way[number] = _Answer(peer, size_bytes, loop.time(), _cancel_of(context), timer)
        self.used_bytes += size_bytes
        self._held_bytes[peer] = self._held_bytes.get(peer, 0) + size_bytes
        context.add_done_callback(lambda _context: self._over(number))

    def _over(self, number: int) -> None:
        answer = self._under_way.pop(number, None)
        if answer is None:
            return
        answer.timer.cancel()
        self.used_bytes -= answer.size_bytes
        left = self._held_bytes[answer.peer] - answer.size_bytes
        if left:
            self._held_bytes[answer.peer] = left
        else:
            del self._held_bytes[answer.peer]

    def _make_room(self) -> None:
        """Cut off whoever has taken longest, if that is long: those who come next will find room."""
        number = next(iter(self._under_way), None)
        if number is not None:
            under_way_s = asyncio.get_running_loop().time() - self._under_way[number].begin_s
            if under_way_s >= self._contested_s:
                self._give_up(number)

    def _give_up(self, number: int) -> None:
        """End the connection of an answer that nobody takes; its room is free when gRPC has let go of it.

        Where no connection is found, the call's end at least gives the room to others, though not the memory.
        """
        # Behind all others: nobody has to be patient with the same one twice, nor is it in the way of the next.
        answer = self._under_way[number] = self._under_way.pop(number)
        answer.begin_s = asyncio.get_running_loop().time()
        LOG.warning("%s has not taken an answer of %d bytes; its connection is ended", answer.peer, answer.size_bytes)

        def is_cut(done: "asyncio.Future[bool]") -> None:
            if number in self._under_way and (done.cancelled() or done.exception() is not None or not done.result()):
                answer.cancel()

        asyncio.get_running_loop().run_in_executor(None, self._cut, answer.peer).add_done_callback(is_cut)


def _cancel_of(context: Any) -> Callable[[], Any]:
    """Return what cancels a call: its task, unless it is an exchange, which has none."""
    cancel: Callable[[], Any] | None = getattr(context, "cancel", None)
    if cancel is not None:
        return cancel
    task = asyncio.current_task()
    assert task is not None
    return task.cancel
