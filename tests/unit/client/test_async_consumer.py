"""`AsyncConsumer` over a consumer in memory."""

import asyncio
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from paceline_client import AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer
from paceline_client.consumer import ConsumerSettings


class OneLog:
    """Returns two records per poll; records that were not taken are read again after `give_back`."""

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

    def take_held(self) -> int | None:
        return self._unread.pop(0) if self._unread else None

    def take_all_held(self) -> None:
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


async def test_anext_returns_the_next_record_between_loops() -> None:
    consumer = AsyncConsumer(bootstrap="127.0.0.1:1")
    shared: Any = consumer
    shared._consumer = OneLog()
    got: list[Any] = [await anext(consumer)]
    async for record in consumer:
        got.append(record)
        if len(got) == 4:
            break
    got.append(await anext(consumer))
    await consumer.stop()
    assert got == list(range(5))


async def test_records_of_getmany_are_not_taken_one_by_one_before_it_returns() -> None:
    consumer = AsyncConsumer(bootstrap="127.0.0.1:1")
    shared: Any = consumer
    shared._consumer = OneLog()
    many, one, another = await asyncio.gather(consumer.getmany(), consumer.getone(), anext(aiter(consumer)))
    await consumer.stop()
    assert sorted([*many["t-0"], one, another]) == list(range(4))


@pytest.mark.parametrize("client", [AsyncConsumer, AsyncProducer, AsyncAdmin])
def test_a_setting_that_does_not_exist_is_refused_before_the_client_starts(client: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'client_idd'"):
        client(bootstrap="127.0.0.1:1", client_idd="billing")


def test_the_settings_of_consumers_have_the_names_and_types_of_the_arguments() -> None:
    arguments = get_type_hints(Consumer.__init__)
    assert get_type_hints(ConsumerSettings) == {
        name: kind for name, kind in arguments.items() if name not in {"bootstrap", "return"}
    }
