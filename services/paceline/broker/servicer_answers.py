"""Bytes of answers that clients have asked for and not taken yet, over all listeners of a broker.

Without a limit clients that ask for 50 MiB and never read would fill the broker's memory (hostile inputs H20, H21).
"""

import asyncio
from typing import Any, Final

from paceline.model.errors import ThrottledError

LONGEST_DELIVERY_S: Final = 60.0
"""A client that has not taken its answer by then is cut off: its answer's room is wanted by others."""
LEAST_ANSWER_BYTES: Final = 1 << 20
"""While there is any room, a fetch gets at least this much if it asks for it."""
_WORTH_COUNTING_BYTES: Final = 4_096
"""What is smaller costs less than counting it."""


class AnswerBudget:
    """All methods are for the event loop's thread.

    Args:
        limit_bytes: what all answers under way may take; the last one to be let in may go beyond it.
        delivery_s: longest time one may be under way.
    """

    def __init__(self, limit_bytes: int, delivery_s: float = LONGEST_DELIVERY_S) -> None:
        self._limit_bytes = limit_bytes
        self._delivery_s = delivery_s
        self.used_bytes = 0

    def room_bytes(self) -> int:
        """Return how large the next answer may be.

        Raises:
            ThrottledError: too much is under way already.
        """
        if self.used_bytes >= self._limit_bytes:
            raise ThrottledError(f"{self.used_bytes} bytes of answers are not taken yet; try again")
        return max(self._limit_bytes - self.used_bytes, LEAST_ANSWER_BYTES)

    def hold(self, size_bytes: int, context: Any) -> None:
        """Count an answer until its call is over, delivered or not; to be called in the call's own task.

        Raises:
            ThrottledError: others were faster, and there is no room any more.
        """
        if size_bytes < _WORTH_COUNTING_BYTES:
            return
        self.room_bytes()
        task = asyncio.current_task()
        assert task is not None
        # Its room is given away then, though gRPC keeps what it was handed until the client goes.
        timer = asyncio.get_running_loop().call_later(self._delivery_s, task.cancel)
        self.used_bytes += size_bytes

        def over(_context: Any) -> None:
            timer.cancel()
            self.used_bytes -= size_bytes

        context.add_done_callback(over)
