"""Slots for requests that are being received: the order of calls, refusals, and that no slot is lost."""

import asyncio
import random
from typing import Any

import pytest

from paceline.model.errors import ThrottledError
from paceline.rpc.admission.receive_limiter import ReceiveLimiter
from tests.support.waiting import until

LONG_S = 60.0


def limiter(**options: Any) -> ReceiveLimiter:
    return ReceiveLimiter(**{"slots": 1, "slow_after_s": LONG_S, "wait_s": LONG_S, "receipt_s": LONG_S, **options})


class Call:
    """A call whose request the test delivers."""

    def __init__(self, receive_limiter: ReceiveLimiter, peer: str = "") -> None:
        self.admitted = asyncio.Event()
        self.complete = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(receive_limiter.receive(self._read, peer))

    async def _read(self) -> bytes:
        self.admitted.set()
        await self.complete.wait()
        return b"request"


async def test_calls_without_a_slot_wait_and_the_newest_is_next() -> None:
    receive_limiter = limiter(slots=3)  # of which one caller has at most two
    calls = [Call(receive_limiter) for _ in range(4)]
    await until(lambda: receive_limiter.under_way == 2)
    assert [call.admitted.is_set() for call in calls] == [True, True, False, False]
    calls[0].complete.set()
    await until(calls[3].admitted.is_set)
    assert not calls[2].admitted.is_set()
    for call in calls:
        call.complete.set()
    assert await asyncio.gather(*(call.task for call in calls)) == [b"request"] * 4
    assert receive_limiter.under_way == 0


async def test_a_quiet_connection_gets_a_slot_although_another_keeps_sending() -> None:
    receive_limiter = limiter()
    calls = [Call(receive_limiter, "crowd") for _ in range(5)]
    quiet = Call(receive_limiter, "quiet")

    def receiving() -> list[Call]:
        return [call for call in [quiet, *calls] if call.admitted.is_set() and not call.task.done()]

    await until(lambda: receiving() == calls[:1] and "quiet" in receive_limiter._waiting)
    for _ in range(2):
        waiting = len(receive_limiter._waiting["crowd"])
        calls.append(Call(receive_limiter, "crowd"))  # newer than the call of the quiet connection
        await until(lambda more=waiting + 1: len(receive_limiter._waiting["crowd"]) == more)
        (call,) = receiving()
        call.complete.set()
        await call.task
        await until(lambda: len(receiving()) == 1)
        if receiving() == [quiet]:
            break
    assert receiving() == [quiet]
    for call in [*calls, quiet]:
        call.complete.set()
    await asyncio.gather(*(call.task for call in [*calls, quiet]))
    assert receive_limiter.under_way == 0


async def test_call_that_waits_too_long_is_refused_and_takes_no_slot() -> None:
    receive_limiter = limiter(slow_after_s=0.02, wait_s=0.01)
    receive_limiter._free = 0
    with pytest.raises(ThrottledError, match="try again"):
        await Call(receive_limiter).task
    assert receive_limiter.under_way == 0


async def test_slow_sender_gives_its_slot_to_others_and_may_finish() -> None:
    receive_limiter = limiter(slow_after_s=0.02)
    slow, other = Call(receive_limiter), Call(receive_limiter)
    await until(other.admitted.is_set)
    other.complete.set()
    slow.complete.set()
    assert await slow.task == await other.task == b"request"
    assert receive_limiter.under_way == 0


async def test_one_slow_sender_too_many_ends_the_oldest_call() -> None:
    receive_limiter = limiter(slow_after_s=0.02, slow_senders=1)
    first = Call(receive_limiter)
    await until(first.admitted.is_set)
    second = Call(receive_limiter)
    with pytest.raises(ThrottledError, match="too long to arrive"):
        await first.task
    second.complete.set()
    assert await second.task == b"request"


async def test_sender_that_never_finishes_is_ended() -> None:
    receive_limiter = limiter(slow_after_s=0.02, receipt_s=0.05)
    with pytest.raises(ThrottledError, match="too long to arrive"):
        await Call(receive_limiter).task
    assert receive_limiter.under_way == 0


async def test_a_call_that_gets_its_slot_just_before_a_check_is_watched() -> None:
    receive_limiter = limiter(slow_after_s=0.02, receipt_s=0.05)
    first, second = Call(receive_limiter), Call(receive_limiter)
    await until(lambda: first.admitted.is_set() and bool(receive_limiter._waiting))
    timer = receive_limiter._timer
    assert timer is not None
    timer.cancel()
    first.complete.set()
    # At this check the first call has ended, and the second has not run since it got the slot.
    asyncio.get_running_loop().call_soon(receive_limiter._check)
    with pytest.raises(ThrottledError, match="too long to arrive"):
        await asyncio.wait_for(second.task, LONG_S)


async def test_no_slot_is_lost_however_a_call_ends() -> None:
    rng = random.Random(7)
    receive_limiter = limiter(slots=3, slow_after_s=0.005, slow_senders=2, wait_s=0.02, receipt_s=0.03)
    calls: list[Call] = []
    for _ in range(200):
        calls.append(Call(receive_limiter, rng.choice(("one", "two", "three"))))
        call = rng.choice(calls)
        if rng.random() < 0.4:
            call.complete.set()
        elif rng.random() < 0.4:
            call.task.cancel()
        for _ in range(rng.choice((0, 0, 0, 1, 5))):
            await asyncio.sleep(0)
    outcomes = await asyncio.gather(*(call.task for call in calls), return_exceptions=True)
    assert all(one == b"request" or isinstance(one, ThrottledError | asyncio.CancelledError) for one in outcomes)
    assert receive_limiter.under_way == 0
    assert receive_limiter._free == 3 and not receive_limiter._held
    fresh = [Call(receive_limiter) for _ in range(3)]
    for call in fresh:
        call.complete.set()
    assert await asyncio.gather(*(call.task for call in fresh)) == [b"request"] * 3


async def test_one_caller_never_has_all_slots() -> None:
    receive_limiter = limiter(slots=4)
    crowd = [Call(receive_limiter, "User:mallory") for _ in range(20)]
    await until(lambda: receive_limiter.under_way == 3 and len(receive_limiter._waiting["User:mallory"]) == 17)
    other = Call(receive_limiter, "User:alice")
    await until(other.admitted.is_set)
    other.complete.set()
    await other.task
    assert receive_limiter.under_way == 3 and receive_limiter._free == 1, "the slot stays free for others"
    for call in crowd:
        call.complete.set()
    await asyncio.gather(*(call.task for call in crowd))
    assert receive_limiter._free == 4 and not receive_limiter._held


async def test_a_flood_of_slow_senders_ends_calls_of_its_own_caller() -> None:
    receive_limiter = limiter(slots=2, slow_after_s=0.02, slow_senders=3)
    alice = Call(receive_limiter, "User:alice")
    await until(alice.admitted.is_set)
    flood = []
    for _ in range(6):
        flood.append(Call(receive_limiter, "User:mallory"))
        await until(flood[-1].admitted.is_set)
    for call in flood[:3]:
        with pytest.raises(ThrottledError, match="too long to arrive"):
            await call.task
    assert not alice.task.done()
    for call in [alice, *flood[3:]]:
        call.complete.set()
    assert await alice.task == b"request"
    await asyncio.gather(*(call.task for call in flood[3:]), return_exceptions=True)
