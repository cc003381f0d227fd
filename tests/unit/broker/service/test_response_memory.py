"""Responses that clients have not read yet: their total, the part of one connection, and the time limit."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from paceline.broker.service.response_memory import (
    CONNECTION_PART,
    CONTESTED_DELIVERY_S,
    LARGEST_PART,
    LEAST_ANSWER_BYTES,
    LONGEST_DELIVERY_S,
    AnswerBudget,
)
from paceline.model.errors import ThrottledError
from tests.support.waiting import until

MIB = 1 << 20
LIMIT = 64 * MIB
LARGEST = LIMIT // LARGEST_PART
LONG_S = 60.0


class Context:
    """The part of a call's context that is used."""

    def __init__(self, peer: str = "ipv4:10.0.0.7:1") -> None:
        self.callbacks: list[Callable[[Any], None]] = []
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def end(self) -> None:
        for callback in self.callbacks:
            callback(self)


class Connections:
    """Records the connections that the budget ends; ``known`` are those whose sockets are found."""

    def __init__(self, *known: Context) -> None:
        self.known = known
        self.cut: list[str] = []
        self._loop = asyncio.get_running_loop()

    def __call__(self, peer: str) -> bool:
        self.cut.append(peer)
        found = [context for context in self.known if context.peer() == peer]
        for context in found:
            self._loop.call_soon_threadsafe(context.end)
        return bool(found)


Advance = Callable[[float], None]


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Advance:
    """Return a function that moves the clock of the running loop forward by seconds."""

    def advanced(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time
        monkeypatch.setattr(loop, "time", lambda: before() + seconds)

    return advanced


async def test_responses_count_until_their_calls_end() -> None:
    budget = AnswerBudget(LIMIT)
    first, second = Context("a"), Context("b")
    budget.hold(4 * MIB, first)
    budget.hold(60 * MIB, second)
    with pytest.raises(ThrottledError, match="67108864 bytes of responses have not been received"):
        budget.room_bytes(Context("c"))
    with pytest.raises(ThrottledError):
        budget.hold(MIB, Context("c"))
    second.end()
    assert budget.used_bytes == 4 * MIB
    assert budget.room_bytes(Context("c")) == LARGEST
    first.end()
    first.end()
    assert budget.used_bytes == 0


async def test_one_response_is_limited_to_a_part_of_the_budget() -> None:
    assert AnswerBudget(LIMIT).room_bytes(Context()) == LARGEST
    assert AnswerBudget(MIB).room_bytes(Context()) == LEAST_ANSWER_BYTES


async def test_one_connection_holds_no_more_than_a_part_of_the_free_memory() -> None:
    budget = AnswerBudget(LIMIT)
    held = 0
    with pytest.raises(ThrottledError, match="on this connection"):
        while True:
            size = budget.room_bytes(Context("greedy"))
            budget.hold(size, Context("greedy"))
            held += size
    assert held <= (LIMIT - held) // CONNECTION_PART + LEAST_ANSWER_BYTES
    assert budget.room_bytes(Context("modest")) == LARGEST


async def test_twenty_stalled_connections_leave_room_for_the_next_one() -> None:
    budget = AnswerBudget(LIMIT)
    for number in range(20):
        context = Context(f"stalled {number}")
        budget.hold(budget.room_bytes(context), context)
    assert budget.room_bytes(Context("next")) >= LEAST_ANSWER_BYTES


async def test_a_small_response_is_allowed_while_any_memory_is_free() -> None:
    budget = AnswerBudget(LIMIT)
    budget.hold(LIMIT - 1, Context("a"))
    assert budget.room_bytes(Context("b")) == LEAST_ANSWER_BYTES


async def test_small_responses_are_not_counted() -> None:
    budget = AnswerBudget(MIB)
    for _ in range(1_000):
        budget.hold(2_000, Context())
    assert budget.used_bytes == 0


async def test_the_connection_of_a_client_that_does_not_read_its_response_is_ended(advance: Advance) -> None:
    context = Context("stalled")
    connections = Connections(context)
    budget = AnswerBudget(MIB, cut=connections)
    budget.hold(MIB, context)
    advance(LONGEST_DELIVERY_S)
    await until(lambda: budget.used_bytes == 0)
    assert connections.cut == ["stalled"]


async def test_without_free_memory_the_connection_that_has_waited_longest_is_ended(advance: Advance) -> None:
    contexts = [Context("first"), Context("second")]
    connections = Connections(*contexts)
    budget = AnswerBudget(2 * MIB, cut=connections)
    for context in contexts:
        budget.hold(MIB, context)
        advance(CONTESTED_DELIVERY_S / 3)
    with pytest.raises(ThrottledError):
        budget.room_bytes(Context("third"))
    assert connections.cut == [], "the deadline has not passed yet"
    advance(CONTESTED_DELIVERY_S / 3)

    def has_room() -> bool:
        try:
            return budget.room_bytes(Context("third")) > 0
        except ThrottledError:
            return False

    await until(has_room)
    assert connections.cut == ["first"]
    assert budget.used_bytes == MIB


async def test_when_a_connection_is_not_found_the_next_one_is_ended(advance: Advance) -> None:
    contexts = [Context("not found"), Context("found")]
    connections = Connections(contexts[1])
    budget = AnswerBudget(2 * MIB, cut=connections)

    async def call() -> None:
        budget.hold(MIB, contexts[0])
        await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(call())
    await until(lambda: budget.used_bytes == MIB)
    budget.hold(MIB, contexts[1])
    advance(CONTESTED_DELIVERY_S)

    def has_room() -> bool:
        try:
            return budget.room_bytes(Context("third")) > 0
        except ThrottledError:
            return False

    await until(has_room)
    await until(task.done)
    assert connections.cut == ["not found", "found"]


async def test_the_call_is_cancelled_when_its_connection_is_not_found(advance: Advance) -> None:
    budget = AnswerBudget(MIB, cut=lambda peer: False)
    context = Context()

    async def call() -> None:
        budget.hold(MIB, context)
        await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(call())
    await until(lambda: budget.used_bytes == MIB)
    advance(LONGEST_DELIVERY_S)
    with pytest.raises(asyncio.CancelledError):
        await task
    context.end()
    assert budget.used_bytes == 0
