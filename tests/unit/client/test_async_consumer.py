"""`AsyncConsumer` over a consumer in memory."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest

from paceline_client import AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, ConsumerRecord, TopicPartition
from paceline_client.consumer import ConsumerSettings
from paceline_client.groups.held_records import HeldRecords

ONE = TopicPartition("t", 0)


class OneLog:
    """Returns two records per poll; records that were not taken are read again after `give_back`."""

    def __init__(self) -> None:
        self._next = 0
        self._held = HeldRecords({})

    def give_back(self) -> None:
        self._next = self._held.remove_all().get(ONE, self._next)

    def poll_held(self, _timeout_ms: int, _max_records: int | None) -> dict[TopicPartition, list[ConsumerRecord]]:
        records = [record(self._next), record(self._next + 1)]
        self._next += 2
        self._held = HeldRecords({ONE: records})
        return {ONE: records}

    def held_records(self) -> Iterator[ConsumerRecord]:
        return self._held.rest

    def take_all_held(self) -> None:
        self._held.remove_all()

    def next_offset(self, partition: TopicPartition) -> int:
        held = self._held.next_offset(partition)
        return self._next if held is None else held

    def close(self) -> None:
        """Do nothing."""


def record(offset: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, 1_000, None, b"v", ())


def consumer_of_one_log() -> AsyncConsumer:
    consumer = AsyncConsumer(bootstrap="127.0.0.1:1")
    shared: Any = consumer
    shared._client = OneLog()
    return consumer


async def test_tasks_that_share_a_consumer_get_every_record_once() -> None:
    consumer = consumer_of_one_log()
    got = await asyncio.gather(*(consumer.getone() for _ in range(6)))
    many = await consumer.getmany()
    await consumer.stop()
    assert sorted(one.offset for one in (*got, *many[ONE])) == list(range(8))


async def test_anext_returns_the_next_record_between_loops() -> None:
    consumer = consumer_of_one_log()
    got = [await anext(consumer)]
    async for one in consumer:
        got.append(one)
        if len(got) == 4:
            break
    got.append(await anext(consumer))
    await consumer.stop()
    assert [one.offset for one in got] == list(range(5))


async def test_the_position_in_a_loop_is_after_the_record_that_the_loop_has_got() -> None:
    consumer = consumer_of_one_log()
    positions = []
    async for one in consumer:
        positions.append((one.offset, await consumer.position(ONE)))
        if one.offset == 3:
            break
    await consumer.stop()
    assert positions == [(0, 1), (1, 2), (2, 3), (3, 4)]


async def test_a_loop_goes_on_after_the_records_that_a_getmany_in_it_has_returned() -> None:
    consumer = consumer_of_one_log()
    got: list[int] = []
    async for one in consumer:
        got.append(one.offset)
        if one.offset == 0:
            got += [more.offset for more in (await consumer.getmany())[ONE]]
        if len(got) == 6:
            break
    await consumer.stop()
    assert got == list(range(6))


async def test_records_of_getmany_are_not_taken_one_by_one_before_it_returns() -> None:
    consumer = consumer_of_one_log()
    many, one, another = await asyncio.gather(consumer.getmany(), consumer.getone(), anext(aiter(consumer)))
    await consumer.stop()
    assert sorted(read.offset for read in (*many[ONE], one, another)) == list(range(4))


@pytest.mark.parametrize("client", [AsyncConsumer, AsyncProducer, AsyncAdmin])
def test_a_setting_that_does_not_exist_is_refused_before_the_client_starts(client: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'client_idd'"):
        client(bootstrap="127.0.0.1:1", client_idd="billing")


def test_the_settings_of_consumers_have_the_names_and_types_of_the_arguments() -> None:
    arguments = get_type_hints(Consumer.__init__)
    assert get_type_hints(ConsumerSettings) == {
        name: kind for name, kind in arguments.items() if name not in {"bootstrap", "return"}
    }
