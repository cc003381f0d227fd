"""Limit the memory of responses that clients have requested and not received, for all listeners of a broker.

Without a limit, clients that request 50 MiB and never read would fill the broker's memory. Without shares, a few
clients would use up the whole limit: a connection may hold only a fraction of the free memory, so that the next
connection has room, and when memory is scarce the connection with the slowest response is closed.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from paceline.model.errors import ThrottledError
from paceline.rpc.connections import cut_connection

LONGEST_DELIVERY_S: Final = 60.0
"""Time after which a client that has not received its response is disconnected."""
CONTESTED_DELIVERY_S: Final = 10.0
"""Like `LONGEST_DELIVERY_S`, while other clients wait for room; the slowest client is disconnected first."""
LEAST_ANSWER_BYTES: Final = 1 << 20
"""Minimum share of a connection, and minimum size allowed for its next response, while the limit is not reached."""
LARGEST_PART: Final = 16
"""The limit divided by this is the maximum size of a response, because copying a response blocks the event loop."""
CONNECTION_PART: Final = 4
"""The free room divided by this is the maximum size of all responses of a connection."""
_LIMIT: Final = "queued.max.response.bytes"
_WORTH_COUNTING_BYTES: Final = 4_096
"""Smaller responses are not counted, because counting costs more."""

LOG = logging.getLogger("paceline.broker")


@dataclass(slots=True, eq=False)
class _Answer:
    """A response in flight."""

    peer: str
    size_bytes: int
    begin_s: float
    cancel: Callable[[], Any]
    timer: asyncio.TimerHandle


class AnswerBudget:
    """Counts the bytes of responses in flight. Call all methods on the event loop's thread.

    Args:
        limit_bytes: maximum bytes of all responses in flight; the last admitted response may exceed it.
        delivery_s: maximum time in flight.
        contested_s: maximum time in flight while other responses find no room.
        cut: closes the connections of a peer, on a thread; returns whether there was a connection.
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
        """Return the maximum size of the next response on the connection of this call.

        Raises:
            ThrottledError: the limit is reached, in total or on this connection.
        """
        if not self.used_bytes:
            return self._largest_bytes
        free = self._limit_bytes - self.used_bytes
        if free <= 0:
            self._make_room()
            raise ThrottledError.at(_LIMIT, f"{self.used_bytes} bytes of responses have not been received; try again")
        held = self._held_bytes.get(context.peer(), 0)
        if not held:
            return min(self._largest_bytes, max(free // CONNECTION_PART, LEAST_ANSWER_BYTES))
        if held >= max(free // CONNECTION_PART, LEAST_ANSWER_BYTES):
            raise ThrottledError.at(_LIMIT, f"{held} bytes of responses on this connection have not been received")
        return min(self._largest_bytes, max(free // CONNECTION_PART - held, LEAST_ANSWER_BYTES))

    def hold(self, size_bytes: int, context: Any) -> None:
        """Count a response until its call ends, delivered or not; call this in the call's own task.

        Raises:
            ThrottledError: other calls have used the room since it was checked.
        """
        if size_bytes < _WORTH_COUNTING_BYTES:
            return
        if self.used_bytes >= self._limit_bytes:
            self._make_room()
            raise ThrottledError.at(_LIMIT, f"{self.used_bytes} bytes of responses have not been received; try again")
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
        """Disconnect the slowest client, if it is slow enough, so that later calls find room."""
        number = next(iter(self._under_way), None)
        if number is not None:
            under_way_s = asyncio.get_running_loop().time() - self._under_way[number].begin_s
            if under_way_s >= self._contested_s:
                self._give_up(number)

    def _give_up(self, number: int) -> None:
        """Close the connection of a response that the client does not receive; this ends the call and frees its room.

        If no connection is found, the call is cancelled, which frees the room but not the memory.
        """
        # Move the response to the end, so that `_make_room` checks all other responses before this response.
        answer = self._under_way[number] = self._under_way.pop(number)
        answer.begin_s = asyncio.get_running_loop().time()
        LOG.warning("response not received, closing the connection: peer=%s bytes=%d", answer.peer, answer.size_bytes)

        def is_cut(done: "asyncio.Future[bool]") -> None:
            if number in self._under_way and (done.cancelled() or done.exception() is not None or not done.result()):
                answer.cancel()

        asyncio.get_running_loop().run_in_executor(None, self._cut, answer.peer).add_done_callback(is_cut)


def _cancel_of(context: Any) -> Callable[[], Any]:
    """Return a function that cancels a call: its task, or for a stream, which has no task, the stream."""
    cancel: Callable[[], Any] | None = getattr(context, "cancel", None)
    if cancel is not None:
        return cancel
    task = asyncio.current_task()
    assert task is not None
    return task.cancel
