"""Slots for requests on their way: who waits, who is refused, and that no slot is lost."""

import asyncio
from collections.abc import Callable

import pytest

from paceline.model.errors import ThrottledError
from paceline.rpc.admission.loop_fairness import TURN_BYTES, LoopFairness
from paceline.rpc.admission.receive_limiter import ReceiveLimiter

LONG_S = 60.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0)


class Call:
    """A call whose request arrives when it is told to."""

    def __init__(self, receive_limiter: ReceiveLimiter, size_bytes: int = 1, connection: str = "") -> None:
        self.size_bytes = size_bytes
        self.connection = connection
        self.entered = asyncio.Event()
        self.complete = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run(receive_limiter))

    async def _run(self, receive_limiter: ReceiveLimiter) -> None:
        await receive_limiter.receive(self._read, lambda: self.connection)

    async def _read(self) -> bytes:
        self.entered.set()
        await self.complete.wait()
        return b"x" * self.size_bytes


async def test_calls_beyond_the_slots_wait_and_go_on_in_their_order() -> None:
    receive_limiter = ReceiveLimiter(slots=2, wait_s=LONG_S, arrival_s=LONG_S)
    calls = [Call(receive_limiter) for _ in range(4)]
    await until(lambda: receive_limiter.under_way == 2)
    assert [call.entered.is_set() for call in calls] == [True, True, False, False]
    calls[1].complete.set()
    await until(calls[2].entered.is_set)
    assert not calls[3].entered.is_set()
    for call in calls:
        call.complete.set()
    await asyncio.gather(*(call.task for call in calls))
    assert receive_limiter.under_way == 0


async def test_a_call_that_waits_too_long_is_refused_and_takes_no_slot() -> None:
    receive_limiter = ReceiveLimiter(slots=1, wait_s=0.05, arrival_s=LONG_S)
    first, second = Call(receive_limiter), Call(receive_limiter)
    with pytest.raises(ThrottledError, match="try again"):
        await second.task
    first.complete.set()
    await first.task
    third = Call(receive_limiter)
    await until(third.entered.is_set)
    third.complete.set()
    await third.task


async def test_a_slow_sender_steps_aside_and_goes_on_while_the_next_one_comes() -> None:
    receive_limiter = ReceiveLimiter(slots=1, wait_s=LONG_S, slow_after_s=0.05, arrival_s=LONG_S)
    slow, next_one = Call(receive_limiter), Call(receive_limiter)
    await until(next_one.entered.is_set)
    assert not slow.task.done()
    for call in (slow, next_one):
        call.complete.set()
        await call.task
    assert receive_limiter.under_way == 0


async def test_senders_that_never_finish_are_limited_the_longest_first() -> None:
    receive_limiter = ReceiveLimiter(slots=1, slow_slots=2, wait_s=LONG_S, slow_after_s=0.02, arrival_s=LONG_S)
    calls = [Call(receive_limiter) for _ in range(4)]
    for call in calls[:2]:
        with pytest.raises(ThrottledError, match="too long to arrive"):
            await call.task
    for call in calls[2:]:
        assert not call.task.done()
        call.complete.set()
        await call.task
    assert receive_limiter.under_way == 0


async def test_a_sender_is_cut_off_after_its_time_even_when_nobody_waits() -> None:
    receive_limiter = ReceiveLimiter(slots=1, wait_s=LONG_S, slow_after_s=0.02, arrival_s=0.05)
    call = Call(receive_limiter)
    with pytest.raises(ThrottledError, match="too long to arrive"):
        await call.task
    assert receive_limiter.under_way == 0
    assert not call.task.cancelled() and call.task.cancelling() == 0


async def test_a_client_that_goes_away_in_the_middle_leaves_its_slot() -> None:
    receive_limiter = ReceiveLimiter(slots=1, wait_s=LONG_S, arrival_s=LONG_S)
    gone, waiting, next_one = Call(receive_limiter), Call(receive_limiter), Call(receive_limiter)
    await until(gone.entered.is_set)
    waiting.task.cancel()
    gone.task.cancel()
    await until(next_one.entered.is_set)
    next_one.complete.set()
    await next_one.task
    assert receive_limiter.under_way == 0


async def test_a_large_request_keeps_its_slot_until_it_is_its_turn() -> None:
    turns = LoopFairness()
    receive_limiter = ReceiveLimiter(turns, slots=1, wait_s=LONG_S, arrival_s=LONG_S)
    large, next_one = Call(receive_limiter, TURN_BYTES), Call(receive_limiter)
    await until(large.entered.is_set)
    turns.moved(TURN_BYTES)
    large.complete.set()
    await until(lambda: not turns.free)
    assert not next_one.entered.is_set()
    await large.task
    await until(next_one.entered.is_set)
    next_one.complete.set()
    await next_one.task
    assert receive_limiter.under_way == 0


async def test_connections_take_turns() -> None:
    receive_limiter = ReceiveLimiter(slots=1, wait_s=LONG_S, slow_after_s=LONG_S, arrival_s=2 * LONG_S)
    calls = [Call(receive_limiter, connection=name) for name in ("a", "a", "a", "a", "b", "c", "b")]
    order = []
    for _ in calls:
        await until(lambda: receive_limiter.under_way == 1)
        (now,) = [call for call in calls if call.entered.is_set() and not call.complete.is_set()]
        order.append(calls.index(now))
        now.complete.set()
        await now.task
    assert order == [0, 1, 4, 5, 2, 6, 3]
    assert receive_limiter.under_way == 0


async def test_a_connection_with_slow_senders_comes_after_the_others_and_makes_way_for_them() -> None:
    receive_limiter = ReceiveLimiter(slots=2, wait_s=LONG_S, slow_after_s=0.02, arrival_s=LONG_S)
    crowd = [Call(receive_limiter, connection="crowd") for _ in range(10)]
    await until(lambda: receive_limiter.under_way == 4)
    receive_limiter._slow_after_s = LONG_S  # whoever gets a slot from now on keeps it
    for _ in range(20):
        other = Call(receive_limiter, connection="other")
        await until(other.entered.is_set)
        other.complete.set()
        await other.task
    assert not any(call.complete.is_set() for call in crowd)
    for call in crowd:
        call.complete.set()
    await asyncio.gather(*(call.task for call in crowd), return_exceptions=True)
    assert receive_limiter.under_way == 0


async def test_the_connection_with_most_slow_senders_is_cut_off_first() -> None:
    receive_limiter = ReceiveLimiter(slots=1, slow_slots=3, wait_s=LONG_S, slow_after_s=0.02, arrival_s=LONG_S)
    alone = Call(receive_limiter, connection="alone")
    await until(alone.entered.is_set)
    crowd = [Call(receive_limiter, connection="crowd") for _ in range(6)]
    for call in crowd[:3]:
        with pytest.raises(ThrottledError, match="too long to arrive"):
            await call.task
    assert not alone.task.done()
    for call in (alone, *crowd[3:]):
        call.complete.set()
        await asyncio.gather(call.task, return_exceptions=True)
    assert receive_limiter.under_way == 0


async def test_a_slot_that_goes_to_a_call_which_is_cancelled_in_the_same_moment_goes_on_to_the_next() -> None:
    receive_limiter = ReceiveLimiter(slots=1, wait_s=LONG_S, arrival_s=LONG_S)
    complete = asyncio.Event()

    async def first() -> None:
        await receive_limiter.receive(complete.wait)
        gone.task.cancel()

    holder = asyncio.get_running_loop().create_task(first())
    await until(lambda: receive_limiter.under_way == 1)
    gone, next_one = Call(receive_limiter), Call(receive_limiter)
    await until(lambda: sum(map(len, receive_limiter._waiting.values())) == 2)
    complete.set()
    await holder
    await until(next_one.entered.is_set)
    assert not gone.entered.is_set()
    next_one.complete.set()
    await next_one.task
    assert receive_limiter.under_way == 0
