"""Turns of large requests: one after the other, and the event loop is left to others after each."""

import asyncio

import pytest

from paceline.model.errors import ThrottledError
from paceline.rpc.admission.turns import BYTES_PER_S, LARGE_BYTES, LONGEST_PAUSE_S, SLICE, Debt, Turns
from tests.unit.rpc.test_receive_limiter import limiter, until


async def test_long_lists_are_handled_in_slices_that_alternate_between_requests() -> None:
    turns = Turns()
    order: list[str] = []

    async def request(name: str) -> list[int]:
        await turns.turn()

        def work(number: int) -> int:
            if number % SLICE == 0:
                order.append(name)
            return 2 * number

        return await turns.each(work, range(3 * SLICE))

    results = await asyncio.gather(request("a"), request("b"))
    assert results == [[2 * number for number in range(3 * SLICE)]] * 2
    assert order == ["a", "b"] * 3


async def test_the_loop_is_left_to_others_for_as_long_as_a_turn_took(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    pauses_s: list[float] = []
    clock_s = 100.0

    async def pause(seconds: float) -> None:
        pauses_s.append(seconds)
        await yield_once()

    async def yield_once() -> None:
        await asyncio.get_running_loop().run_in_executor(None, int)

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock_s)
    monkeypatch.setattr(asyncio, "sleep", pause)
    await turns.turn()
    clock_s += 0.02  # the caller works
    await yield_once()
    await turns.turn()
    clock_s += 5
    await yield_once()
    await turns.turn()
    assert pauses_s[0] < 0, "nothing was in progress before"
    assert pauses_s[1:] == pytest.approx([0.02, LONGEST_PAUSE_S])


async def test_a_large_request_keeps_its_slot_until_its_turn() -> None:
    receive_limiter = limiter(slots=1)
    await receive_limiter.turns._lock.acquire()  # another large request has its turn
    large = asyncio.create_task(receive_limiter.receive(lambda: _request(LARGE_BYTES), takes_turns=True))
    small = asyncio.create_task(receive_limiter.receive(lambda: _request(LARGE_BYTES - 1), takes_turns=True))
    await until(lambda: len(receive_limiter._waiting) == 1)
    assert receive_limiter.under_way == 1
    receive_limiter.turns._lock.release()
    assert [len(await task) for task in (large, small)] == [LARGE_BYTES, LARGE_BYTES - 1]


async def test_small_requests_and_payloads_need_no_turn() -> None:
    receive_limiter = limiter(slots=1)
    await receive_limiter.turns._lock.acquire()
    assert len(await receive_limiter.receive(lambda: _request(LARGE_BYTES - 1), takes_turns=True)) == LARGE_BYTES - 1
    assert len(await receive_limiter.receive(lambda: _request(LARGE_BYTES))) == LARGE_BYTES


async def test_after_a_large_request_a_connection_is_read_when_that_is_paid_for() -> None:
    receive_limiter = limiter(slots=8, wait_s=0.05)
    read: list[str] = []

    async def receive(peer: str, size_bytes: int) -> bytes:
        async def request() -> bytes:
            read.append(peer)
            return bytes(size_bytes)

        received: bytes = await receive_limiter.receive(request, peer, takes_turns=True)
        return received

    await receive("large", 2 * BYTES_PER_S)
    for _ in range(3):
        await receive("small", 1)
    with pytest.raises(ThrottledError, match="more large requests than the broker receives"):
        await receive("large", 1)
    assert read == ["large", "small", "small", "small"]
    receive_limiter.turns._debts["large"].paid_s = 0.0
    await asyncio.gather(*(receive("large", 1) for _ in range(3)))
    assert read[4:] == ["large"] * 3
    await receive("other", LARGE_BYTES)
    assert not receive_limiter.turns.owes("large")


async def test_a_new_connection_of_a_flooding_caller_is_read_before_the_flood() -> None:
    receive_limiter, read = limiter(), []

    async def receive(name: str, connection: str, size_bytes: int = 1) -> None:
        async def request() -> bytes:
            read.append(name)
            return bytes(size_bytes)

        await receive_limiter.receive(request, "caller", takes_turns=True, connection_of=lambda: connection)

    await receive("first", "A", BYTES_PER_S)
    flood = [asyncio.create_task(receive(f"{name}{n}", name)) for n in range(4) for name in "AB"]
    await asyncio.sleep(0)
    cancelled, new = (asyncio.create_task(receive(name, name)) for name in ("cancelled", "new"))
    await asyncio.sleep(0)
    cancelled.cancel()
    receive_limiter.turns._debts["caller"].paid_s = 0.0
    flood[0].cancel()  # it waits for the payment, and the next in turn finds it paid
    await asyncio.gather(*flood[1:], new)
    assert read[:2] == ["first", "new"], "the newest connection that still waits"
    assert sorted(read[2:]) == ["A1", "A2", "A3", "B0", "B1", "B2", "B3"]
    assert {"A1", "B0"} <= {*read[2:6]}, "no connection waits for all calls of another"


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    debt = Debt()
    await debt.acquire("holder")
    waits = [asyncio.create_task(debt.acquire(connection)) for connection in "ABAB"]
    await asyncio.sleep(0)
    debt.release()
    await asyncio.sleep(0)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert not debt._new and not debt._old
    assert [wait.cancelled() for wait in waits].count(False) == 1, "only the holder's wait has ended before"


async def _request(size_bytes: int) -> bytes:
    await asyncio.sleep(0)
    return bytes(size_bytes)
