"""Answers nobody has taken yet: how many there may be, and how long."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from paceline.broker.servicer_answers import LEAST_ANSWER_BYTES, AnswerBudget
from paceline.model.errors import ThrottledError

MIB = 1 << 20


class Context:
    """The part of a call's context that is used."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def end(self) -> None:
        for callback in self.callbacks:
            callback(self)


async def test_answers_count_until_their_calls_are_over() -> None:
    budget = AnswerBudget(10 * MIB)
    first, second = Context(), Context()
    assert budget.room_bytes() == 10 * MIB
    budget.hold(4 * MIB, first)
    assert budget.room_bytes() == 6 * MIB
    budget.hold(6 * MIB, second)
    with pytest.raises(ThrottledError, match="10485760 bytes of answers are not taken yet"):
        budget.room_bytes()
    with pytest.raises(ThrottledError):
        budget.hold(MIB, Context())
    first.end()
    assert budget.room_bytes() == 4 * MIB
    second.end()
    assert budget.used_bytes == 0


async def test_while_there_is_any_room_an_answer_is_worth_sending() -> None:
    budget = AnswerBudget(10 * MIB)
    budget.hold(10 * MIB - 1, Context())
    assert budget.room_bytes() == LEAST_ANSWER_BYTES


async def test_small_answers_are_not_counted() -> None:
    budget = AnswerBudget(MIB)
    for _ in range(1_000):
        budget.hold(2_000, Context())
    assert budget.used_bytes == 0


async def test_a_client_that_does_not_take_its_answer_is_cut_off() -> None:
    budget = AnswerBudget(MIB, delivery_s=0.05)
    context = Context()

    async def call() -> None:
        budget.hold(MIB, context)
        await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(call())
    with pytest.raises(asyncio.CancelledError):
        await task
    context.end()
    assert budget.used_bytes == 0
