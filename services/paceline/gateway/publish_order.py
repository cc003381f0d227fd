"""`PublishOrder`: send the records of a stream in order per partition, although records take different paths.

Small records, large records and records with a caller's producer id are sent by different producers, so that a large
record does not delay small ones. Records of one partition never travel on two paths at the same time.
"""

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Lane(Generic[T]):
    def __init__(self) -> None:
        self.path: object = None
        self.in_flight = 0
        self.waiting: deque[tuple[object, T]] = deque()


class PublishOrder(Generic[T]):
    """The order of one stream. A lane is a partition, or any other value whose records keep their order."""

    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane[T]] = {}

    def add(self, lane: Hashable, path: object, item: T) -> bool:
        """Return whether the item may be sent now; otherwise `done` returns it later."""
        found = self._lanes.setdefault(lane, _Lane())
        if found.waiting or (found.in_flight and found.path != path):
            found.waiting.append((path, item))
            return False
        found.path = path
        found.in_flight += 1
        return True

    def done(self, lane: Hashable) -> list[T]:
        """Record that an item of the lane has its result; return the items to send now, in order."""
        found = self._lanes[lane]
        found.in_flight -= 1
        ready = []
        while found.waiting and (not found.in_flight or found.waiting[0][0] == found.path):
            found.path, item = found.waiting.popleft()
            found.in_flight += 1
            ready.append(item)
        if not found.in_flight:
            del self._lanes[lane]
        return ready
