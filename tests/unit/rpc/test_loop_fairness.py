"""LoopFairness for large work: one in each round of the loop, and whoever else has something goes in between."""

import asyncio
import itertools

from paceline.rpc.admission.loop_fairness import TURN_BYTES, WORTH_A_TURN_BYTES, LoopFairness

LONG_S = 60.0


class Rounds:
    """Counts the rounds of the event loop, as a control request that comes in each of them would see it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._counting = asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.seen.append("control")
        self._counting = asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> list[str]:
        self._counting.cancel()
        return self.seen


async def test_of_many_large_pieces_that_are_ready_together_one_is_done_in_each_round() -> None:
    turns, rounds = LoopFairness(), Rounds()

    async def large(number: int) -> None:
        await turns.take(TURN_BYTES)
        rounds.seen.append(f"large {number}")

    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*(large(number) for number in range(20)))
    seen = rounds.stop()
    assert [one for one in seen if one != "control"] == [f"large {number}" for number in range(20)]
    assert all("control" in (before, after) for before, after in itertools.pairwise(seen))


async def test_small_work_never_waits() -> None:
    turns = LoopFairness()
    turns.moved(8 * TURN_BYTES)
    assert not turns.free
    small = turns.take(WORTH_A_TURN_BYTES - 1)
    try:
        small.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


async def test_middling_pieces_share_a_round_until_it_is_full() -> None:
    turns, rounds = LoopFairness(), Rounds()

    async def middling() -> None:
        await turns.take(TURN_BYTES // 2)
        rounds.seen.append("piece")

    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*(middling() for _ in range(4)))
    seen = "".join("p" if one == "piece" else "." for one in rounds.stop())
    assert [len(pieces) for pieces in seen.split(".") if pieces] == [2, 2]


async def test_who_waits_and_then_has_nothing_large_makes_room_for_the_others_behind() -> None:
    turns = LoopFairness()
    turns.moved(TURN_BYTES)

    async def nothing_large() -> None:
        await turns.wait()

    async with asyncio.timeout(LONG_S):
        await asyncio.gather(*(nothing_large() for _ in range(500)))
    assert turns.free


async def test_a_caller_that_goes_away_while_it_waits_takes_no_turn() -> None:
    turns = LoopFairness()
    loop = asyncio.get_running_loop()
    gone, next_one = (loop.create_task(turns.take(TURN_BYTES)) for _ in range(2))
    turns.moved(TURN_BYTES)
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(LONG_S):
        await next_one
    assert gone.cancelled()


async def test_a_request_that_was_received_is_worked_on_in_a_later_round() -> None:
    turns, rounds = LoopFairness(), Rounds()
    await asyncio.sleep(0)
    before = len(rounds.seen)
    await turns.after(TURN_BYTES)
    assert len(rounds.stop()) > before
    assert not turns.free
