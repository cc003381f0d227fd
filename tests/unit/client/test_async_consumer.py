"""`AsyncConsumer` over a consumer in memory."""

import asyncio
from typing import Any

from paceline_client import AsyncConsumer


class OneLog:
    """Returns two records per poll; records that were not yielded are read again after `give_back`."""

    def __init__(self) -> None:
        self._next = 0
        self._unread: list[int] = []

    def give_back(self) -> None:
        if self._unread:
            self._next, self._unread = self._unread[0], []

    def poll_held(self, _timeout_ms: int, _max_records: int | None) -> dict[str, list[int]]:
        self._unread = [self._next, self._next + 1]
        self._next += 2
        return {"t-0": list(self._unread)}

    def yielded(self, record: int) -> None:
        self._unread = [one for one in self._unread if one != record]

    def yielded_all(self) -> None:
        self._unread = []

    def close(self) -> None:
        """Do nothing."""


async def test_tasks_that_share_a_consumer_get_every_record_once() -> None:
    consumer = AsyncConsumer(bootstrap="127.0.0.1:1")
    shared: Any = consumer
    shared._consumer = OneLog()
    got = await asyncio.gather(*(consumer.getone() for _ in range(6)))
    many = await consumer.getmany()
    await consumer.stop()
    assert sorted([*got, *many["t-0"]]) == list(range(8))
